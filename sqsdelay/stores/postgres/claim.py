"""What a dispatcher holds of a PostgreSQL table: rows locked by an open transaction, and where they lie."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, cast

import psycopg
from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format

from sqsdelay.core.clock import Clock
from sqsdelay.core.stored_message import from_rows
from sqsdelay.stores.ids import NO_START, found_among
from sqsdelay.stores.postgres.pool import Connection, PostgresTable

_TID: Final = types["tid"]
_HEAD: Final = struct.Struct("!5I")
_LENGTH: Final = struct.pack("!I", 6)


class Head:
    """Where in the index of due times claims and polls begin: at the first that the last one found.

    What lies before it was removed. While a long snapshot elsewhere still sees that, each look would walk
    through it: an hour's messages took 40 ms a claim. Only while a store is watched, since what is stored or
    moved to a time before it is notified; and looked for from the start every ``seconds`` all the same,
    because of what another dispatcher had locked and let go.

    Args:
        clock: its monotonic time is used.
    """

    def __init__(self, clock: Clock, *, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._watches = 0
        self._looks = 0
        self._from_start_at = 0.0
        self.from_ms = NO_START

    def forget(self) -> None:
        """Look from the start next time."""
        self.from_ms = NO_START
        self._looks += 1

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While a listener forgets it at each notification."""
        self._watches += 1
        try:
            yield
        finally:
            self._watches -= 1
            self.forget()

    def look(self) -> int:
        """A look begins, at ``from_ms``; what is returned belongs to `found`."""
        now = self._clock.monotonic()
        if now >= self._from_start_at:
            self.forget()
            self._from_start_at = now + self._seconds
        return self._looks

    def found(self, look: int, due_ms: int) -> None:
        """The first that a look found; of no use if something was notified meanwhile."""
        if self._watches and look == self._looks:
            self.from_ms = due_ms


class RowPlaces(list[bytes | None]):
    """Where rows lie (ctid), as PostgreSQL gives it in binary; with None they cannot be sent."""


class RowPlacesDumper(Dumper):
    """`RowPlaces` as an array in binary."""

    format = Format.BINARY
    oid = _TID.array_oid

    def dump(self, obj: RowPlaces) -> bytes:
        head = _HEAD.pack(1, 0, _TID.oid, len(obj), 1)
        return _LENGTH.join([head, *obj])


class PostgresClaim:
    """The rows of a claim.

    Args:
        table: whose they are.
        connection: whose open transaction has locked them.
        rows: what the query ``claim`` returned; ``again``: the ids of those that were held before.
        now_ms: the time of holds; None is the database's own.
    """

    def __init__(
        self,
        table: PostgresTable,
        connection: Connection,
        rows: Sequence[tuple[Any, ...]],
        again: frozenset[str] = frozenset(),
        *,
        now_ms: Callable[[], int | None],
    ) -> None:
        connection.adapters.register_dumper(RowPlaces, RowPlacesDumper)
        self.messages = from_rows(rows)
        self.again = again
        self.busy: frozenset[str] = frozenset()
        self.transaction: Any = connection
        self._table = table
        self._now_ms = now_ms
        self._connection = connection
        # A locked row stays where it is, as long as this transaction does not write it.
        self._places = {row[0]: row[-1] for row in rows}

    def attempt(self) -> AbstractContextManager[None]:
        self._places.clear()
        return cast(AbstractContextManager[None], self._connection.transaction())

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        places = RowPlaces(self._places.pop(message_id, None) for message_id in message_ids)
        if places and None not in places:
            removed = self._execute("remove_places", places=places).rowcount
            if removed == len(places):
                return [True] * removed
        return self._change("remove", message_ids)

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        return self._hold(message_ids, retry_after_seconds, failed=1)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        return self._hold(message_ids, seconds, failed=0)

    def _hold(self, message_ids: Sequence[str], seconds: float, *, failed: int) -> list[bool]:
        self._places.clear()
        arguments = {"hold_ms": round(seconds * 1000), "now_ms": self._now_ms()}
        return self._change("hold", message_ids, failed=failed, **arguments)

    def _change(self, query: str, message_ids: Sequence[str], **arguments: object) -> list[bool]:
        rows = self._execute(query, ids=list(message_ids), **arguments).fetchall()
        return found_among(message_ids, (row[0] for row in rows))

    def _execute(self, query: str, **arguments: object) -> psycopg.Cursor[Any]:
        with self._table._translated():
            return self._connection.execute(self._table._sql[query], arguments)
