"""The PostgreSQL store: row locks with SKIP LOCKED, woken by NOTIFY, for many dispatchers at once."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int4, Int8

from sqsdelay.core.delay import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage, from_rows
from sqsdelay.dispatching.dispatcher import MAX_POLL_SECONDS
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode
from sqsdelay.stores.postgres import pool
from sqsdelay.stores.postgres.pool import Connection, PostgresTable
from sqsdelay.stores.shared import DEFAULT_LEASE_SECONDS, NO_START, new_once
from sqsdelay.stores.sql import CLAIM_BYTES, COLUMNS, SqlClaim, SqlInbox, SqlStore, row_of

logger = logging.getLogger(__name__)

Rows = list[tuple[Any, ...]]

_LOOK_SECONDS: Final = 0.5
_RECONNECT_SECONDS: Final = 1.0
_PROBE_SECONDS: Final = 1.0
POLL_SECONDS: Final = 1.0
"""How often a store is looked into where nothing is notified."""

_DATABASE_CLOCK: Final = "(SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
"""Dispatchers' clocks may differ: what one holds, another must not take for free."""

_FITTING: Final = (
    b"""
SELECT * FROM (
    SELECT *, sum(octet_length(body)) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (%%b) AS locked
) AS measured WHERE coalesce(before, 0) < %d
"""
    % CLAIM_BYTES
)

_UNCOMMITTED_MS: Final = 10_000
"""A hold may be committed so long after the time that it counts from."""

_SOON_MS: Final = MAX_POLL_SECONDS * 1000
"""The longest a dispatcher sleeps: what is due later it finds by polling in time."""

_FAR_MS: Final = 24 * _SOON_MS
"""What this machine's clock, which may be wrong, shows as so far ahead is due later than that."""

_TAKEN_MS: Final = round(1000 * DEFAULT_LEASE_SECONDS)
"""How long what was taken is held at least."""


@dataclass(slots=True)
class Head:
    """Where a look begins in the indexes of new and of held rows: none that can be claimed is before."""

    new_ms: int = NO_START
    held_ms: int = NO_START


class Heads:
    """Heads by the destinations that are passed over, each moved by looks to what they found first. What lies
    before it was removed: while a long snapshot elsewhere still sees an hour of that, to walk through it took
    40 ms a claim. They are kept while a store is watched, since what is stored or moved to a time before is
    notified; and begun anew every ``seconds``, for what another dispatcher had locked and let go."""

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


class PostgresStore(PostgresTable, SqlStore, DelayedMessageStore):
    """Delayed messages in a PostgreSQL table.

    Args:
        conninfo: a libpq connection string or ``postgresql://`` URL.
        endpoint: whose messages these are.
        table: ``<endpoint>.delayed`` when left out; any name of up to 63 bytes.
        schema: the table's schema; it must exist.
        connections: the most connections the store opens, besides one per `watch`.
        clock: for tests; left out, holds and amendments are timed by the database's own clock.

    Raises:
        ConfigurationError: a name PostgreSQL would cut off or cannot hold; a bad ``conninfo``.
    """

    poll_seconds: Final = 10.0
    modes: Final = frozenset(TransactionMode)
    _INDEX = "due"

    def __init__(
        self,
        conninfo: str,
        *,
        endpoint: str,
        table: str | None = None,
        schema: str = pool.DEFAULT_SCHEMA,
        connections: int = pool.DEFAULT_CONNECTIONS,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock
        self._now = _DATABASE_CLOCK if clock is None else "%(now_ms)s::bigint"
        PostgresTable.__init__(
            self, conninfo, endpoint=endpoint, table=table, schema=schema, connections=connections
        )
        self._local = clock or SystemClock()
        self._heads = Heads(self._local, seconds=self.poll_seconds)
        self._sql["claim_held"] = self._query(
            "claim_except",
            at="held_until_ms",
            kept=f"held_until_ms > 0 AND held_until_ms BETWEEN %(from_ms)s AND {self._now}",
            until=self._now,
        )

    def _query(self, name: str, **more: str) -> bytes:
        query = super()._query(name, **more)
        return _FITTING % query if name.startswith("claim") else query

    def _pieces(self) -> dict[str, str]:
        return {
            "due": "(due_ms <= %(due_by_ms)s OR due_ms > 253402300799000)",
            "ids": "= ANY(%(ids)s)",
            "amended": "value ->> 0, (value ->> 1)::bigint, (value ->> 2)::bigint, (value ->> 3)::bigint "
            "FROM json_array_elements(%(rows)s::json) AS given(value)",
            "now": self._now,
            "soon_ms": str(_SOON_MS),
            "taken_ms": str(_TAKEN_MS),
            "at": "due_ms",
            "kept": "held_until_ms = 0 AND due_ms >= %(from_ms)s",
            "until": "%(due_by_ms)s",
        }

    def initialize(self, mode: TransactionMode) -> None:  # noqa: ARG002
        # Nothing depends on the mode: a claim is the open transaction either way.
        with suppress(pool.Locked):
            self._read("exists")

    def _store(self, messages: Sequence[StoredMessage]) -> list[bool]:
        with self._statement() as connection:
            self._check(connection)
            return self._insert(connection, messages)

    def _insert(self, connection: Connection, messages: Sequence[StoredMessage]) -> list[bool]:
        rows = [row_of(message) for message in messages]
        given = self._times()
        if len(rows) == 1:
            given.update(zip(COLUMNS, rows[0], strict=True))
            query = "store_far" if rows[0][2] > self._local.now_ms() + _FAR_MS else "store"
            return [connection.execute(self._sql[query], given).rowcount == 1]
        # In one order always: callers that store the same ids at once do not deadlock.
        rows.sort(key=itemgetter(0))
        given.update(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
        # Of one width each, whatever their values: a statement's types are part of it.
        given["due_ms"] = [Int8(row[2]) for row in rows]
        given["failures"] = [Int4(row[5]) for row in rows]
        # The caller's connection may make rows of another shape.
        cursor = connection.cursor(row_factory=tuple_row)
        stored = cursor.execute(self._sql["store_many"], given).fetchall()
        return new_once(messages, (row[0] for row in stored))

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[Claim]:
        arguments = self._times() | {
            "due_by_ms": due_by_ms,
            "except_destinations": list(except_destinations),
        }
        head = self._heads.look(except_destinations)
        with self._transaction() as connection:

            def locked(query: str, from_ms: int, most: int) -> Rows:
                arguments.update(from_ms=from_ms, limit=most)
                return self._locked_rows(connection, query, arguments) if most else []

            found = locked("claim_except" if except_destinations else "claim", head.new_ms, limit)
            head.new_ms = found[0][8 if except_destinations else 2] if found else due_by_ms
            rows = [row for row in found if row[0] is not None]
            if len(rows) < limit:
                # Behind what is new: what failed before.
                held = locked("claim_held", head.held_ms, limit - len(rows))
                rows += [row for row in held if row[0] is not None]
                if head.held_ms == NO_START:
                    # Nothing is known yet of what is held.
                    rows += locked("claim_never_due", 0, limit - len(rows))
                    now = self._locked_rows(connection, "now", arguments)
                    head.held_ms = now[0][0] - _UNCOMMITTED_MS if now else head.held_ms
                head.held_ms = min((row[8] for row in held), default=head.held_ms)
                rows.sort(key=itemgetter(2, 0))
            yield PostgresClaim(self, connection, rows)

    @contextmanager
    def claim_ids(self, message_ids: Sequence[str]) -> Iterator[Claim]:
        with self._transaction() as connection:
            rows = self._locked_rows(connection, "claim_ids", {"ids": list(message_ids)})
            claim = PostgresClaim(self, connection, rows)
            claim.busy = self._busy(message_ids, claim.messages)
            yield claim

    def _locked_rows(self, connection: Connection, query: str, given: dict[str, object]) -> Rows:
        """The rows of a claim; none while somebody else's transaction has locked the table."""
        if connection.info.transaction_status is TransactionStatus.INERROR:
            return []
        try:
            return connection.execute(self._sql[query], given, binary=True).fetchall()
        except psycopg.errors.LockNotAvailable:
            self._heads.forget()
            return []

    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        head = self._heads.look(except_destinations)
        starts = {"from_ms": head.new_ms, "held_from_ms": head.held_ms}
        with suppress(pool.Locked):
            due_ms = self._next_due(except_destinations, **starts)
            head.new_ms = head.new_ms if due_ms is None else due_ms
            return due_ms
        return None

    def _times(self) -> dict[str, object]:
        return {} if self._clock is None else {"now_ms": self._clock.now_ms()}

    def _names(self, names: Collection[str]) -> list[str]:
        return list(names)

    def watch(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        return listening(self._conninfo, self._prefix, self._heads, wake)

    def now_ms(self) -> int:
        return int(self._read("now")[0][0])


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
        with psycopg.connect(conninfo, **pool.CLIENT_SETTINGS) as connection:
            notified = pool.begin_session(connection) or _is_notified(connection, conninfo, channel)
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
                why = one_line(pool.driver_text(error))
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
    with psycopg.connect(conninfo, **pool.CLIENT_SETTINGS) as other:
        other.execute("SELECT pg_notify(%s, '')", [channel], prepare=False)
    heard = list(connection.notifies(timeout=_PROBE_SECONDS, stop_after=1))
    connection.execute("UNLISTEN *")
    return bool(heard)


class PostgresClaim(SqlClaim):
    """The rows of a query whose name begins with ``claim``, which the connection's open transaction has
    locked."""

    def __init__(self, store: PostgresStore, connection: Connection, rows: Rows) -> None:
        super().__init__(from_rows(rows), (row[0] for row in rows if row[6]), connection)
        self._store = store
        # A locked row stays where it is, as long as this transaction does not write it.
        self._places = {row[0]: row[7] for row in rows}

    def attempt(self) -> AbstractContextManager[None]:
        self._places.clear()
        return cast(AbstractContextManager[None], self.transaction.transaction())

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        places = [self._places.pop(message_id, None) for message_id in message_ids]
        if places and None not in places:
            given = '{"' + '","'.join(places) + '"}'
            removed = self._execute("remove_places", places=given).rowcount
            if removed == len(places):
                return [True] * removed
        return super().remove(message_ids)

    def _run(self, query: str, message_ids: Sequence[str], **arguments: object) -> list[Any]:
        self._places.clear()
        return self._execute(query, ids=list(message_ids), **arguments).fetchall()

    def _execute(self, query: str, **arguments: object) -> psycopg.Cursor[Any]:
        given = self._store._times() | arguments
        with self._store._translated():
            cursor: psycopg.Cursor[Any] = self.transaction.execute(self._store._sql[query], given)
            return cursor


class PostgresInbox(PostgresTable, SqlInbox):
    """Remembers processed messages in a PostgreSQL table; arguments as of `PostgresStore`.

    Args:
        table: ``<endpoint>.received`` when left out; any name of up to 63 bytes.
    """

    _INDEX = "until"
