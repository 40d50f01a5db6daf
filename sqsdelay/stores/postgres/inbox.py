"""An inbox in a PostgreSQL table, for receivers on any number of machines."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from sqsdelay.errors import ConfigurationError
from sqsdelay.stores.postgres.pool import DEFAULT_CONNECTIONS, DEFAULT_SCHEMA, PostgresTable
from sqsdelay.stores.sql import SqlInbox


class PostgresInbox(SqlInbox, PostgresTable):
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
        super().__init__(
            conninfo,
            table or f"{endpoint}.received",
            schema=schema,
            connections=connections,
            queries="postgres/inbox.sql",
            index="until",
            remedy="call set_up()",
        )

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

    def _run(self, query: str, **arguments: object) -> tuple[list[Any], int]:
        with self._pool.statement() as connection:
            self._check(connection)
            cursor = connection.execute(self._sql[query], arguments)
            return cursor.fetchall() if cursor.description else [], cursor.rowcount
