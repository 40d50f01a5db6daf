"""A delayed message store of one's own: a JSON file, shared by the processes of one machine.

Small and slow (every call reads and writes the whole file), but complete: it passes the contract in
``sqsdelay.testing.StoreContract``.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqsdelay.errors import ConfigurationError, StoreMissing
from sqsdelay.stores import (
    Amendment,
    Clock,
    DelayedMessageStore,
    StoredMessage,
    SystemClock,
    TransactionMode,
    check_stored_due,
    from_store,
    latest_amendments,
)

LEASE_SECONDS = 60

Rows = dict[str, dict[str, Any]]


class JsonFileStore(DelayedMessageStore):
    """Delayed messages in a JSON file."""

    modes = frozenset({TransactionMode.AT_LEAST_ONCE})
    poll_seconds = 0.5

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._watchers: list[Callable[[], None]] = []

    def set_up(self) -> None:
        for path in (self._path, self._path.with_suffix(".amendments")):
            if not path.exists():
                path.write_text("{}")

    def initialize(self, mode: TransactionMode) -> None:
        if mode not in self.modes:
            raise ConfigurationError(f"a JSON file cannot give {mode}: it has no transactions")
        if not self._path.exists():
            raise StoreMissing(f"{self._path} does not exist; call set_up()")

    def close(self) -> None:
        """Nothing is kept open."""

    @contextmanager
    def _rows(self, suffix: str | None = None) -> Iterator[Rows]:
        """A file's rows under an exclusive lock, written back whole or not at all."""
        path = self._path if suffix is None else self._path.with_suffix(suffix)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            rows: Rows = json.loads(path.read_text())
            yield rows
            written = self._path.with_suffix(".new")
            written.write_text(json.dumps(rows))
            os.replace(written, path)

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        if transaction is not None:
            raise ConfigurationError("a JSON file takes no transaction=; leave it out")
        with self._rows() as rows:
            new = []
            for m in messages:
                new.append(m.message_id not in rows)
                row = {
                    "destination": m.destination,
                    "due_ms": m.due_ms,
                    "body": base64.b64encode(m.body).decode(),
                    "headers": m.headers(),
                    "failures": m.failures,
                    "held_until_ms": 0,
                    "claim": None,
                }
                rows.setdefault(m.message_id, row)
        self._wake()
        return new

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[JsonFileClaim]:
        token = uuid.uuid4().hex
        now_ms = self._clock.now_ms()
        with self._rows() as rows:
            due = [i for i in _by_due(rows) if rows[i]["due_ms"] <= due_by_ms]
            due = [i for i in due if rows[i]["destination"] not in except_destinations]
            mine = [i for i in due if rows[i]["held_until_ms"] <= now_ms][:limit]
            messages = [_message(i, rows[i]) for i in mine]
            for i in mine:
                rows[i].update(claim=token, held_until_ms=now_ms + LEASE_SECONDS * 1000)
        try:
            yield JsonFileClaim(self, token, messages)
        finally:
            with self._rows() as rows:
                for row in rows.values():
                    if row["claim"] == token:
                        row.update(claim=None, held_until_ms=0)

    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        now_ms = self._clock.now_ms()
        with self._rows() as rows:
            free = [row for row in rows.values() if row["held_until_ms"] <= now_ms]
        wanted = [row for row in free if row["destination"] not in except_destinations]
        return min((row["due_ms"] for row in wanted), default=None)

    def pending_count(self) -> int:
        with self._rows() as rows:
            return len(rows)

    def pending(
        self,
        limit: int,
        *,
        after: tuple[int, str] | None = None,
        due_from_ms: int | None = None,
        due_before_ms: int | None = None,
    ) -> list[StoredMessage]:
        with self._rows() as rows:
            found = [
                i
                for i in _by_due(rows)
                if (after is None or (rows[i]["due_ms"], i) > after)
                and (due_from_ms is None or rows[i]["due_ms"] >= due_from_ms)
                and (due_before_ms is None or rows[i]["due_ms"] < due_before_ms)
            ]
            return [_message(i, rows[i]) for i in found[:limit]]

    def find(self, message_id: str) -> StoredMessage | None:
        with self._rows() as rows:
            return _message(message_id, rows[message_id]) if message_id in rows else None

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        with self._rows() as rows:
            return [self._free(rows, i) and rows.pop(i) is not None for i in message_ids]

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        check_stored_due(due_ms)
        with self._rows() as rows:
            moved = self._free(rows, message_id)
            if moved:
                rows[message_id].update(due_ms=due_ms, held_until_ms=0, claim=None)
        self._wake()
        return moved

    def _free(self, rows: Rows, message_id: str) -> bool:
        """Whether the message is there and not being released at this moment."""
        row = rows.get(message_id)
        if row is None:
            return False
        return row["claim"] is None or row["held_until_ms"] <= self._clock.now_ms()

    def amend(self, amendments: Sequence[Amendment]) -> None:
        before = self.amendments([amendment.message_id for amendment in amendments])
        with self._rows(".amendments") as rows:
            for amendment in latest_amendments([*before.values(), *amendments]).values():
                rows[amendment.message_id] = asdict(amendment)

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        with self._rows(".amendments") as rows:
            kept = {i: Amendment(**rows[i]) for i in message_ids if i in rows}
        return {
            i: amendment
            for i, amendment in kept.items()
            if amendment.until_ms > self._clock.now_ms()
        }

    @contextmanager
    def watch(self, wake: Callable[[], None]) -> Iterator[None]:
        self._watchers.append(wake)
        try:
            yield
        finally:
            self._watchers.remove(wake)

    def _wake(self) -> None:
        for wake in list(self._watchers):
            wake()


class JsonFileClaim:
    """Messages leased under a token. (A lease that must outlive slow sends needs renewing.)"""

    transaction = None

    def __init__(self, store: JsonFileStore, token: str, messages: list[StoredMessage]) -> None:
        self.messages = messages
        self._store = store
        self._token = token

    def attempt(self) -> AbstractContextManager[None]:
        raise ConfigurationError("a JSON file has no transaction to attempt anything in")

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        with self._store._rows() as rows:
            return [self._mine(rows, i) and rows.pop(i) is not None for i in message_ids]

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        return self._hold(message_ids, retry_after_seconds, failed=1)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        return self._hold(message_ids, seconds, failed=0)

    def _hold(self, message_ids: Sequence[str], seconds: float, *, failed: int) -> list[bool]:
        until_ms = self._store._clock.now_ms() + round(seconds * 1000)
        with self._store._rows() as rows:
            mine = [self._mine(rows, i) for i in message_ids]
            for i in (i for i, ours in zip(message_ids, mine, strict=True) if ours):
                failures = rows[i]["failures"] + failed
                rows[i].update(failures=failures, held_until_ms=until_ms, claim=None)
            return mine

    def _mine(self, rows: Rows, message_id: str) -> bool:
        return message_id in rows and rows[message_id]["claim"] == self._token


def _by_due(rows: Rows) -> list[str]:
    return sorted(rows, key=lambda i: (rows[i]["due_ms"], i))


def _message(message_id: str, row: dict[str, Any]) -> StoredMessage:
    body = base64.b64decode(row["body"])
    return from_store(
        message_id, row["destination"], row["due_ms"], body, row["headers"], row["failures"]
    )
