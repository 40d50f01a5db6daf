"""What the three tasks of a timeout manager share: settings, parts, and settling deliveries."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from sqsdelay.core.clock import Clock
from sqsdelay.core.delay import Reject
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.circuit_breakers import CircuitBreaker, report
from sqsdelay.dispatching.destinations import Destinations
from sqsdelay.errors import CriticalError, InvalidSetting, StoreError
from sqsdelay.limits import MAX_RECEIVE_WAIT_SECONDS, STOP_SECONDS
from sqsdelay.ports.queues import Delivery, Failure, TimeoutTransport
from sqsdelay.ports.stores import DelayedMessageStore

DEFAULT_OUTAGE_SECONDS: Final = 120.0
"""NServiceBus raises a critical error when its timeout storage has failed for two minutes."""

DEFAULT_ANNOUNCE_AGAIN_SECONDS: Final = 300.0

DEFAULT_WAIT_SECONDS: Final = STOP_SECONDS
"""A stop waits for the poll in hand, since what SQS hands out to a process that has ended comes back three
minutes late. Two receivers so ask 1.3 million times a month (0.52 USD in us-east-1)."""

LOST_AFTER: Final = 12
"""An id that was announced and not seen for so many times `announce_again_seconds` is announced again:
after an hour by default. A queue that was purged loses no message."""

DEFAULT_RETRIES: Final = 7
"""After 1, 2, 4 … 60 s, so about two minutes: as long as the storage may fail. The seeds name no number."""


class TimeoutStatus(StrEnum):
    """What became of messages."""

    STORED = "stored"
    SENT_ON = "sent-on"
    """Due when it arrived."""
    ANNOUNCED = "announced"
    DISPATCHED = "dispatched"
    DROPPED = "dropped"
    """Announced, but no longer there, or moved to a later due time."""
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """Waits and limits.

    Args:
        outage_seconds: how long the storage may fail before that is a critical error.
        announce_again_seconds: a message that another process announced but has not dispatched
            for this long is announced again.
        number_of_retries: further attempts on a message that its destination refused, or whose
            destination does not exist, before it goes to the error queue; counted in the process.
            An outage of the destination counts as no attempt.
        batch_size: due messages announced at once.
        poll_seconds: the longest sleep between looks for due messages; the store's own if left out.
        wait_seconds: long poll of the receivers, 0 to 20; a stop waits for the one in hand.

    Raises:
        ConfigurationError: a value out of range.
    """

    outage_seconds: float = DEFAULT_OUTAGE_SECONDS
    announce_again_seconds: float = DEFAULT_ANNOUNCE_AGAIN_SECONDS
    number_of_retries: int = DEFAULT_RETRIES
    batch_size: int = 100
    poll_seconds: float | None = None
    wait_seconds: int = DEFAULT_WAIT_SECONDS

    def __post_init__(self) -> None:
        for name in ("outage_seconds", "announce_again_seconds", "batch_size", "poll_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidSetting(f"{name}={value}; use more than 0")
        if self.number_of_retries < 0:
            raise InvalidSetting(f"number_of_retries={self.number_of_retries}; use 0 or more")
        if not 0 <= self.wait_seconds <= MAX_RECEIVE_WAIT_SECONDS:
            raise InvalidSetting(
                f"wait_seconds={self.wait_seconds}; use 0 to {MAX_RECEIVE_WAIT_SECONDS}"
            )


logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 2
"""Between attempts while storage, queues or a destination cannot be reached."""

T = TypeVar("T")
Delivered = tuple[Delivery[Any] | None, StoredMessage]
"""A message and what brought it; None where that was settled before, and the message is in the store."""

Refused = tuple[Delivery[Any] | None, StoredMessage, str]


_REMEMBERED: Final = 100_000


class Announcements:
    """What one process has announced, or seen announced, and not finished. Thread-safe.

    Beyond 100,000, the oldest are forgotten and may be announced again.

    Args:
        clock: its monotonic time is used.
        lost_after_seconds: after this long unseen, an announcement counts as lost.
    """

    def __init__(self, clock: Clock, *, lost_after_seconds: float) -> None:
        self._clock = clock
        self._lost_after_seconds = lost_after_seconds
        self._outstanding: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, messages: Iterable[StoredMessage]) -> None:
        """They have just been announced, or seen."""
        now = self._clock.monotonic()
        with self._lock:
            for message in messages:
                self._outstanding[message.message_id] = (message.due_ms, now)
                self._outstanding.move_to_end(message.message_id)
            while len(self._outstanding) > _REMEMBERED:
                self._outstanding.popitem(last=False)

    def remove(self, message_ids: Iterable[str]) -> None:
        """They are finished, or must be announced again."""
        with self._lock:
            for message_id in message_ids:
                self._outstanding.pop(message_id, None)

    def missing(self, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Those to announce. One that was rescheduled is announced again."""
        now = self._clock.monotonic()
        with self._lock:
            known = {m.message_id: self._outstanding.get(m.message_id) for m in messages}
        return [m for m in messages if not self._waits(m, known[m.message_id], now)]

    def _waits(self, message: StoredMessage, known: tuple[int, float] | None, now: float) -> bool:
        if known is None:
            return False
        due_ms, seen_at = known
        return due_ms == message.due_ms and now - seen_at < self._lost_after_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutParts:
    """What a timeout manager is made of; see `TimeoutManager`."""

    store: DelayedMessageStore
    transport: TimeoutTransport
    settings: TimeoutSettings
    clock: Clock
    destinations: Destinations
    announcements: Announcements
    on_critical: Callable[[CriticalError], None] | None
    on_done: Callable[[TimeoutStatus, Sequence[str]], None] | None


class TimeoutTask:
    """One task, with circuit breakers of its own on the storage.

    Reading may work while writing fails, and would disarm a common breaker.
    """

    def __init__(self, parts: TimeoutParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._transport = parts.transport

    def _breaker(self, what: str) -> CircuitBreaker:
        name = f"timeout storage ({what})"
        return CircuitBreaker(name, self._parts.settings.outage_seconds, self._parts.clock)

    @contextmanager
    def _storage(self, breaker: CircuitBreaker) -> Iterator[None]:
        """Use the storage; once it has failed for too long, raise the critical error instead of its own."""
        try:
            yield
        except StoreError as error:
            report(breaker.failed(error), self._parts.on_critical)
            raise
        breaker.succeeded()

    def _readable(self, received: Sequence[Delivery[T]]) -> list[tuple[Delivery[T], T]]:
        """Deliveries with their contents; what cannot be read goes to the error queue."""
        unreadable = [(d, d.content.reason) for d in received if isinstance(d.content, Reject)]
        deliveries = [delivery for delivery, _ in unreadable]
        outcomes = self._transport.reject_unreadable(deliveries) if deliveries else []
        for (delivery, reason), failure in zip(unreadable, outcomes, strict=True):
            if failure is None:
                logger.warning("rejected because it cannot be read: %s", one_line(reason))
                self._settle([delivery])
            else:
                logger.error("not rejected, trying again: %s", one_line(failure.error))
                self._give_back([delivery], seconds=PAUSE_SECONDS)
        return [(d, d.content) for d in received if not isinstance(d.content, Reject)]

    def _sent(
        self, given: Sequence[Delivered]
    ) -> tuple[list[Delivered], list[tuple[Delivered, Failure]]]:
        """Send: what was sent, and what was not, and why."""
        sent: list[Delivered] = []
        failed: list[tuple[Delivered, Failure]] = []
        messages = [message for _, message in given]
        for each, outcome in zip(
            given, self._parts.destinations.send(self._transport, messages), strict=True
        ):
            if isinstance(outcome, Failure):
                failed.append((each, outcome))
            else:
                sent.append(each)
        return sent, failed

    def _rejected(self, refused: Sequence[Refused]) -> tuple[list[Delivered], list[Delivered]]:
        """Send to the error queue: what it has, and what it could not be given."""
        rejected: list[Delivered] = []
        left: list[Delivered] = []
        entries = [(message, reason) for _, message, reason in refused]
        outcomes = self._transport.reject(entries) if entries else []
        for (delivery, message, reason), failure in zip(refused, outcomes, strict=True):
            if failure is None:
                logger.warning("rejected %s: %s", one_line(message.message_id), one_line(reason))
                rejected.append((delivery, message))
            else:
                logger.error(
                    "%s not rejected (%s): %s",
                    one_line(message.message_id),
                    one_line(reason),
                    one_line(failure.error),
                )
                left.append((delivery, message))
        return rejected, left

    def _done(self, status: TimeoutStatus, settled: Sequence[Delivered]) -> None:
        if settled:
            self._settle(delivery for delivery, _ in settled)
            self._tell(status, [message.message_id for _, message in settled])

    def _tell(self, status: TimeoutStatus, message_ids: Sequence[str]) -> None:
        if message_ids and self._parts.on_done is not None:
            self._parts.on_done(status, message_ids)

    def _settle(self, deliveries: Iterable[Delivery[Any] | None]) -> None:
        brought = [delivery for delivery in deliveries if delivery is not None]
        if brought:
            self._transport.settle(brought)

    def _give_back(self, deliveries: Iterable[Delivery[Any] | None], *, seconds: int) -> None:
        brought = [delivery for delivery in deliveries if delivery is not None]
        if brought:
            self._transport.give_back(brought, seconds=seconds)

    def _log_retry(self, message: StoredMessage, failure: Failure, seconds: float) -> None:
        logger.warning(
            "%s to %s: trying again in %d s: %s",
            one_line(message.message_id),
            one_line(message.destination),
            seconds,
            one_line(failure.error),
        )
