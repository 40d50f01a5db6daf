"""Delayed messages, an outbox and a ledger in memory, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sqsdelay.core.clock import Clock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import QueueUnavailable
from sqsdelay.ledger.events import Event
from sqsdelay.ports.queues import Failure
from sqsdelay.stores.shared import DEFAULT_LEASE_SECONDS
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore


class InMemoryStore(SqliteStore):
    """A `DelayedMessageStore` without a file: the SQLite store, in memory; leases end on ``clock``.

    Args:
        clock: moved by the test.
        lease_seconds: how long an abandoned claim holds its messages.
    """

    def __init__(self, clock: Clock, *, lease_seconds: float = DEFAULT_LEASE_SECONDS) -> None:
        super().__init__(":memory:", endpoint="memory", clock=clock, lease_seconds=lease_seconds)
        self.set_up()


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
