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

from sqsdelay.core.delay import Clock
from sqsdelay.core.readable import one_line
from sqsdelay.stores.postgres.pool import CLIENT_SETTINGS, Connection, begin_session, driver_text
from sqsdelay.stores.shared import NO_START

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
_RECONNECT_SECONDS: Final = 1.0
_PROBE_SECONDS: Final = 1.0
POLL_SECONDS: Final = 1.0
"""How often a store is looked into where nothing is notified."""


@contextmanager
def listening(
    conninfo: str, channel: str, heads: Heads, wake: Callable[[], None]
) -> Iterator[None]:
    """While it lasts, forgets the heads and calls ``wake`` for each notification, and once whenever it has
    connected: what is notified before is lost. Behind a pooler in transaction mode, where nothing is
    notified, it does so every second."""
    over, begun = threading.Event(), threading.Event()

    def look_again() -> None:
        heads.forget()
        wake()

    def listen() -> None:
        with psycopg.connect(conninfo, **CLIENT_SETTINGS) as connection:
            notified = begin_session(connection) or _is_notified(connection, conninfo, channel)
            if notified:
                connection.execute(f"LISTEN {channel}".encode())
            look_again()
            begun.set()
            while notified and not over.is_set():
                for _ in connection.notifies(timeout=_LOOK_SECONDS, stop_after=1):
                    look_again()
        if not notified:
            logger.warning(
                "a connection pooler in transaction mode does not forward notifications: polling for "
                "stored messages every %g s instead; connect to PostgreSQL directly, or use session pooling",
                POLL_SECONDS,
            )
            while not over.wait(POLL_SECONDS):
                look_again()

    def run() -> None:
        while not over.is_set():
            try:
                listen()
            except psycopg.Error as error:
                why = one_line(driver_text(error))
                logger.warning("not listening for stored messages, trying again: %s", why)
                over.wait(_RECONNECT_SECONDS)

    thread = threading.Thread(target=run, name="store-listener", daemon=True)
    thread.start()
    # Usually milliseconds; without the database there is nothing to miss yet.
    begun.wait(_RECONNECT_SECONDS)
    heads.listeners += 1
    try:
        yield
    finally:
        heads.listeners -= 1
        over.set()
        thread.join()


def _is_notified(connection: Connection, conninfo: str, channel: str) -> bool:
    """Whether what another session notifies gets here; asked on a channel nobody else uses."""
    channel = f"{channel}_{uuid.uuid4().hex[:8]}"
    connection.execute(f"LISTEN {channel}".encode())
    with psycopg.connect(conninfo, **CLIENT_SETTINGS) as other:
        other.execute("SELECT pg_notify(%s, '')", [channel], prepare=False)
    heard = list(connection.notifies(timeout=_PROBE_SECONDS, stop_after=1))
    connection.execute("UNLISTEN *")
    return bool(heard)


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
        self._clock, self._seconds = clock, seconds
        self.listeners = 0
        """How many forget them at each notification."""
        self._anew_at = 0.0
        self._heads: dict[frozenset[str], Head] = {}

    def forget(self) -> None:
        """Look from the start next time; what a look in hand finds is of no use to others."""
        self._heads = {}

    def look(self, passed_over: Collection[str]) -> Head:
        """The head of a look that begins now."""
        now = self._clock.monotonic()
        if not self.listeners or now >= self._anew_at:
            self.forget()
            self._anew_at = now + self._seconds
        return self._heads.setdefault(frozenset(passed_over), Head())
