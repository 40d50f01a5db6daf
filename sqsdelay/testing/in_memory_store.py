"""Delayed messages, an outbox and a ledger in memory, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

from sqsdelay.core import stored_message
from sqsdelay.core.delay import Clock
from sqsdelay.core.stored_message import Amendment, StoredMessage, latest_amendments
from sqsdelay.errors import ConfigurationError, QueueUnavailable
from sqsdelay.ledger.events import Event
from sqsdelay.ports.queues import Failure
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode
from sqsdelay.stores.dispatchers import Wakes
from sqsdelay.stores.ids import page_bounds


@dataclass(slots=True)
class _Row:
    message: StoredMessage
    held_until_ms: int = 0
    leased_until_ms: int = 0
    claim: object = None

    def leased(self, now_ms: int) -> bool:
        return self.leased_until_ms > now_ms

    def held(self, now_ms: int) -> bool:
        return self.held_until_ms > now_ms or self.leased(now_ms)


class InMemoryStore(Wakes, DelayedMessageStore):
    """The `DelayedMessageStore` protocol without a database; leases end on ``clock``.

    Args:
        clock: moved by the test.
        lease_seconds: how long an abandoned claim holds its messages.
    """

    poll_seconds: float = 0.5
    modes: Final = frozenset({TransactionMode.AT_LEAST_ONCE})

    def __init__(self, clock: Clock, *, lease_seconds: float = 60) -> None:
        self._clock = clock
        self._lease_ms = round(lease_seconds * 1000)
        self._rows: dict[str, _Row] = {}
        self._amendments: dict[str, Amendment] = {}
        super().__init__()
        self._lock = threading.RLock()

    def set_up(self) -> None:
        """There is nothing to create."""

    def initialize(self, mode: TransactionMode) -> None:
        if mode not in self.modes:
            raise ConfigurationError(
                f"a store in memory cannot give {mode}: it has no transactions"
            )

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        if transaction is not None:
            raise ConfigurationError("a store in memory takes no transaction=; leave it out")
        with self._lock:
            new = []
            for message in messages:
                new.append(message.message_id not in self._rows)
                self._rows.setdefault(message.message_id, _Row(message))
        self._wake()
        return new

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[Claim]:
        now_ms = self._clock.now_ms()
        with self._lock:
            due = [row for row in self._sorted() if row.message.due_ms <= due_by_ms]
            wanted = [row for row in due if row.message.destination not in except_destinations]
            free = [row for row in wanted if not row.held(now_ms)]
            # What failed before goes behind what is new.
            rows = sorted(free, key=lambda row: row.held_until_ms > 0)[:limit]
            claim = self._leased(rows)
        with claim:
            yield claim

    @contextmanager
    def claim_ids(self, message_ids: Sequence[str]) -> Iterator[Claim]:
        with self._lock:
            rows = {i: self._free(i) for i in message_ids if i in self._rows}
            claim = self._leased([row for row in rows.values() if row is not None])
            claim.busy = {message_id for message_id, row in rows.items() if row is None}
        with claim:
            yield claim

    def _leased(self, rows: Sequence[_Row]) -> _InMemoryClaim:
        claim = _InMemoryClaim(self, [row.message for row in rows])
        claim.again = {row.message.message_id for row in rows if row.held_until_ms}
        for row in rows:
            row.claim, row.leased_until_ms = claim, self._clock.now_ms() + self._lease_ms
        return claim

    def _sorted(self) -> list[_Row]:
        rows = self._rows.values()
        return sorted(rows, key=lambda row: (row.message.due_ms, row.message.message_id))

    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        now_ms = self._clock.now_ms()
        with self._lock:
            free = [row.message for row in self._rows.values() if not row.held(now_ms)]
        return min(
            (m.due_ms for m in free if m.destination not in except_destinations), default=None
        )

    def pending_count(self) -> int:
        return len(self._rows)

    def pending(
        self,
        limit: int,
        *,
        after: tuple[int, str] | None = None,
        due_from_ms: int | None = None,
        due_before_ms: int | None = None,
    ) -> list[StoredMessage]:
        due_ms, after_id, end_ms = page_bounds(after, due_from_ms, due_before_ms)
        with self._lock:
            messages = [row.message for row in self._sorted()]
        start = due_ms, after_id
        return [m for m in messages if start < (m.due_ms, m.message_id) < (end_ms, "")][:limit]

    def find(self, message_id: str) -> StoredMessage | None:
        row = self._rows.get(message_id)
        return None if row is None else row.message

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        with self._lock:
            return [self._cancel(message_id) for message_id in message_ids]

    def _cancel(self, message_id: str) -> bool:
        if self._free(message_id) is None:
            return False
        del self._rows[message_id]
        return True

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        stored_message.check_stored_due(due_ms)
        with self._lock:
            row = self._free(message_id)
            if row is None:
                return False
            row.message, row.held_until_ms = replace(row.message, due_ms=due_ms), 0
            row.claim, row.leased_until_ms = None, 0
        self._wake()
        return True

    def _free(self, message_id: str) -> _Row | None:
        row = self._rows.get(message_id)
        return None if row is not None and row.leased(self._clock.now_ms()) else row

    def amend(self, amendments: Sequence[Amendment]) -> None:
        with self._lock:
            before = self.amendments([amendment.message_id for amendment in amendments])
            self._amendments |= latest_amendments([*before.values(), *amendments])

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        now_ms = self._clock.now_ms()
        kept = {i: self._amendments[i] for i in message_ids if i in self._amendments}
        return {i: amendment for i, amendment in kept.items() if amendment.until_ms > now_ms}

    def close(self) -> None:
        """There is nothing to let go of."""


class _InMemoryClaim:
    transaction: Final = None

    def __init__(self, store: InMemoryStore, messages: list[StoredMessage]) -> None:
        self.messages = messages
        self.again: set[str] = set()
        self.busy: set[str] = set()
        self._store = store

    def __enter__(self) -> None:
        """It was made under the store's lock."""

    def __exit__(self, *_: object) -> None:
        with self._store._lock:
            for message in self.messages:
                row = self._mine(message.message_id)
                if row is not None:
                    row.claim, row.leased_until_ms = None, 0

    def attempt(self) -> AbstractContextManager[None]:
        return nullcontext()

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        with self._store._lock:
            rows = [self._mine(message_id) for message_id in message_ids]
            for row in rows:
                if row is not None:
                    del self._store._rows[row.message.message_id]
            return [row is not None for row in rows]

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        return self._hold(message_ids, retry_after_seconds, failed=1)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        return self._hold(message_ids, seconds, failed=0)

    def _hold(self, message_ids: Sequence[str], seconds: float, *, failed: int) -> list[bool]:
        until_ms = self._store._clock.now_ms() + round(seconds * 1000)
        with self._store._lock:
            rows = [self._mine(message_id) for message_id in message_ids]
            for row in rows:
                if row is not None:
                    row.message = replace(row.message, failures=row.message.failures + failed)
                    row.claim, row.leased_until_ms, row.held_until_ms = None, 0, until_ms
            return [row is not None for row in rows]

    def _mine(self, message_id: str) -> _Row | None:
        row = self._store._rows.get(message_id)
        return row if row is not None and row.claim is self else None


class InMemoryOutbox:
    """The `Outbox` port in memory.

    Args:
        clock: the destination's clock.
        max_ahead_seconds: the transport's longest message timer.

    Attributes:
        sent: what was sent, in order.
        rejected: what went to the error queue, with its reason.
        fail: asked before each send; what it returns fails the message.
        fail_reject: the same for the error queue.
    """

    def __init__(self, clock: Clock, *, max_ahead_seconds: int = 0) -> None:
        self._clock = clock
        self._max_ahead_seconds = max_ahead_seconds
        self._lock = threading.Lock()
        self.sent: list[StoredMessage] = []
        self.rejected: list[tuple[StoredMessage, str]] = []
        self.fail: Callable[[StoredMessage], Failure | None] = lambda _: None
        self.fail_reject: Callable[[StoredMessage], Failure | None] = lambda _: None

    @property
    def max_ahead_seconds(self) -> int:
        return self._max_ahead_seconds

    def check(self) -> None:
        """Always ready."""

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def send(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        with self._lock:
            failures = [self.fail(message) or self._too_early(message) for message in messages]
            self.sent += [m for m, f in zip(messages, failures, strict=True) if f is None]
            return failures

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        with self._lock:
            failures = [self.fail_reject(message) for message, _ in messages]
            self.rejected += [m for m, f in zip(messages, failures, strict=True) if f is None]
            return failures

    def _too_early(self, message: StoredMessage) -> Failure | None:
        """What the timer cannot hold is kept for later."""
        ahead_ms = message.due_ms - self.now_ms()
        if ahead_ms <= self._max_ahead_seconds * 1000:
            return None
        text = f"message {message.message_id} is due in {ahead_ms} ms; it is released later"
        return Failure("TooEarly", QueueUnavailable(text), transient=True, outage=True)


class InMemoryLedger:
    """The `Ledger` protocol in memory.

    Attributes:
        events: what was recorded, in order.
        fail: raised instead of recording, unless it is None.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.fail: Exception | None = None
        self._lock = threading.Lock()

    def record(self, events: Sequence[Event]) -> None:
        with self._lock:
            if self.fail is not None:
                raise self.fail
            self.events += events
