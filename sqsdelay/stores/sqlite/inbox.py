"""An inbox in a SQLite file, for the receivers of one machine."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqsdelay.errors import ConfigurationError
from sqsdelay.stores.sql import SqlInbox
from sqsdelay.stores.sqlite.file import SqliteTable


class SqliteInbox(SqlInbox, SqliteTable):
    """Remembers processed messages in a SQLite file.

    Args:
        path: the file; created when missing (not its folder).
        endpoint: whose messages these are.
        table: ``<endpoint>.received`` when left out; any name.

    Raises:
        StoreUnavailable: the file cannot be opened.
    """

    def __init__(self, path: str | Path, *, endpoint: str, table: str | None = None) -> None:
        table = table or f"{endpoint}.received"
        super().__init__(
            path, table, queries="sqlite/inbox.sql", remedy="call set_up()", index=table + ".until"
        )

    def first(self, message_id: str, *, transaction: Any, now_ms: int, until_ms: int) -> bool:
        if not isinstance(transaction, sqlite3.Connection):
            raise ConfigurationError(
                f"transaction is a {type(transaction).__name__}; give the sqlite3.Connection"
            )
        if not transaction.in_transaction and _commits_at_once(transaction):
            raise ConfigurationError(
                "the connection commits each statement and no transaction is open; execute BEGIN first"
            )
        arguments = {"message_id": message_id, "now_ms": now_ms, "until_ms": until_ms}
        with self._translated():
            self._check(transaction)
            return transaction.execute(self._sql["first"], arguments).rowcount == 1

    def _run(self, query: str, **arguments: object) -> tuple[list[Any], int]:
        with self._lock, self._translated():
            self._check(self._connection)
            cursor = self._connection.execute(self._sql[query], arguments)
            return cursor.fetchall(), cursor.rowcount


def _commits_at_once(connection: sqlite3.Connection) -> bool:
    # Python 3.12 has its own switch, which is -1 where isolation_level decides as ever.
    switch: object = getattr(connection, "autocommit", -1)
    return connection.isolation_level is None if switch == -1 else bool(switch)
