"""What a dispatcher knows of a PostgreSQL table between its claims: it is notified, and where to begin."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from sqsdelay.core.clock import Clock
from sqsdelay.core.readable import one_line
from sqsdelay.stores.ids import NO_START
from sqsdelay.stores.postgres.pool import CLIENT_SETTINGS, Connection, begin_session, driver_text

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
_RECONNECT_SECONDS: Final = 1.0
_PROBE_SECONDS: Final = 1.0
POLL_SECONDS: Final = 1.0
"""How often a store is looked into where nothing is notified."""


class Listener:
    """While entered, calls ``wake`` for each notification, and once whenever it has connected: what is
    notified before is lost. Behind a pooler in transaction mode, where nothing is notified, it does so every
    second."""

    def __init__(self, conninfo: str, channel: str, wake: Callable[[], None]) -> None:
        self._conninfo = conninfo
        self._channel = channel
        self._wake = wake
        self._over = threading.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-listener", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        # Usually milliseconds; without the database there is nothing to miss yet.
        self._listening.wait(_RECONNECT_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._listen_until_over()
            except psycopg.Error as error:
                why = one_line(driver_text(error))
                logger.warning("not listening for stored messages, trying again: %s", why)
                self._over.wait(_RECONNECT_SECONDS)

    def _listen_until_over(self) -> None:
        with self._connected() as connection:
            notified = begin_session(connection) or self._is_notified(connection)
            if notified:
                _listen(connection, self._channel)
            self._wake()
            self._listening.set()
            while notified and not self._over.is_set():
                for _ in connection.notifies(timeout=_LOOK_SECONDS, stop_after=1):
                    self._wake()
        if not notified:
            logger.warning(
                "a connection pooler in transaction mode does not forward notifications: polling for "
                "stored messages every %g s instead; connect to PostgreSQL directly, or use session pooling",
                POLL_SECONDS,
            )
            while not self._over.wait(POLL_SECONDS):
                self._wake()

    def _connected(self) -> Connection:
        return psycopg.connect(self._conninfo, **CLIENT_SETTINGS)

    def _is_notified(self, connection: Connection) -> bool:
        """Whether what another session notifies gets here; asked on a channel nobody else uses."""
        channel = f"{self._channel}_{uuid.uuid4().hex[:8]}"
        _listen(connection, channel)
        with self._connected() as other:
            other.execute("SELECT pg_notify(%s, '')", [channel], prepare=False)
        heard = list(connection.notifies(timeout=_PROBE_SECONDS, stop_after=1))
        connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
        return bool(heard)


def _listen(connection: Connection, channel: str) -> None:
    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))


@dataclass(slots=True)
class Head:
    """Where a look begins in the indexes of new and of held rows: none that can be claimed is before."""

    new_ms: int = NO_START
    held_ms: int = NO_START


class Heads:
    """Heads by the destinations that are passed over, each moved by looks to what they found first.

    What lies before it was removed: while a long snapshot elsewhere still sees an hour of that, to walk
    through it took 40 ms a claim. They are kept while a store is watched, since what is stored or moved to a
    time before is notified; and begun anew every ``seconds``, for what another dispatcher had locked and let
    go.
    """

    def __init__(self, clock: Clock, *, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._watches = 0
        self._anew_at = 0.0
        self._heads: dict[frozenset[str], Head] = {}

    def forget(self) -> None:
        """Look from the start next time; what a look in hand finds is of no use to others."""
        self._heads = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While a listener forgets them at each notification."""
        self._watches += 1
        try:
            yield
        finally:
            self._watches -= 1

    def look(self, passed_over: Collection[str]) -> Head:
        """The head of a look that begins now."""
        now = self._clock.monotonic()
        if not self._watches or now >= self._anew_at:
            self.forget()
            self._anew_at = now + self._seconds
        return self._heads.setdefault(frozenset(passed_over), Head())
