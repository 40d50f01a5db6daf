"""The PostgreSQL store: row locks with SKIP LOCKED, woken by NOTIFY, for many dispatchers at once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from operator import itemgetter
from typing import Any, Final, cast

import psycopg
from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int4, Int8

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.stored_message import (
    AMENDMENT_LIFETIME_MS,
    Amendment,
    StoredMessage,
    from_rows,
    latest_amendments,
)
from sqsdelay.dispatching.dispatcher import MAX_POLL_SECONDS
from sqsdelay.errors import ConfigurationError
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode
from sqsdelay.stores.dispatchers import DEFAULT_LEASE_SECONDS
from sqsdelay.stores.ids import new_once
from sqsdelay.stores.postgres.pool import (
    DEFAULT_CONNECTIONS,
    DEFAULT_SCHEMA,
    Connection,
    Locked,
    PostgresTable,
)
from sqsdelay.stores.postgres.watching import Heads, Listener
from sqsdelay.stores.sql import SqlInbox, SqlStore, found_among

DATABASE_CLOCK: Final = (
    "coalesce({}::bigint, (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint))"
)
"""Dispatchers' clocks may differ: what one holds, another must not take for free."""

_NEW: Final = {
    "at": sql.SQL("due_ms"),
    "kept": sql.SQL("held_until_ms = 0 AND due_ms >= %(from_ms)s"),
    "until": sql.SQL("%(due_by_ms)s"),
}
_NOW: Final = sql.SQL(DATABASE_CLOCK.format("%(now_ms)s"))
_HELD: Final = {
    "at": sql.SQL("held_until_ms"),
    "kept": sql.SQL("held_until_ms > 0 AND held_until_ms BETWEEN %(from_ms)s AND {}").format(_NOW),
    "until": _NOW,
}
_UNCOMMITTED_MS: Final = 10_000
"""A hold may be committed so long after the time that it counts from."""
_TID: Final = types["tid"]
_PLACES: Final = struct.Struct("!5I")
_PLACE_BYTES: Final = struct.pack("!I", 6)

_SOON_MS: Final = MAX_POLL_SECONDS * 1000
"""The longest a dispatcher sleeps: what is due later it finds by polling in time."""

_TAKEN_MS: Final = round(1000 * DEFAULT_LEASE_SECONDS)
"""How long what was taken is held at least."""


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
        schema: str = DEFAULT_SCHEMA,
        connections: int = DEFAULT_CONNECTIONS,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock
        PostgresTable.__init__(
            self, conninfo, endpoint=endpoint, table=table, schema=schema, connections=connections
        )
        self._channel = self._prefix
        self._heads = Heads(clock or SystemClock(), seconds=self.poll_seconds)
        self._sql["claim_held"] = self._query("claim_except", **_HELD)

    def _identifiers(self) -> dict[str, sql.Composable]:
        quoted = self._identifier(self._table).as_string(None)
        return super()._identifiers() | {
            "table_name": sql.Literal(quoted),
            "amendments": self._identifier(f"{self._prefix}_amendments"),
            "columns": sql.SQL("message_id, destination, due_ms, body, headers, failures"),
            "due": sql.SQL("(due_ms <= %(due_by_ms)s OR due_ms > 253402300799000)"),
            "now": _NOW,
            **_NEW,
            "now_or": sql.SQL(DATABASE_CLOCK.format("%s")),
        }

    def initialize(self, mode: TransactionMode) -> None:
        if mode not in self.modes:
            raise ConfigurationError(f"a PostgreSQL store cannot give {mode!r}")
        # Nothing depends on the mode: a claim is the open transaction either way.
        with suppress(Locked):
            self._read("exists")

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        if not messages:
            return []
        if transaction is not None:
            self._check_given(transaction)
        # Not `connection`: each layer less is felt in a call this short.
        own = None
        connection: Connection
        if transaction is None:
            connection = own = self._borrowed()
        else:
            connection = transaction
        try:
            self._check(connection)
            if transaction is not None:
                return self._insert(connection, messages)
            with self._committed(connection):
                return self._insert(connection, messages)
        except psycopg.Error as error:
            raise self._error(error) from None
        finally:
            if own is not None:
                self._pool.putconn(own)

    def _insert(self, connection: Connection, messages: Sequence[StoredMessage]) -> list[bool]:
        rows = [
            (m.message_id, m.destination, m.due_ms, m.body, m.headers(), m.failures)
            for m in messages
        ]
        if len(rows) == 1:
            one = (*rows[0], *self._wakes)
            return [connection.execute(self._sql["store"], one).rowcount == 1]
        # In one order always: callers that store the same ids at once do not deadlock.
        rows.sort(key=itemgetter(0))
        ids, destinations, dues, bodies, headers, failures = zip(*rows, strict=True)
        # Of one width each, whatever their values: a statement's types are part of it.
        numbers = [[Int8(due) for due in dues], [Int4(count) for count in failures]]
        texts = [list(ids), list(destinations), list(bodies), list(headers)]
        many = (*texts[:2], numbers[0], *texts[2:], numbers[1], *self._wakes)
        # The caller's connection may make rows of another shape.
        cursor = connection.cursor(row_factory=tuple_row)
        stored = cursor.execute(self._sql["store_many"], many).fetchall()
        return new_once(messages, (row[0] for row in stored))

    @property
    def _wakes(self) -> tuple[object, ...]:
        """What `store`'s queries are given to tell whom to wake."""
        now_ms = self._now_ms()
        return (now_ms, _SOON_MS, now_ms, self._channel)

    def _now_ms(self) -> int | None:
        """None leaves it to the database."""
        return None if self._clock is None else self._clock.now_ms()

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[Claim]:
        arguments: dict[str, object] = {
            "due_by_ms": due_by_ms,
            "now_ms": self._now_ms(),
            "except_destinations": list(except_destinations),
        }
        head = self._heads.look(except_destinations)
        with self._claiming() as connection:

            def locked(query: str, from_ms: int, most: int) -> list[tuple[Any, ...]]:
                arguments.update(from_ms=from_ms, limit=most)
                return self._locked_rows(connection, query, arguments) if most else []

            found = locked("claim_except" if except_destinations else "claim", head.new_ms, limit)
            head.new_ms = found[0][8 if except_destinations else 2] if found else due_by_ms
            rows = [row for row in found if row[0] is not None]
            if len(rows) < limit:
                # Behind what is new: what failed before.
                held = locked("claim_held", head.held_ms, limit - len(rows))
                rows += [row for row in held if row[0] is not None]
                if head.at_start:
                    rows += locked("claim_never_due", 0, limit - len(rows))
                    now = self._locked_rows(connection, "now", arguments)
                    head.held_ms = now[0][0] - _UNCOMMITTED_MS if now else head.held_ms
                head.held_ms = min((row[8] for row in held), default=head.held_ms)
                rows.sort(key=itemgetter(2, 0))
            yield PostgresClaim(self, connection, rows, now_ms=self._now_ms)

    @contextmanager
    def claim_ids(self, message_ids: Sequence[str]) -> Iterator[Claim]:
        with self._claiming() as connection:
            rows = self._locked_rows(connection, "claim_ids", {"ids": list(message_ids)})
            claim = PostgresClaim(self, connection, rows, now_ms=self._now_ms)
            claim.busy = self._busy(message_ids, claim.messages)
            yield claim

    def _locked_rows(
        self, connection: Connection, query: str, arguments: dict[str, object]
    ) -> list[tuple[Any, ...]]:
        """The rows of a claim; none while somebody else's transaction has locked the table."""
        if connection.info.transaction_status is TransactionStatus.INERROR:
            return []
        try:
            return connection.execute(self._sql[query], arguments, binary=True).fetchall()
        except psycopg.errors.LockNotAvailable:
            self._heads.forget()
            return []

    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        head = self._heads.look(except_destinations)
        try:
            due_ms = self._next_due(
                except_destinations, from_ms=head.new_ms, held_from_ms=head.held_ms
            )
        except Locked:
            return None
        if due_ms is not None:
            head.new_ms = due_ms
        return due_ms

    @contextmanager
    def _claiming(self) -> Iterator[Connection]:
        """A transaction, whose row locks are the claim."""
        with self._connection() as connection, connection.transaction():
            self._begun(connection)
            self._check(connection)
            yield connection

    def amend(self, amendments: Sequence[Amendment]) -> None:
        # In one order always: callers that amend the same messages at once do not deadlock.
        last = sorted(
            latest_amendments(amendments).values(), key=lambda amendment: amendment.message_id
        )
        arguments = {
            "ids": [amendment.message_id for amendment in last],
            "dues": [amendment.due_ms for amendment in last],
            "untils": [amendment.until_ms for amendment in last],
            "cancelled": [amendment.cancelled_ms for amendment in last],
            "lifetime_ms": AMENDMENT_LIFETIME_MS,
        }
        with self._connection() as connection, connection.transaction():
            self._check(connection)
            connection.execute(self._sql["forget_amendments"], {"now_ms": self._now_ms()})
            connection.execute(self._sql["amend"], arguments)

    def _times(self) -> dict[str, object]:
        return {"now_ms": self._now_ms(), "channel": self._channel, "hold_ms": _TAKEN_MS}

    def _names(self, names: Collection[str]) -> list[str]:
        return list(names)

    @contextmanager
    def watch(self, wake: Callable[[], None]) -> Iterator[None]:
        def look_again() -> None:
            self._heads.forget()
            wake()

        with Listener(self._conninfo, self._channel, look_again), self._heads.watched():
            yield

    def now_ms(self) -> int:
        """The server's now, epoch milliseconds.

        Raises:
            StoreUnavailable
        """
        return int(self._read("now", now_ms=None)[0][0])


class RowPlaces(list[bytes | None]):
    """Where rows lie (ctid), as PostgreSQL gives it in binary; with None they cannot be sent."""


class RowPlacesDumper(Dumper):
    """`RowPlaces` as an array in binary."""

    format = Format.BINARY
    oid = _TID.array_oid

    def dump(self, obj: RowPlaces) -> bytes:
        head = _PLACES.pack(1, 0, _TID.oid, len(obj), 1)
        return _PLACE_BYTES.join([head, *obj])


class PostgresClaim:
    """The rows of a claim.

    Args:
        table: whose they are.
        connection: whose open transaction has locked them.
        rows: what a query whose name begins with ``claim`` returned.
        now_ms: the time of holds; None is the database's own.
    """

    def __init__(
        self,
        table: PostgresTable,
        connection: Connection,
        rows: Sequence[tuple[Any, ...]],
        *,
        now_ms: Callable[[], int | None],
    ) -> None:
        connection.adapters.register_dumper(RowPlaces, RowPlacesDumper)
        self.messages = from_rows(rows)
        self.again = frozenset(row[0] for row in rows if row[6])
        self.busy: frozenset[str] = frozenset()
        self.transaction: Any = connection
        self._table = table
        self._now_ms = now_ms
        self._connection = connection
        # A locked row stays where it is, as long as this transaction does not write it.
        self._places = {row[0]: row[7] for row in rows}

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


class PostgresInbox(PostgresTable, SqlInbox):
    """Remembers processed messages in a PostgreSQL table.

    Args:
        conninfo: a libpq connection string or ``postgresql://`` URL.
        endpoint: whose messages these are.
        table: ``<endpoint>.received`` when left out; any name of up to 63 bytes.
        schema: the table's schema; it must exist.
        connections: the most connections the inbox opens.

    Raises:
        ConfigurationError: a name PostgreSQL would cut off or cannot hold; a bad ``conninfo``.
    """

    _INDEX = "until"
