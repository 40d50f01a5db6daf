"""A SQLite file shared by threads and processes: how it is opened, names quoted, errors translated."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sqsdelay.errors import InvalidSetting, StoreError, StoreMissing, StoreUnavailable
from sqsdelay.stores.schema_version import mismatch

STORE_REMEDY: Final = "run sqsdelay store create (set_up())"
_LOCK_WAIT_SECONDS: Final = 10.0
_inherited: Final[list[sqlite3.Connection]] = []
"""Kept, so that they are never closed."""

_UNFIT: Final = re.compile("[\0\ud800-\udfff]")


def opened(path: str | Path, table: str) -> sqlite3.Connection:
    """A connection for all threads, in autocommit mode. A file that it makes is its owner's alone.

    Raises:
        ConfigurationError: a path no file can have.
        StoreUnavailable: the file cannot be opened.
    """
    if "\0" in str(path):
        # Not shown: a URL's password could stand in it.
        raise InvalidSetting("the SQLite file's name contains a NUL character; correct the path")
    with translated(table):
        if str(path) != ":memory:":
            _make_private(Path(path))
        connection = sqlite3.connect(
            path, timeout=_LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        # NORMAL could lose the last commits when the power fails.
        connection.execute("PRAGMA synchronous = FULL")
        return connection


def reopened(connection: sqlite3.Connection, path: str | Path, table: str) -> sqlite3.Connection:
    """The connection to use in a forked process, in place of its parent's.

    SQLite forbids to use that one, and to close it. Source: sqlite.org/howtocorrupt.html, 2.6. One to
    memory, or one that is closed, stays as it is.
    """
    try:
        connection.total_changes  # noqa: B018
    except sqlite3.ProgrammingError:
        return connection
    if str(path) == ":memory:":
        return connection
    _inherited.append(connection)
    return opened(path, table)


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


def with_names(query: str, **names: str) -> str:
    """The query with quoted names for ``{table}`` and the like.

    In one pass: a name may itself hold what looks like another's place.

    Raises:
        ConfigurationError: SQLite takes no such name.
    """
    return re.sub(r"\{(\w+)\}", lambda place: quoted(names[place[1]]), query)


@contextmanager
def translated(table: str, remedy: str = STORE_REMEDY) -> Iterator[None]:
    """SQLite's errors as StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(error, table, remedy) from error


def store_error(error: sqlite3.Error, table: str, remedy: str = STORE_REMEDY) -> StoreError:
    """The error to raise for one of SQLite's; ``remedy`` is how the table is made."""
    if "no such table" in str(error):
        return StoreMissing(f"table {table} does not exist; {remedy}, or correct the name")
    if "no such column" in str(error) or "has no column named" in str(error):
        return mismatch(table, remedy, error)
    if isinstance(error, sqlite3.OperationalError):
        return StoreUnavailable(f"SQLite store {table} cannot be used now: {error}")
    return StoreError(f"SQLite store {table}: {error}")
