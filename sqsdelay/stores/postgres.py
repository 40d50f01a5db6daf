"""The PostgreSQL store: row locks with SKIP LOCKED, woken by NOTIFY, for many dispatchers at once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from typing import Any, Final, cast

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from sqsdelay.clock import Clock, SystemClock
from sqsdelay.dispatch_settings import MAX_POLL_SECONDS
from sqsdelay.errors import ConfigurationError
from sqsdelay.marks import Mark
from sqsdelay.store import Claim, TransactionMode
from sqsdelay.stored import StoredMessage, check_stored_due, from_store
from sqsdelay.stores.answers import answered, new_once
from sqsdelay.stores.postgres_listener import Listener
from sqsdelay.stores.postgres_pool import (
    DEFAULT_CONNECTIONS,
    DEFAULT_SCHEMA,
    Connection,
    PostgresPool,
    check_name,
)
from sqsdelay.stores.queries import read_queries

_SOON_MS: Final = MAX_POLL_SECONDS * 1000
"""The longest a dispatcher sleeps: what is due later it finds by polling in time."""


class PostgresStore:
    """Delayed messages in a PostgreSQL table.

    Args:
        conninfo: a libpq connection string or ``postgresql://`` URL.
        endpoint: whose messages these are.
        table: ``<endpoint>.delayed`` when left out; any name of up to 63 bytes.
        schema: the table's schema; it must exist.
        connections: the most connections the store opens, besides one per `watch`.
        clock: times the holds after failures.

    Raises:
        ConfigurationError: a name PostgreSQL would cut off or cannot hold; a bad ``conninfo``.
    """

    poll_seconds: Final = 10.0
    modes: Final = frozenset(TransactionMode)

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
        self._clock = clock or SystemClock()
        self._conninfo = conninfo
        self._table = table or f"{endpoint}.delayed"
        for name in (schema, self._table):
            check_name(name)
        digest = hashlib.sha256(f"{schema}\0{self._table}".encode()).hexdigest()[:32]
        self._channel = f"sqsdelay_{digest}"
        # psycopg reads %s in a query's text, so a percent sign of a name is written twice.
        names = {
            "table": sql.Identifier(schema.replace("%", "%%"), self._table.replace("%", "%%")),
            # An index lives in its table's schema and its name may not be cut off either.
            "index": sql.Identifier(f"sqsdelay_{digest}_due"),
            "marks": sql.Identifier(schema.replace("%", "%%"), f"sqsdelay_{digest}_marks"),
        }
        self._sql = {
            key: sql.SQL(query).format(**names).as_bytes()
            for key, query in read_queries("postgres.sql").items()
        }
        self._pool = PostgresPool(
            conninfo,
            table=self._table,
            connections=connections,
            remedy="run sqsdelay store create (set_up())",
        )

    def set_up(self) -> None:
        with self._pool.connection() as connection, connection.transaction():
            connection.execute(self._sql["lock_set_up"], {"channel": self._channel})
            connection.execute(self._sql["set_up"], {})
            connection.execute(self._sql["set_up_index"], {})
            connection.execute(self._sql["set_up_marks"], {})

    def initialize(self, mode: TransactionMode) -> None:
        if mode not in self.modes:
            raise ConfigurationError(f"a PostgreSQL store cannot give {mode!r}")
        # Nothing depends on the mode: a claim is the open transaction either way.
        self._rows("exists")

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        if not messages:
            return []
        if transaction is not None and not isinstance(transaction, psycopg.Connection):
            raise ConfigurationError(
                f"transaction is a {type(transaction).__name__}; give the psycopg.Connection"
            )
        # Not `connection`: each layer less is felt in a call this short.
        connection = transaction or self._pool.taken()
        try:
            return self._insert(connection, messages)
        except psycopg.Error as error:
            raise self._pool.error(error) from error
        finally:
            if transaction is None:
                self._pool.give_back(connection)

    def _insert(self, connection: Connection, messages: Sequence[StoredMessage]) -> list[bool]:
        now_ms = self._clock.now_ms()
        rows = [
            (m.message_id, m.destination, m.due_ms, m.body, m.headers(), m.failures)
            for m in messages
        ]
        if len(rows) == 1:
            one = (*rows[0], now_ms, now_ms + _SOON_MS, self._channel)
            return [connection.execute(self._sql["store"], one).rowcount == 1]
        # In one order always: callers that store the same ids at once do not deadlock.
        rows.sort(key=itemgetter(0))
        columns = [list(column) for column in zip(*rows, strict=True)]
        many = (*columns, self._channel, now_ms, now_ms + _SOON_MS)
        # The caller's connection may make rows of another shape.
        cursor = connection.cursor(row_factory=tuple_row)
        stored = cursor.execute(self._sql["store_many"], many).fetchall()
        return new_once(messages, (row[0] for row in stored))

    @contextmanager
    def claim(self, limit: int, *, due_by_ms: int) -> Iterator[Claim]:
        with self._pool.connection() as connection:
            transaction = connection.transaction()
            transaction.__enter__()
            try:
                yield self._take(connection, limit, due_by_ms)
            except BaseException:
                transaction.__exit__(*sys.exc_info())
                raise
            transaction.__exit__(None, None, None)

    def _take(self, connection: Connection, limit: int, due_by_ms: int) -> _PostgresClaim:
        arguments = {"due_by_ms": due_by_ms, "limit": limit, "now_ms": self._clock.now_ms()}
        rows = connection.execute(self._sql["claim"], arguments, binary=True).fetchall()
        return _PostgresClaim(self, connection, [from_store(*row) for row in rows])

    def next_due_ms(self) -> int | None:
        rows = self._rows("next_due", now_ms=self._clock.now_ms())
        return int(rows[0][0]) if rows else None

    def pending_count(self) -> int:
        return int(self._rows("pending_count")[0][0])

    def pending(self, limit: int, *, after: tuple[int, str] | None = None) -> list[StoredMessage]:
        after_ms, after_id = after or (-1, "")
        rows = self._rows("pending", after_ms=after_ms, after_id=after_id, limit=limit)
        return [from_store(*row) for row in rows]

    def find(self, message_id: str) -> StoredMessage | None:
        rows = self._rows("find", id=message_id)
        return from_store(*rows[0]) if rows else None

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        gone = self._rows("cancel", ids=list(message_ids))
        return answered(message_ids, (row[0] for row in gone))

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        check_stored_due(due_ms)
        arguments = {"message_id": message_id, "due_ms": due_ms, "channel": self._channel}
        return len(self._rows("reschedule", **arguments)) == 1

    def mark(self, marks: Sequence[Mark], *, until_ms: int) -> None:
        arguments = {
            "ids": [mark.message_id for mark in marks],
            "dues": [mark.due_ms for mark in marks],
            "until_ms": until_ms,
        }
        with self._pool.connection() as connection, connection.transaction():
            connection.execute(self._sql["forget_marks"], {"now_ms": self._clock.now_ms()})
            connection.execute(self._sql["mark"], arguments)

    def marks(self, message_ids: Sequence[str]) -> dict[str, Mark]:
        rows = self._rows("marks", ids=list(message_ids), now_ms=self._clock.now_ms())
        return {row[0]: Mark(message_id=row[0], due_ms=row[1]) for row in rows}

    def watch(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        return Listener(self._conninfo, self._channel, wake)

    def now_ms(self) -> int:
        """The server's now, epoch milliseconds.

        Raises:
            StoreUnavailable
        """
        return int(self._rows("now")[0][0])

    def close(self) -> None:
        self._pool.close()

    def _rows(self, query: str, **arguments: object) -> list[tuple[Any, ...]]:
        with self._pool.connection() as connection:
            return connection.execute(self._sql[query], arguments).fetchall()


class _PostgresClaim:
    def __init__(
        self, store: PostgresStore, connection: Connection, messages: list[StoredMessage]
    ) -> None:
        self.messages = messages
        self.transaction: Any = connection
        self._store = store

    def attempt(self) -> AbstractContextManager[None]:
        return cast(AbstractContextManager[None], self.transaction.transaction())

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        return self._change("remove", message_ids)

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        return self._hold(message_ids, retry_after_seconds, failed=1)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        return self._hold(message_ids, seconds, failed=0)

    def _hold(self, message_ids: Sequence[str], seconds: float, *, failed: int) -> list[bool]:
        until_ms = self._store._clock.now_ms() + round(seconds * 1000)
        return self._change("hold", message_ids, until_ms=until_ms, failed=failed)

    def _change(self, query: str, message_ids: Sequence[str], **arguments: object) -> list[bool]:
        arguments["ids"] = list(message_ids)
        with self._store._pool.translated():
            rows = self.transaction.execute(self._store._sql[query], arguments).fetchall()
        return answered(message_ids, (row[0] for row in rows))
