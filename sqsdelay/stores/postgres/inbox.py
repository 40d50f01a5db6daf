"""An inbox in a PostgreSQL table, for receivers on any number of machines."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from sqsdelay.errors import ConfigurationError
from sqsdelay.receiving.deduplication import Copy
from sqsdelay.stores.postgres.pool import (
    DEFAULT_CONNECTIONS,
    DEFAULT_SCHEMA,
    PostgresPool,
    check_name,
)
from sqsdelay.stores.postgres.version import commented_version, version_comment
from sqsdelay.stores.queries import read_queries
from sqsdelay.stores.schema_version import check_version, newest_version, refuse_newer, upgrades

_REMEDY: Final = "call set_up()"


class PostgresInbox:
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

    def __init__(
        self,
        conninfo: str,
        *,
        endpoint: str,
        table: str | None = None,
        schema: str = DEFAULT_SCHEMA,
        connections: int = DEFAULT_CONNECTIONS,
    ) -> None:
        table = table or f"{endpoint}.received"
        for name in (schema, table):
            check_name(name)
        digest = hashlib.sha256(f"{schema}\0{table}".encode()).hexdigest()[:32]
        self._lock_name = f"sqsdelay_{digest}"
        # psycopg reads %s in a query's text, so a percent sign of a name is written twice.
        queries = read_queries("postgres/inbox.sql")
        self._version = newest_version(queries)
        names: dict[str, sql.Composable] = {
            "table": sql.Identifier(schema.replace("%", "%%"), table.replace("%", "%%")),
            "index": sql.Identifier(f"sqsdelay_{digest}_until"),
            "qualified_index": sql.Identifier(
                schema.replace("%", "%%"), f"sqsdelay_{digest}_until"
            ),
            "version": sql.Literal(version_comment(self._version)),
        }
        self._index = sql.Identifier(schema, f"sqsdelay_{digest}_until").as_string(None)
        self._table = table
        self._fits = False
        self._sql = {
            key: sql.SQL(query).format(**names).as_bytes() for key, query in queries.items()
        }
        self._pool = PostgresPool(conninfo, table=table, connections=connections, remedy=_REMEDY)

    def set_up(self) -> None:
        with self._pool.setting_up() as connection, connection.transaction():
            connection.execute(self._sql["limit_waits"], {})
            connection.execute(self._sql["lock_set_up"], {"name": self._lock_name})
            found = self._found_version(connection)
            refuse_newer(found, self._version, table=self._table)
            for query in ("set_up", "set_up_index", *upgrades(self._sql, found)):
                connection.execute(self._sql[query], {})
            if found < self._version:
                connection.execute(self._sql["record_version"], {})

    def _found_version(self, connection: psycopg.Connection[Any]) -> int:
        cursor = connection.cursor(row_factory=tuple_row)
        row = cursor.execute(self._sql["version"], {"index": self._index}).fetchone()
        return commented_version(row)

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        """Once: an inbox has no call of its own to begin with."""
        if not self._fits:
            found = self._found_version(connection)
            check_version(found, self._version, table=self._table, remedy=_REMEDY)
            self._fits = True

    def begin(self, message_id: str, *, claim: str, now_ms: int, until_ms: int) -> Copy:
        arguments = {"message_id": message_id, "now_ms": now_ms, "until_ms": until_ms}
        with self._pool.statement() as connection:
            self._check(connection)
            begun = connection.execute(self._sql["begin"], {**arguments, "claim": claim})
            if begun.rowcount == 1:
                return Copy.FIRST
            row = connection.execute(self._sql["find"], arguments).fetchone()
        # A row that is gone was given up this moment: the copy comes back, and is the first then.
        return Copy.DUPLICATE if row is not None and row[0] is None else Copy.IN_PROGRESS

    def done(self, message_id: str, *, until_ms: int) -> None:
        self._run("done", message_id=message_id, until_ms=until_ms)

    def release(self, message_id: str, *, claim: str) -> None:
        self._run("release", message_id=message_id, claim=claim)

    def first(self, message_id: str, *, transaction: Any, now_ms: int, until_ms: int) -> bool:
        if not isinstance(transaction, psycopg.Connection):
            raise ConfigurationError(
                f"transaction is a {type(transaction).__name__}; give the psycopg.Connection"
            )
        if transaction.autocommit and transaction.info.transaction_status == TransactionStatus.IDLE:
            raise ConfigurationError(
                "the connection commits each statement and no transaction is open; "
                "use it within connection.transaction()"
            )
        arguments = {"message_id": message_id, "now_ms": now_ms, "until_ms": until_ms}
        with self._pool.translated():
            self._check(transaction)
            return transaction.execute(self._sql["first"], arguments).rowcount == 1

    def forget(self, now_ms: int, *, limit: int) -> int:
        return self._run("forget", now_ms=now_ms, limit=limit)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def _run(self, query: str, **arguments: object) -> int:
        """How many rows a query changed."""
        with self._pool.statement() as connection:
            self._check(connection)
            return connection.execute(self._sql[query], arguments).rowcount
