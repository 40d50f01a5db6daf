"""LISTEN on PostgreSQL, from a thread, reconnecting for as long as it is wanted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

import psycopg
from psycopg import sql

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
_RECONNECT_SECONDS: Final = 1.0


class Listener:
    """While entered, calls ``wake`` for each notification, and once whenever it has connected.

    What is notified while the connection is down is lost, hence the call after connecting.
    """

    def __init__(self, conninfo: str, channel: str, wake: Callable[[], None]) -> None:
        self._conninfo = conninfo
        self._listen = sql.SQL("LISTEN {}").format(sql.Identifier(channel))
        self._wake = wake
        self._over = threading.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-listener", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        # Usually milliseconds; without the database there is nothing to miss yet.
        self._listening.wait(_RECONNECT_SECONDS)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._listen_until_over()
            except psycopg.Error as error:
                logger.warning("not listening for stored messages, trying again: %s", error)
                self._over.wait(_RECONNECT_SECONDS)

    def _listen_until_over(self) -> None:
        with psycopg.connect(
            self._conninfo, autocommit=True, connect_timeout=5, keepalives_idle=10
        ) as connection:
            connection.execute(self._listen)
            self._wake()
            self._listening.set()
            while not self._over.is_set():
                for _ in connection.notifies(timeout=_LOOK_SECONDS, stop_after=1):
                    self._wake()
