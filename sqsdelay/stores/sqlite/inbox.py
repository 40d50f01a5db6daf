"""An inbox in a SQLite file, for the receivers of one machine."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any, Final

from sqsdelay.errors import ConfigurationError
from sqsdelay.ports.forks import in_each_child
from sqsdelay.receiving.deduplication import Copy
from sqsdelay.stores.queries import read_queries
from sqsdelay.stores.sqlite import version as sqlite_version
from sqsdelay.stores.sqlite.file import opened, reopened, translated, with_names

_REMEDY: Final = "call set_up()"


class SqliteInbox:
    """Remembers processed messages in a SQLite file.

    Args:
        path: the file; created when missing (not its folder).
        endpoint: whose messages these are.
        table: ``<endpoint>.received`` when left out; any name.

    Raises:
        StoreUnavailable: the file cannot be opened.
    """

    def __init__(self, path: str | Path, *, endpoint: str, table: str | None = None) -> None:
        self._table = table or f"{endpoint}.received"
        self._sql = {
            key: with_names(query, table=self._table, index=self._table + ".until")
            for key, query in read_queries("sqlite/inbox.sql").items()
        }
        self._lock = threading.Lock()
        self._fits = False
        self._path = path
        self._connection = opened(path, self._table)
        in_each_child(self, SqliteInbox._begin_anew)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._connection = reopened(self._connection, self._path, self._table)

    def set_up(self) -> None:
        connection = self._connection
        with self._lock, translated(self._table, _REMEDY):
            connection.execute("BEGIN IMMEDIATE")
            try:
                sqlite_version.set_up(connection, self._table, self._sql)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _check(self) -> None:
        """Once: an inbox has no call of its own to begin with."""
        if not self._fits:
            sqlite_version.check(self._connection, self._table, self._sql, remedy=_REMEDY)
            self._fits = True

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
        with translated(self._table, _REMEDY):
            with self._lock:
                self._check()
            return transaction.execute(self._sql["first"], arguments).rowcount == 1

    def forget(self, now_ms: int, *, limit: int) -> int:
        return self._run("forget", now_ms=now_ms, limit=limit)[1]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _run(self, query: str, **arguments: object) -> tuple[list[tuple[Any, ...]], int]:
        """The rows a query gives, and how many it changed."""
        with self._lock, translated(self._table, _REMEDY):
            self._check()
            cursor = self._connection.execute(self._sql[query], arguments)
            return cursor.fetchall(), cursor.rowcount


def _commits_at_once(connection: sqlite3.Connection) -> bool:
    # Python 3.12 has its own switch, which is -1 where isolation_level decides as ever.
    switch: object = getattr(connection, "autocommit", -1)
    return connection.isolation_level is None if switch == -1 else bool(switch)
