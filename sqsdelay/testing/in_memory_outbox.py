"""An outbox that keeps what it was given, and fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sqsdelay.core.clock import Clock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.ports.queues import Failure


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
            failures = [self.fail(message) for message in messages]
            self.sent += [m for m, f in zip(messages, failures, strict=True) if f is None]
            return failures

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        with self._lock:
            failures = [self.fail_reject(message) for message, _ in messages]
            self.rejected += [m for m, f in zip(messages, failures, strict=True) if f is None]
            return failures
