"""The embedded store: one SQLite file, in WAL mode, shared by the processes of one machine."""

from __future__ import annotations

import json
import logging
import math
import re
import sqlite3
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import (
    AMENDMENT_LIFETIME_MS,
    Amendment,
    StoredMessage,
    due_found,
    from_rows,
)
from sqsdelay.errors import StoreUnavailable
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode
from sqsdelay.stores.dispatchers import DEFAULT_LEASE_SECONDS, Wakes, checked_lease, kept_alive
from sqsdelay.stores.ids import NO_START
from sqsdelay.stores.sql import SqlInbox, SqlStore, found_among
from sqsdelay.stores.sqlite.file import HELD, Reserve, SqliteTable

logger = logging.getLogger(__name__)

_UNDECODED: Final = re.compile("[\\x00\\ud800-\\udfff]")
_NO_LIMIT: Final = 1 << 31


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
        self._lease_seconds = checked_lease(lease_seconds)
        self._mode = TransactionMode.AT_LEAST_ONCE
        self._leases_checked = 0.0
        self._reserve = Reserve(path)
        self._at_once = _NO_LIMIT
        Wakes.__init__(self)
        SqliteTable.__init__(self, path, endpoint=endpoint, table=table)
        self._sql["claim_held"] = self._query("claim_except", **HELD)

    def initialize(self, mode: TransactionMode) -> None:
        with self._lock, self._translated():
            self._check(self._connection)
        self._mode = mode

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        if transaction is not None:
            self._check_given(transaction)
        if not messages:
            return []
        if transaction is not None:
            with self._translated():
                self._check(transaction)
                return self._insert(transaction, messages)
        with self._transaction() as connection:
            first = connection.execute(self._sql["first_due"], self._times()).fetchone()
            new = self._insert(connection, messages)
        self._at_once = _NO_LIMIT
        self._reserve.make()
        if first is None or min(message.due_ms for message in messages) < due_found(first[0]):
            self._wake()
        return new

    def _insert(
        self, connection: sqlite3.Connection, messages: Sequence[StoredMessage]
    ) -> list[bool]:
        return [
            connection.execute(
                self._sql["store"],
                (m.message_id, m.destination, m.due_ms, m.body, m.headers(), m.failures),
            ).rowcount
            == 1
            for m in messages
        ]

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[Claim]:
        if self._mode is TransactionMode.EXACTLY_ONCE:
            # The claim is the write transaction itself: nobody else can write meanwhile.
            with self._transaction() as connection:
                claim = self._take(limit, due_by_ms, except_destinations)
                claim.transaction = connection
                yield claim
                claim.release()
            return
        with self._kept(self._take(limit, due_by_ms, except_destinations)) as claim:
            yield claim

    @contextmanager
    def claim_ids(self, message_ids: Sequence[str]) -> Iterator[Claim]:
        token = self._token()
        rows = self._changed("claim_ids", ids=self._names(message_ids), claim=token)
        claim = _SqliteClaim(self, token, from_rows(rows))
        claim.busy = self._busy(message_ids, claim.messages)
        with self._kept(claim):
            yield claim

    @contextmanager
    def _kept(self, claim: _SqliteClaim) -> Iterator[_SqliteClaim]:
        """Renews the lease while the claim is open, then lets go of what is left."""
        if not claim.messages:
            yield claim
            return
        try:
            with kept_alive(claim.renew, lease_seconds=self._lease_seconds):
                yield claim
        finally:
            claim.release()

    def _take(
        self, limit: int, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> _SqliteClaim:
        while True:
            try:
                claim = self._leased(min(limit, self._at_once), due_by_ms, except_destinations)
                if self._at_once != _NO_LIMIT:
                    self._write_back()
                return claim
            except StoreUnavailable as error:
                if "full" not in str(error.__cause__) or self._at_once == 1:
                    raise
                # A claim writes its rows, with their bodies: fewer need less room.
                self._at_once = max(1, min(limit, self._at_once) // 20)
                if self._reserve.give_up():
                    logger.error(
                        "%s; its reserve is given up, so that messages leave", one_line(error)
                    )
                self._write_back()

    def _write_back(self) -> None:
        """Empty the log into the file, as far as others allow: its room is needed for what comes next."""
        with self._lock, self._translated():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _leased(
        self, limit: int, due_by_ms: int, except_destinations: Collection[str]
    ) -> _SqliteClaim:
        token = self._token()
        arguments = self._times() | {
            "claim": token,
            "due_by_ms": due_by_ms,
            "except_destinations": self._names(except_destinations),
        }
        with self._transaction() as connection:
            if self._clock.monotonic() >= self._leases_checked:
                self._leases_checked = self._clock.monotonic() + self._lease_seconds / 3
                connection.execute(self._sql["end_leases_ahead"], arguments)

            def leased(query: str, most: int) -> list[tuple[Any, ...]]:
                return connection.execute(self._sql[query], arguments | {"limit": most}).fetchall()

            rows = leased("claim_except" if except_destinations else "claim", limit)
            held = []
            if len(rows) < limit:
                # Behind what is new: what failed before.
                held = leased("claim_held", limit - len(rows))
                rows += leased("claim_never_due", 1)
        rows += held
        messages = [
            message
            for message, row in zip(from_rows(rows), rows, strict=True)
            if message.unreadable is None or _settled_by(row[0])
        ]
        messages.sort(key=lambda message: (message.due_ms, message.message_id))
        return _SqliteClaim(self, token, messages, again=frozenset(row[0] for row in held))

    def amend(self, amendments: Sequence[Amendment]) -> None:
        rows = [
            {
                "message_id": amendment.message_id,
                "due_ms": amendment.due_ms,
                "until_ms": amendment.until_ms,
                "cancelled_ms": amendment.cancelled_ms,
                "lifetime_ms": AMENDMENT_LIFETIME_MS,
            }
            for amendment in amendments
        ]
        with self._transaction() as connection:
            connection.execute(self._sql["forget_amendments"], self._times())
            connection.executemany(self._sql["amend"], rows)

    def _read(self, query: str, **arguments: object) -> list[Any]:
        if arguments.get("after_ms") == NO_START:
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
        return {"now_ms": self._clock.now_ms(), "until_ms": self._in(self._lease_seconds)}

    def _in(self, seconds: float) -> int:
        return self._clock.now_ms() + round(seconds * 1000)


def _settled_by(message_id: object) -> bool:
    """Whether a row can be removed by its id; one that cannot stays leased, and is told of each time."""
    if isinstance(message_id, str) and not _UNDECODED.search(message_id):
        return True
    logger.error(
        "a row is not a message, because its message_id is %r and not text; delete it",
        message_id,
    )
    return False


class _SqliteClaim:
    def __init__(
        self,
        store: SqliteStore,
        token: str,
        messages: list[StoredMessage],
        *,
        again: frozenset[str] = frozenset(),
    ) -> None:
        self.messages = messages
        self.again = again
        self.busy: frozenset[str] = frozenset()
        self.transaction: Any = None
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
            connection.execute("RELEASE attempt")
            self._open = before
            raise
        connection.execute("RELEASE attempt")

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        return self._settle("remove", message_ids)

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        until_ms = self._store._in(retry_after_seconds)
        return self._settle("hold", message_ids, failed=1, until_ms=until_ms)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        return self._settle("hold", message_ids, failed=0, until_ms=self._store._in(seconds))

    def renew(self) -> None:
        self._change("renew", self._open)

    def release(self) -> None:
        """Let go of what was neither removed nor held."""
        if self._open:
            self._change("release", self._open)

    def _settle(self, query: str, message_ids: Sequence[str], **arguments: object) -> list[bool]:
        rows = self._change(query, message_ids, **arguments)
        self._open.difference_update(message_ids)
        return found_among(message_ids, (row[0] for row in rows))

    def _change(self, query: str, message_ids: Collection[str], **arguments: object) -> list[Any]:
        ids = self._store._names(message_ids)
        return self._store._changed(query, ids=ids, claim=self._token, **arguments)


class SqliteInbox(SqliteTable, SqlInbox):
    """Remembers processed messages in a SQLite file.

    Args:
        path: the file; created when missing (not its folder).
        endpoint: whose messages these are.
        table: ``<endpoint>.received`` when left out; any name.

    Raises:
        StoreUnavailable: the file cannot be opened.
    """
