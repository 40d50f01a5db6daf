"""The embedded store: one SQLite file, in WAL mode, shared by the threads and processes of one machine."""

from __future__ import annotations

import json
import logging
import math
import os
import sqlite3
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from operator import methodcaller
from pathlib import Path
from typing import Any, Final

from sqsdelay.core.delay import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage, due_found, from_rows
from sqsdelay.errors import InvalidSetting, StoreError, StoreUnavailable
from sqsdelay.ports import in_each_child
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode
from sqsdelay.stores import shared
from sqsdelay.stores.shared import DEFAULT_LEASE_SECONDS, Wakes
from sqsdelay.stores.sql import UNFIT, SqlClaim, SqlInbox, SqlStore, SqlTable, row_of

logger = logging.getLogger(__name__)

_inherited: Final[list[sqlite3.Connection]] = []
"""Kept, so that they are never closed."""

_PIECES: Final = {
    "at": "due_ms",
    "kept": "held_until_ms = 0",
    "until": ":due_by_ms",
    "ids": "IN (SELECT value FROM json_each(:ids))",
    "now": ":now_ms",
    "free": "claim = 'free----------------------------000000000', leased_until_ms = -1000000000000",
    "version": str(shared.VERSION),
    "amended": ", ".join(f"json_extract(value, '$[{n}]')" for n in range(4))
    + " FROM json_each(:rows)",
}
"""What queries have in common, and what `claim_except` is for messages that are new."""

_HELD: Final = {"at": "held_until_ms", "kept": "held_until_ms > 0", "until": ":now_ms"}
_NO_LIMIT: Final = 1 << 31
_LOCK_WAIT_SECONDS: Final = 10.0
RESERVE_BYTES: Final = 4 << 20
"""As much as the log grows to before SQLite writes it back (1,000 pages)."""


def quoted(name: str) -> str:
    """A table's or an index's name for a query. Raises ConfigurationError where SQLite takes no such name."""
    if UNFIT.search(name) or name.lower().startswith("sqlite_"):
        raise InvalidSetting(
            f"{name!r} is not a table name; leave out NUL, lone surrogates and 'sqlite_'"
        )
    return '"' + name.replace('"', '""') + '"'


class SqliteTable(SqlTable):
    """A table in a file that may hold several, and others' too; its version is in ``sqsdelay.versions``."""

    _DIALECT, _PARAMETER = "sqlite", r":\1"
    _DRIVER, _ERROR = sqlite3.Connection, sqlite3.Error
    _BEGIN = "execute BEGIN first"

    def __init__(self, path: str | Path, *, endpoint: str, table: str | None = None) -> None:
        if "\0" in str(path):
            # Not shown: a URL's password could stand in it.
            raise InvalidSetting(
                "the SQLite file's name contains a NUL character; correct the path"
            )
        # As SQLite keeps it open, wherever this process goes, or forks.
        self._path = path if str(path) == ":memory:" else os.path.abspath(path)
        self._table = table = table or f"{endpoint}.{self._SUFFIX}"
        names = {"table": quoted(table), "table_name": "'" + table.replace("'", "''") + "'"}
        for name in ("due_name", "destination_name", "held_name", "until_name", "amendments"):
            names[name] = quoted(f"{table}.{name.removesuffix('_name')}")
        self._read_book(_PIECES | names)
        self._lock = threading.RLock()
        self._connection = self._opened()
        in_each_child(self, SqliteTable._begin_anew)

    def _begin_anew(self) -> None:
        """In a forked process, which must neither use nor close its parent's connection
        (sqlite.org/howtocorrupt.html, 2.6). One to memory, or one that is closed, stays as it is."""
        self._lock = threading.RLock()
        with suppress(sqlite3.ProgrammingError):
            self._connection.total_changes  # noqa: B018
            if str(self._path) != ":memory:":
                _inherited.append(self._connection)
                self._connection = self._opened()

    def _opened(self) -> sqlite3.Connection:
        """A connection for all threads, in autocommit mode. A file that it makes is its owner's alone."""
        if str(self._path) != ":memory:":
            # Bodies wait in it in the clear; SQLite gives its -wal and -shm the same mode. What is wrong with
            # the path SQLite says better; an existing file keeps its mode.
            with suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with self._translated():
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

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        there, versioned = connection.execute(self._sql["exists"]).fetchone()
        if there:
            row = connection.execute(self._sql["version"]).fetchone() if versioned else None
            shared.check_version(None if row is None else int(row[0]), self._table)
        return bool(there)

    @contextmanager
    def _statement(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._translated():
            self._check_file()
            yield self._connection

    def _check_given(self, transaction: Any) -> None:
        super()._check_given(transaction)
        self._check_file()

    def _check_file(self) -> None:
        """In a file that was deleted or replaced since it was opened, nobody would find what is written."""
        if self._file is not None and self._found_file() != self._file:
            raise StoreUnavailable(
                f"SQLite store {self._table}: the file {str(self._path)!r} was deleted or replaced while "
                "it was open; restore it, and open the store again"
            )

    def _commits_at_once(self, transaction: sqlite3.Connection) -> bool:
        if transaction.in_transaction:
            return False
        # Python 3.12 has its own switch, which is -1 where isolation_level decides as ever.
        switch: object = getattr(transaction, "autocommit", -1)
        return transaction.isolation_level is None if switch == -1 else bool(switch)

    @contextmanager
    def _transaction(self, *, check: bool = True) -> Iterator[sqlite3.Connection]:
        """A write transaction, or the one this thread is already in (exactly once)."""
        with self._statement() as connection:
            if connection.in_transaction:
                yield connection
                return
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

    def _error(self, error: sqlite3.Error) -> StoreError:
        if "no such table" in str(error):
            return self._missing()
        if "no such column" in str(error) or "has no column named" in str(error):
            return shared.mismatch(self._table, error)
        if "readonly" in str(error):
            return StoreUnavailable(
                f"SQLite store {self._table} is read-only: {error}; let this user write to the file and its "
                "folder"
            )
        if isinstance(error, sqlite3.OperationalError):
            return StoreUnavailable(f"SQLite store {self._table} cannot be used now: {error}")
        return StoreError(f"SQLite store {self._table}: {error}")


class SqliteStore(Wakes, SqliteTable, SqlStore, DelayedMessageStore):
    """Delayed messages in a SQLite file.

    Args:
        path: the file; created when missing (not its folder).
        endpoint: whose messages these are.
        table: ``<endpoint>.delayed`` when left out; any name.
        lease_seconds: how long the messages of a dispatcher that died stay held (at least once).
        clock: leases are timed with it; all processes on the file must agree on it.

    Raises:
        StoreUnavailable: the file cannot be opened.
    """

    poll_seconds: Final = 0.5
    modes: Final = frozenset(TransactionMode)
    _renews = True  # the leases of claims that are open

    def __init__(
        self,
        path: str | Path,
        *,
        endpoint: str,
        table: str | None = None,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._lease_seconds = shared.checked_lease(lease_seconds)
        self._mode = TransactionMode.AT_LEAST_ONCE
        self._leases_checked = 0.0
        self._at_once = _NO_LIMIT
        Wakes.__init__(self)
        SqliteTable.__init__(self, path, endpoint=endpoint, table=table)
        self._reserved = False
        self._sql["claim_held"] = self._query("claim_except", **_HELD)

    def initialize(self, mode: TransactionMode) -> None:
        with self._statement() as connection:
            self._check(connection)
        self._mode = mode

    def _store(self, messages: Sequence[StoredMessage]) -> list[bool]:
        with self._transaction() as connection:
            first = connection.execute(self._sql["first_due"], self._times()).fetchone()
            new = self._insert(connection, messages)
        self._at_once = _NO_LIMIT
        self._make_reserve()
        if first is None or min(message.due_ms for message in messages) < due_found(first[0]):
            self._wake()
        return new

    def _insert(
        self, connection: sqlite3.Connection, messages: Sequence[StoredMessage]
    ) -> list[bool]:
        store = self._sql["store"]
        return [connection.execute(store, row_of(m)).rowcount == 1 for m in messages]

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[Claim]:
        if self._mode is TransactionMode.EXACTLY_ONCE:
            # The claim is the write transaction itself: nobody else can write meanwhile.
            with self._transaction() as connection:
                claim = self._leased(limit, due_by_ms, except_destinations)
                claim.transaction = connection
                yield claim
                claim.release()
            return
        with self._kept(self._leased(limit, due_by_ms, except_destinations)) as claim:
            yield claim

    @contextmanager
    def claim_ids(self, message_ids: Sequence[str]) -> Iterator[Claim]:
        token = self._token()
        rows = self._changed("claim_ids", ids=self._names(message_ids), claim=token)
        claim = SqliteClaim(self, token, from_rows(rows), [])
        claim.busy = self._busy(message_ids, claim.messages)
        with self._kept(claim):
            yield claim

    @contextmanager
    def _kept(self, claim: SqliteClaim) -> Iterator[SqliteClaim]:
        """Renews the lease while the claim is open, then lets go of what is left."""
        renewing = shared.kept_alive(claim.renew, lease_seconds=self._lease_seconds)
        try:
            with renewing if claim.messages and self._renews else nullcontext():
                yield claim
        finally:
            claim.release()

    def _leased(self, limit: int, due_by_ms: int, passed_over: Collection[str]) -> SqliteClaim:
        """Messages that are leased; as few as the disk has room for."""
        while True:
            claim = None
            try:
                claim = self._lease(min(limit, self._at_once), due_by_ms, passed_over)
            except StoreUnavailable as error:
                if not str(error).endswith("disk is full") or self._at_once == 1:
                    raise
                # A claim writes its rows, with their bodies: fewer need less room.
                self._at_once = max(1, min(limit, self._at_once) // 20)
                if self._give_up_reserve():
                    logger.error("%s; its reserve is given up to make room", one_line(error))
            if self._at_once != _NO_LIMIT:
                # The log goes into the file, as far as others allow: its room is needed for what comes next.
                with self._statement() as connection:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if claim is not None:
                return claim

    def _make_reserve(self) -> None:
        """Set room for the log aside, in a file beside the store's, where there is four times as much."""
        with suppress(OSError):  # A store in memory has no folder.
            disk = None if self._reserved else os.statvfs(os.path.dirname(self._path))
            if disk is None or disk.f_bavail * disk.f_frsize < 4 * RESERVE_BYTES:
                return
            place = os.open(f"{self._path}-reserve", os.O_CREAT | os.O_WRONLY, 0o600)
            with open(place, "wb") as reserve:
                os.posix_fallocate(reserve.fileno(), 0, RESERVE_BYTES)
            self._reserved = True

    def _give_up_reserve(self) -> bool:
        """Make its room free, so that messages can leave a full disk; False if there is none."""
        self._reserved = False
        with suppress(OSError):
            os.unlink(f"{self._path}-reserve")
            return True
        return False

    def _lease(self, limit: int, due_by_ms: int, passed_over: Collection[str]) -> SqliteClaim:
        token = self._token()
        arguments = self._times() | {
            "claim": token,
            "due_by_ms": due_by_ms,
            "except_destinations": self._names(passed_over),
        }
        with self._transaction() as connection:
            if self._clock.monotonic() >= self._leases_checked:
                self._leases_checked = self._clock.monotonic() + self._lease_seconds / 3
                connection.execute(self._sql["end_leases_ahead"], arguments)

            def leased(query: str, most: int) -> list[tuple[Any, ...]]:
                return connection.execute(self._sql[query], arguments | {"limit": most}).fetchall()

            rows = leased("claim_except" if passed_over else "claim", limit)
            held = []
            if len(rows) < limit:
                # Behind what is new: what failed before.
                held = leased("claim_held", limit - len(rows))
                rows += leased("claim_never_due", 1) + held
        messages = [
            message
            for message, row in zip(from_rows(rows), rows, strict=True)
            if message.unreadable is None or _settled_by(row[0])
        ]
        messages.sort(key=lambda message: (message.due_ms, message.message_id))
        return SqliteClaim(self, token, messages, [row[0] for row in held])

    def _read(self, query: str, **arguments: object) -> list[Any]:
        if arguments.get("after_ms") == shared.NO_START:
            # A row by hand may be due at minus infinity.
            arguments["after_ms"] = -math.inf
        return super()._read(query, **arguments)

    def _changed(self, query: str, **arguments: object) -> list[Any]:
        with self._transaction() as connection:
            return connection.execute(self._sql[query], self._times() | arguments).fetchall()

    def _names(self, names: Collection[str]) -> str:
        return json.dumps(list(names))

    def _token(self) -> str:
        return f"{uuid.uuid4().hex}{min(round(self._lease_seconds * 1000), 999_999_999):09}"

    def _times(self) -> dict[str, object]:
        now_ms = self._clock.now_ms()
        return {"now_ms": now_ms, "until_ms": now_ms + round(self._lease_seconds * 1000)}


def _settled_by(message_id: object) -> bool:
    """Whether a row can be removed by its id; one that cannot stays leased, and is told of each time."""
    if isinstance(message_id, str) and not UNFIT.search(message_id):
        return True
    logger.error("a row is no message: its message_id is %r and not text; delete it", message_id)
    return False


class SqliteClaim(SqlClaim):
    def __init__(
        self, store: SqliteStore, token: str, messages: list[StoredMessage], again: list[str]
    ) -> None:
        super().__init__(messages, again)
        self._store = store
        self._token = token
        self._open = {message.message_id for message in messages}

    @contextmanager
    def attempt(self) -> Iterator[None]:
        connection: sqlite3.Connection = self.transaction
        connection.execute("SAVEPOINT attempt")
        before = set(self._open)
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK TO attempt")
            self._open = before
            raise
        finally:
            connection.execute("RELEASE attempt")

    def renew(self) -> None:
        self._run("renew", self._open)

    def release(self) -> None:
        """Let go of what was neither removed nor held."""
        if self._open:
            self._run("release", self._open)

    def _settle(self, query: str, message_ids: Sequence[str], **arguments: object) -> list[bool]:
        settled = super()._settle(query, message_ids, **arguments)
        self._open.difference_update(message_ids)
        return settled

    def _run(self, query: str, message_ids: Collection[str], **arguments: object) -> list[Any]:
        ids = self._store._names(message_ids)
        return self._store._changed(query, ids=ids, claim=self._token, **arguments)


class SqliteInbox(SqliteTable, SqlInbox):
    """Remembers processed messages in a SQLite file; arguments as of `SqliteStore`.

    Args:
        table: ``<endpoint>.received`` when left out; any name.
    """
