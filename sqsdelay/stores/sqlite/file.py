"""A SQLite file shared by threads and processes: opened, its tables made and checked, errors translated."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import methodcaller
from pathlib import Path
from typing import Final

from sqsdelay.errors import InvalidSetting, StoreError, StoreUnavailable
from sqsdelay.ports.forks import in_each_child
from sqsdelay.stores.schema import VERSION, check_version, mismatch, read_queries
from sqsdelay.stores.sql import SqlTable

_LOCK_WAIT_SECONDS: Final = 10.0
RESERVE_BYTES: Final = 4 << 20
"""As much as the log grows to before SQLite writes it back (1,000 pages)."""

_inherited: Final[list[sqlite3.Connection]] = []
"""Kept, so that they are never closed."""

_PIECES: Final = {
    "columns": "message_id, destination, due_ms, body, headers, failures",
    "at": "due_ms",
    "kept": "held_until_ms = 0",
    "until": ":due_by_ms",
}
"""What queries have in common, and what `claim_except` is for messages that are new."""

HELD: Final = {"at": "held_until_ms", "kept": "held_until_ms > 0", "until": ":now_ms"}

_UNFIT: Final = re.compile("[\0\ud800-\udfff]")


class SqliteTable(SqlTable):
    """A table in a file that may hold several, and others' too; its version is in ``sqsdelay.versions``."""

    _DRIVER = sqlite3.Connection
    _BEGIN = "execute BEGIN first"

    def __init__(self, path: str | Path, *, endpoint: str, table: str | None = None) -> None:
        if "\0" in str(path):
            # Not shown: a URL's password could stand in it.
            raise InvalidSetting(
                "the SQLite file's name contains a NUL character; correct the path"
            )
        self._path = path
        self._table = table = table or f"{endpoint}.{self._SUFFIX}"
        self._in_queries = _PIECES | {"table": quoted(table)}
        for name in ("due", "destination", "held", "amendments", "until"):
            self._in_queries[f"{name}_name"] = quoted(f"{table}.{name}")
        self._book = read_queries(f"sqlite/{self._QUERIES}")
        self._sql = {name: self._query(name) for name in self._book}
        self._lock = threading.RLock()
        self._checked = False
        self._connection = self._opened()
        in_each_child(self, SqliteTable._begin_anew)

    def _query(self, name: str, **more: str) -> str:
        """A query of the book; in one pass, for a name may itself hold what looks like another's place."""
        names = self._in_queries | more
        return re.sub(r"\{(\w+)\}", lambda place: names[place[1]], self._book[name])

    def _begin_anew(self) -> None:
        """In a forked process, which must neither use nor close its parent's connection.

        Source: sqlite.org/howtocorrupt.html, 2.6. One to memory, or one that is closed, stays as it is.
        """
        self._lock = threading.RLock()
        with suppress(sqlite3.ProgrammingError):
            self._connection.total_changes  # noqa: B018
            if str(self._path) != ":memory:":
                _inherited.append(self._connection)
                self._connection = self._opened()

    def _opened(self) -> sqlite3.Connection:
        """A connection for all threads, in autocommit mode. A file that it makes is its owner's alone."""
        with self._translated():
            if str(self._path) != ":memory:":
                _make_private(Path(self._path))
            connection = sqlite3.connect(
                self._path,
                timeout=_LOCK_WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            connection.execute("PRAGMA journal_mode = WAL")
            # NORMAL could lose the last commits when the power fails.
            connection.execute("PRAGMA synchronous = FULL")
            # Text that is no UTF-8, written by hand, must not fail the whole claim it is in.
            connection.text_factory = methodcaller("decode", "utf-8", "surrogateescape")
            self._file = self._found_file()
            return connection

    def _found_file(self) -> tuple[int, int] | None:
        """Which file the path leads to now; None where there is none, or where it cannot be told."""
        with suppress(OSError):
            found = os.stat(self._path)
            return found.st_dev, found.st_ino
        return None

    def set_up(self) -> None:
        """Create the table, where it is missing, and write down its version.

        Raises:
            SchemaMismatch: another sqsdelay made it.
        """
        self._checked = False
        with self._transaction(check=False) as connection:
            connection.execute(
                'CREATE TABLE IF NOT EXISTS "sqsdelay.versions" '
                "(table_name TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL)"
            )
            if not self._exists(connection):
                for name in (name for name in self._sql if name.startswith("set_up")):
                    connection.execute(self._sql[name])
                query = 'INSERT OR REPLACE INTO "sqsdelay.versions" VALUES (?, ?)'
                connection.execute(query, (self._table, VERSION))
            self._check(connection)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _check(self, connection: sqlite3.Connection) -> None:
        if self._checked:
            return
        if not self._exists(connection):
            raise self._missing()
        row = None
        if self._exists(connection, "sqsdelay.versions"):
            query = 'SELECT version FROM "sqsdelay.versions" WHERE table_name = ?'
            row = connection.execute(query, (self._table,)).fetchone()
        check_version(None if row is None else int(row[0]), table=self._table)
        self._checked = True

    def _exists(self, connection: sqlite3.Connection, table: str | None = None) -> bool:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)"
        return connection.execute(query, (table or self._table,)).fetchone() is not None

    @contextmanager
    def _statement(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._translated():
            yield self._connection

    def _commits_at_once(self, transaction: sqlite3.Connection) -> bool:
        if transaction.in_transaction:
            return False
        # Python 3.12 has its own switch, which is -1 where isolation_level decides as ever.
        switch: object = getattr(transaction, "autocommit", -1)
        return transaction.isolation_level is None if switch == -1 else bool(switch)

    @contextmanager
    def _transaction(self, *, check: bool = True) -> Iterator[sqlite3.Connection]:
        """A write transaction, or the one this thread is already in (exactly once).

        Raises:
            StoreUnavailable: the file was deleted or replaced since it was opened: nobody would find what is
                written there.
        """
        with self._lock, self._translated():
            connection = self._connection
            if connection.in_transaction:
                yield connection
                return
            if self._file is not None and self._found_file() != self._file:
                raise StoreUnavailable(
                    f"SQLite store {self._table}: the file {str(self._path)!r} was deleted or replaced while "
                    "it was open; restore it, and open the store again"
                )
            connection.execute("BEGIN IMMEDIATE")
            try:
                if check:
                    self._check(connection)
                yield connection
            except BaseException:
                if connection.in_transaction:
                    # A full file has ended it already.
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> StoreError:
        """The error to raise for one of SQLite's."""
        if "no such table" in str(error):
            return self._missing()
        if "no such column" in str(error) or "has no column named" in str(error):
            return mismatch(self._table, error)
        if "readonly" in str(error):
            return StoreUnavailable(
                f"SQLite store {self._table} is read-only: {error}; let this user write to the file and its "
                "folder"
            )
        if isinstance(error, sqlite3.OperationalError):
            return StoreUnavailable(f"SQLite store {self._table} cannot be used now: {error}")
        return StoreError(f"SQLite store {self._table}: {error}")


class Reserve:
    """Room on the disk for a store's log, given up when the disk is full, so that messages can leave.

    Args:
        path: the database; the reserve is a file beside it.
    """

    def __init__(self, path: str | Path) -> None:
        self._place = None if str(path) == ":memory:" else Path(f"{path}-reserve")
        self.there = False

    def make(self) -> None:
        """Set it aside where there is room for four times as much; otherwise not now."""
        if self._place is None or self.there:
            return
        with suppress(OSError):
            disk = os.statvfs(self._place.parent)
            if disk.f_bavail * disk.f_frsize < 4 * RESERVE_BYTES:
                return
            place = os.open(self._place, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.posix_fallocate(place, 0, RESERVE_BYTES)
                self.there = True
            finally:
                os.close(place)

    def give_up(self) -> bool:
        """Make its room free; False if there is none."""
        self.there = False
        if self._place is None or not self._place.exists():
            return False
        with suppress(OSError):
            self._place.unlink()
            return True
        return False


def _make_private(path: Path) -> None:
    """Make the file, for bodies wait in it in the clear; SQLite gives its -wal and -shm the same mode."""
    with suppress(OSError):
        # What is wrong with the path SQLite says better; an existing file keeps its mode.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def quoted(name: str) -> str:
    """A table's or an index's name for a query.

    Raises:
        ConfigurationError: SQLite takes no such name.
    """
    if _UNFIT.search(name) or name.lower().startswith("sqlite_"):
        raise InvalidSetting(
            f"{name!r} is not a table name; leave out NUL, lone surrogates and 'sqlite_'"
        )
    return '"' + name.replace('"', '""') + '"'
