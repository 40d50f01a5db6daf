"""Threads that send one message each share requests: the first whose group is complete sends for all."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from sqsdelay.core.checked_message import CheckedMessage
from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import Unconfirmed
from sqsdelay.sending.batches import BatchSender, SendResult
from sqsdelay.sending.coalescing import Coalescer, Waiting, checked_linger


@dataclass(eq=False, slots=True)
class _Call:
    """A thread's call, and what it waits for: its result, or its turn to send."""

    endpoint: Endpoint
    message: CheckedMessage
    result: SendResult | None = None
    woken: threading.Event = field(default_factory=threading.Event)


class SharedSends:
    """Sends for the threads that call it, by these threads: there are none in the background, so there
    is nothing to close. Thread-safe.

    Args:
        batches: what sends.
        linger_ms: how long a message waits for others.
        lanes: requests in flight.
        clock: the local clock.
    """

    def __init__(
        self, batches: BatchSender, *, linger_ms: float, lanes: int, clock: Clock | None = None
    ) -> None:
        self._batches = batches
        self._clock = clock or SystemClock()
        self._linger = checked_linger(linger_ms)
        self._coalescer = Coalescer[_Call](linger_seconds=self._linger, lanes=lanes)
        self._lock = threading.Lock()

    def send(self, endpoint: Endpoint, message: CheckedMessage) -> SendResult:
        """Send a message with others; its own result."""
        route, most = self._batches.together(endpoint, message)
        call, size = _Call(endpoint, message), message.size
        key = (endpoint, route)
        with self._lock:
            now = self._clock.monotonic()
            waiting = self._coalescer.add(key, call, size=size, most=most, now=now)
        try:
            return self._served(waiting)
        finally:
            # Interrupted while it waited: it does not leave, and another takes the turn it may have had.
            with self._lock:
                if self._coalescer.withdraw(waiting):
                    self._give_turn()

    def _served(self, waiting: Waiting[_Call]) -> SendResult:
        call = waiting.item
        while call.result is None:
            call.woken.clear()
            with self._lock:
                now = self._clock.monotonic()
                # Only of its own queue: another's may not answer.
                group = self._coalescer.take(now, waiting.key)
                if group:
                    self._give_turn()
            if group:
                self._send(group)
            elif call.result is None:
                left = waiting.since + self._linger - now
                # Once it has lingered, who gives back a lane gives it its turn.
                call.woken.wait(left if left > 0 else None)
        return call.result

    def _send(self, group: list[Waiting[_Call]]) -> None:
        calls = [waiting.item for waiting in group]
        try:
            results = self._batches.send(calls[0].endpoint, [call.message for call in calls])
        except BaseException as error:
            unknown = Unconfirmed(
                "the thread that sent this message with others was interrupted "
                f"({type(error).__name__}); it may or may not have been sent"
            )
            results = [SendResult(call.message.message_id, error=unknown) for call in calls]
            raise
        finally:
            for call, result in zip(calls, results, strict=True):
                call.result = result
                call.woken.set()
            with self._lock:
                self._coalescer.done(group)
                self._give_turn()

    def _give_turn(self) -> None:
        following = self._coalescer.first(self._clock.monotonic())
        if following is not None:
            following.item.woken.set()
