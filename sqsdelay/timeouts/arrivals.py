"""What arrives at a timeout manager, on its way into the store; settings, and what all its tasks share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from sqsdelay.core.clock import Clock
from sqsdelay.core.delay import Reject
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.circuit_breakers import CircuitBreaker
from sqsdelay.dispatching.destinations import AtLeastOnce
from sqsdelay.dispatching.dispatcher import DEFAULT_BATCH
from sqsdelay.dispatching.settlement import Round, Settlement, ids_of
from sqsdelay.errors import CriticalError, InvalidMessage, InvalidSetting, StoreError
from sqsdelay.limits import MAX_RECEIVE_WAIT_SECONDS, STOP_SECONDS
from sqsdelay.ports.queues import Delivery, Failure, TimeoutTransport
from sqsdelay.ports.stores import DelayedMessageStore

logger = logging.getLogger(__name__)

DEFAULT_OUTAGE_SECONDS: Final = 120.0
"""NServiceBus raises a critical error when its timeout storage has failed for two minutes."""

DEFAULT_ANNOUNCE_AGAIN_SECONDS: Final = 300.0

DEFAULT_WAIT_SECONDS: Final = STOP_SECONDS
"""A stop waits for the poll in hand, since what SQS hands out to a process that has ended comes back three
minutes late. Two receivers so ask 1.3 million times a month (0.52 USD in us-east-1)."""

DEFAULT_RETRIES: Final = 7
"""After 1, 2, 4 … 60 s, so about two minutes: as long as the storage may fail. The seeds name no number."""

PAUSE_SECONDS: Final = 2
"""Between attempts while storage or queues cannot be reached."""


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
        announce_again_seconds: a message that was announced but has not been dispatched for this
            long is dispatched straight from the store.
        number_of_retries: further attempts on a message that its destination refused, or whose
            destination does not exist, before it goes to the error queue; counted in the store.
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
    batch_size: int = DEFAULT_BATCH
    poll_seconds: float | None = None
    wait_seconds: int = DEFAULT_WAIT_SECONDS

    def __post_init__(self) -> None:
        for name in ("outage_seconds", "announce_again_seconds", "batch_size", "poll_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidSetting("use more than 0", **{name: value})
        if self.number_of_retries < 0:
            raise InvalidSetting("use 0 or more", number_of_retries=self.number_of_retries)
        if not 0 <= self.wait_seconds <= MAX_RECEIVE_WAIT_SECONDS:
            raise InvalidSetting(
                f"use 0 to {MAX_RECEIVE_WAIT_SECONDS}", wait_seconds=self.wait_seconds
            )


T = TypeVar("T")


@dataclass(eq=False)
class TimeoutParts:
    """What the tasks share, and settling what they receive; see `TimeoutManager` for the arguments."""

    store: DelayedMessageStore
    transport: TimeoutTransport
    settings: TimeoutSettings
    on_critical: Callable[[CriticalError], None] | None
    on_done: Callable[[TimeoutStatus, Sequence[str]], None] | None
    clock: Clock

    def __post_init__(self) -> None:
        self.destination = AtLeastOnce(self.transport, self.clock)
        # Of all threads: without a ledger it remembers nothing from one claim to the next.
        self.settlement = Settlement(
            store=self.store,
            destination=self.destination,
            batch_size=self.settings.batch_size,
            number_of_retries=self.settings.number_of_retries,
        )
        self.look = threading.Event()
        """Set when the announcer should look into the store."""

    def breaker(self, what: str) -> CircuitBreaker:
        """A circuit breaker for one use of the storage: reading may work while writing fails."""
        name = f"timeout storage ({what})"
        return CircuitBreaker(name, self.settings.outage_seconds, self.clock, self.on_critical)

    def tell(self, status: TimeoutStatus, message_ids: Sequence[str]) -> None:
        """Report what became of messages."""
        if message_ids and self.on_done is not None:
            self.on_done(status, message_ids)

    def tell_of(self, done: Round) -> None:
        """Report what a claim dispatched and rejected."""
        self.tell(TimeoutStatus.DISPATCHED, ids_of(done.released))
        self.tell(TimeoutStatus.REJECTED, ids_of(done.rejected))

    def readable(self, received: Sequence[Delivery[T]]) -> list[tuple[Delivery[T], T]]:
        """Deliveries with their contents; what cannot be read goes to the error queue."""
        refused = [(d, d.content.reason) for d in received if isinstance(d.content, Reject)]
        if refused:
            self.rejected(refused, self.transport.reject_unreadable([d for d, _ in refused]))
        return [(d, d.content) for d in received if not isinstance(d.content, Reject)]

    def rejected(
        self, refused: Sequence[tuple[Delivery[T], str]], outcomes: Sequence[Failure | None]
    ) -> list[Delivery[T]]:
        """Be done with what the error queue took, and return it; the rest is delivered again."""
        gone: list[Delivery[T]] = []
        back: list[Delivery[T]] = []
        for (delivery, reason), failure in zip(refused, outcomes, strict=True):
            if failure is None:
                logger.warning("rejected: %s", one_line(reason))
                gone.append(delivery)
            else:
                logger.error("not rejected (%s): %s", one_line(reason), one_line(failure.error))
                back.append(delivery)
        self.transport.settle(gone)
        self.transport.give_back(back, seconds=PAUSE_SECONDS)
        return gone


Arrived = tuple[Delivery[StoredMessage], StoredMessage]


class Arrivals:
    """Stores arriving messages."""

    def __init__(self, parts: TimeoutParts) -> None:
        self._parts = parts
        self._storing = parts.breaker("storing")

    def turn(self) -> int:
        """Receive what the queue gives, and store it; what is due already is sent on.

        Returns:
            How many were received.

        Raises:
            StoreError, CriticalError: the storage failed; the messages come back.
            QueueMissing, QueueUnavailable
        """
        parts = self._parts
        received = parts.transport.receive_timeouts(wait_seconds=parts.settings.wait_seconds)
        arrived: list[Arrived] = parts.readable(received)
        now_ms = parts.transport.now_ms()
        keep = [each for each in arrived if each[1].due_ms > now_ms]
        due = [each for each in arrived if each[1].due_ms <= now_ms]
        sent: list[Arrived] = []
        hopeless: list[tuple[Arrived, str]] = []
        outcomes = parts.destination.send([message for _, message in due])
        for each, outcome in zip(due, outcomes, strict=True):
            if not isinstance(outcome, Failure):
                sent.append(each)
            elif outcome.transient:
                # Overdue in the store, it is dispatched as soon as its destination takes it.
                keep.append(each)
            else:
                hopeless.append((each, f"{outcome.code}: {outcome.error}"))
        self._done(TimeoutStatus.SENT_ON, sent)
        self._reject(hopeless)
        self._keep(keep)
        return len(received)

    def _keep(self, arrived: list[Arrived]) -> None:
        if not arrived:
            return
        try:
            too_large = self._stored([message for _, message in arrived])
        except StoreError as error:
            self._parts.transport.give_back([d for d, _ in arrived], seconds=PAUSE_SECONDS)
            self._storing.failed(error)
            raise
        self._storing.succeeded()
        self._done(TimeoutStatus.STORED, [a for a in arrived if a[1].message_id not in too_large])
        refused = [(a, too_large.get(a[1].message_id)) for a in arrived]
        self._reject([(each, reason) for each, reason in refused if reason is not None])

    def _stored(self, messages: list[StoredMessage]) -> dict[str, str]:
        """Store; by message id, why the store can never keep a message (it is too large)."""
        try:
            self._parts.store.store(messages)
        except InvalidMessage as error:
            if len(messages) == 1:
                return {messages[0].message_id: f"{type(error).__name__}: {error}"}
            alone = [self._stored([message]) for message in messages]
            return {message_id: why for each in alone for message_id, why in each.items()}
        return {}

    def _reject(self, refused: Sequence[tuple[Arrived, str]]) -> None:
        if refused:
            outcomes = self._parts.transport.reject([(m, reason) for (_, m), reason in refused])
            told = [(d, f"message {m.message_id}: {reason}") for (d, m), reason in refused]
            gone = [d.content for d in self._parts.rejected(told, outcomes)]
            ids = ids_of(message for message in gone if isinstance(message, StoredMessage))
            self._parts.tell(TimeoutStatus.REJECTED, ids)

    def _done(self, status: TimeoutStatus, settled: Sequence[Arrived]) -> None:
        self._parts.transport.settle([delivery for delivery, _ in settled])
        self._parts.tell(status, ids_of(message for _, message in settled))
