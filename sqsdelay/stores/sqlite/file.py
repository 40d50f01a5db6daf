"""A SQLite file on the disk: made private, opened, and a reserve of room beside it; names in it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from typing import Final

from sqsdelay.errors import InvalidSetting
from sqsdelay.stores.sql import UNFIT

_LOCK_WAIT_SECONDS: Final = 10.0
RESERVE_BYTES: Final = 4 << 20
"""As much as the log grows to before SQLite writes it back (1,000 pages)."""


def opened(path: str | Path) -> sqlite3.Connection:
    """A connection for all threads, in autocommit mode. A file that it makes is its owner's alone."""
    if str(path) != ":memory:":
        # Bodies wait in it in the clear; SQLite gives its -wal and -shm the same mode. What is wrong with
        # the path SQLite says better; an existing file keeps its mode.
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    connection = sqlite3.connect(
        path, timeout=_LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    # NORMAL could lose the last commits when the power fails.
    connection.execute("PRAGMA synchronous = FULL")
    # Text that is no UTF-8, written by hand, must not fail the whole claim it is in.
    connection.text_factory = methodcaller("decode", "utf-8", "surrogateescape")
    return connection


class Reserve:
    """Room on the disk for a store's log, in a file beside it, given up when the disk is full, so that
    messages can leave."""

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
            with open(os.open(self._place, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as place:
                os.posix_fallocate(place.fileno(), 0, RESERVE_BYTES)
            self.there = True

    def give_up(self) -> bool:
        """Make its room free; False if there is none."""
        self.there = False
        with suppress(OSError):
            if self._place is not None:
                self._place.unlink()
                return True
        return False


def quoted(name: str) -> str:
    """A table's or an index's name for a query. Raises ConfigurationError where SQLite takes no such name."""
    if UNFIT.search(name) or name.lower().startswith("sqlite_"):
        raise InvalidSetting(
            f"{name!r} is not a table name; leave out NUL, lone surrogates and 'sqlite_'"
        )
    return '"' + name.replace('"', '""') + '"'
