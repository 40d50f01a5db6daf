"""An inbox in a SQLite file, for the receivers of one machine."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqsdelay.errors import ConfigurationError
from sqsdelay.receiving.deduplication import Copy
from sqsdelay.stores.sqlite.file import SqliteTable


class SqliteInbox(SqliteTable):
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

    def begin(self, message_id: str, *, claim: str, now_ms: int, until_ms: int) -> Copy:
        arguments = {"claim": claim, "now_ms": now_ms, "until_ms": until_ms}
        if self._run("begin", message_id=message_id, **arguments)[0]:
            return Copy.FIRST
        rows, _ = self._run("find", message_id=message_id)
        # A row that is gone was given up this moment: the copy comes back, and is the first then.
        return Copy.DUPLICATE if rows and rows[0][0] is None else Copy.IN_PROGRESS

    def done(self, message_id: str, *, until_ms: int) -> None:
        self._run("done", message_id=message_id, until_ms=until_ms)

    def release(self, message_id: str, *, claim: str) -> None:
        self._run("release", message_id=message_id, claim=claim)

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

    def forget(self, now_ms: int, *, limit: int) -> int:
        return self._run("forget", now_ms=now_ms, limit=limit)[1]

    def _run(self, query: str, **arguments: object) -> tuple[list[tuple[Any, ...]], int]:
        """The rows a query gives, and how many it changed."""
        with self._lock, self._translated():
            self._check(self._connection)
            cursor = self._connection.execute(self._sql[query], arguments)
            return cursor.fetchall(), cursor.rowcount


def _commits_at_once(connection: sqlite3.Connection) -> bool:
    # Python 3.12 has its own switch, which is -1 where isolation_level decides as ever.
    switch: object = getattr(connection, "autocommit", -1)
    return connection.isolation_level is None if switch == -1 else bool(switch)
