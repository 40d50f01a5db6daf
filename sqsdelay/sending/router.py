"""Where a message goes first: checked against every limit before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from sqsdelay.core import endpoint as endpoints
from sqsdelay.core import outgoing
from sqsdelay.core.coalescing import checked_linger
from sqsdelay.core.delay import check_hop, checked_max_delay, seconds_until, too_far
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import (
    DELAY_SECONDS,
    MESSAGE_ID,
    CheckedMessage,
    OutgoingMessage,
    Route,
    check_limits,
    string,
)
from sqsdelay.core.received_message import FifoIds
from sqsdelay.core.stored_message import StoredMessage, as_stored
from sqsdelay.errors import (
    ConfigurationError,
    DelayQueueMissing,
    DelayTooLong,
    InvalidDelay,
    InvalidSetting,
    QueueMissing,
    QueueUnavailable,
    QueueUnreachable,
    SqsDelayError,
)
from sqsdelay.ledger.events import Ledger
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    DEFAULT_MAX_DELAY_SECONDS,
    MAX_MESSAGE_TIMER_SECONDS,
    MIN_QUEUE_LIMIT_BYTES,
)
from sqsdelay.parking.parking import Parking, ParkingSettings, Stores
from sqsdelay.ports.queues import LargeBodies, Queues, Tracing
from sqsdelay.sending.sizes import SizeLimits

A = TypeVar("A", Endpoint, QueueRef)
T = TypeVar("T")

DEFAULT_CONCURRENCY: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """The settings of a sender; `sqsdelay.DelaySender` says what they mean.

    With a store it is idempotent in any case: it sees what was cancelled or rescheduled.

    Raises:
        ConfigurationError: a setting out of range, or a hop without a delay queue.
    """

    unrestricted: bool = True
    hop_seconds: int = DEFAULT_HOP_SECONDS
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS
    concurrency: int = DEFAULT_CONCURRENCY
    parking: ParkingSettings | None = None
    large_bodies: LargeBodies | None = None
    idempotent: bool = False
    ledger: Ledger | None = None
    linger_ms: float = 0
    tracing: Tracing | None = None
    deadline_seconds: float = math.inf
    begin_within_seconds: float = math.inf

    def __post_init__(self) -> None:
        check_hop(self.hop_seconds)
        checked_max_delay(self.max_delay_seconds)
        checked_linger(self.linger_ms)
        if self.concurrency < 1:
            raise InvalidSetting("use 1 or more", concurrency=self.concurrency)
        if not self.unrestricted and self.hop_seconds != DEFAULT_HOP_SECONDS:
            raise InvalidSetting(
                "with unrestricted=False; without a delay queue there is no hop; leave hop_seconds out",
                hop_seconds=self.hop_seconds,
            )


ALWAYS_PARKED_BYTES: Final = 32 * 1024
"""What every place keeps that this package has; above it the place is asked."""


@dataclass(slots=True)
class ToQueue:
    """A checked message on its way to a queue: which, in which shape, and what to report."""

    queue_url: str
    entry: OutgoingMessage
    route: Route
    message_id: str | None
    due_ms: int
    absolute: bool = False
    named: bool = False
    """Its sender named its id: a message before it may have had the same, and been cancelled."""

    def set_timer(self, now_ms: int) -> None:
        """Update the message timer of an absolute due time: earlier batches took time."""
        if not self.absolute:
            return
        remaining = seconds_until(self.due_ms, now_ms)
        if self.entry.delay_seconds is not None:
            self.entry.delay_seconds = remaining
        elif DELAY_SECONDS in self.entry.attributes:
            self.entry.attributes[DELAY_SECONDS] = string(str(remaining))

    def sent_after(self, amended_ms: int) -> None:
        """Tell the delay consumer that amendments left until then do not apply to this message."""
        deduplication_id = self.entry.deduplication_id or ""
        self.entry.deduplication_id = outgoing.after_amendment(deduplication_id, amended_ms)


@dataclass(slots=True)
class ToStore:
    """A checked message on its way into a store."""

    parking: Parking
    stored: StoredMessage


class Asked:
    """What one call has asked the queue service about its endpoint, errors included: it is not asked again
    per message."""

    def __init__(self) -> None:
        self._answers: dict[Any, Any] = {}

    def once(self, ask: Callable[[A], T], about: A) -> T:
        """The answer to ``ask(about)``, or the error it raised, which is raised again."""
        key = ask, about.name
        if key not in self._answers:
            try:
                self._answers[key] = ask(about)
            except SqsDelayError as error:
                self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, SqsDelayError):
            raise answer
        return cast(T, answer)


class Router:
    """Prepares messages for the route their delay asks for."""

    def __init__(self, queues: Queues, settings: SenderSettings) -> None:
        self._queues = queues
        self._settings = settings
        self.stores = None if settings.parking is None else Stores(settings.parking)
        self._limits = SizeLimits(queues)
        self._checked_hops: set[str] = set()
        self._alone: set[QueueRef] = set()

    def prepare(
        self, endpoint: Endpoint, message: CheckedMessage, asked: Asked
    ) -> ToQueue | ToStore:
        """Choose the route and check the message for it.

        Raises:
            InvalidDelay, InvalidMessage, DelayTooLong, ConfigurationError
            DelayQueueMissing, QueueMissing, QueueUnavailable
        """
        clock = self._queues.broker_clock
        now_ms = self.broker_now(endpoint, asked) if message.due.absolute else clock.now_ms()
        due_ms = message.due.due_ms(now_ms)
        self.check_max_delay(due_ms, now_ms)
        remaining = seconds_until(due_ms, now_ms)
        route = self._route(endpoint, remaining)
        if route is Route.DIRECT:
            return self._direct(endpoint, message, due_ms, remaining, asked)
        if route is not Route.DUE_QUEUE and not self._settings.unrestricted:
            raise DelayTooLong(
                f"delay of {(due_ms - now_ms) / 1000} s exceeds the {MAX_MESSAGE_TIMER_SECONDS} s of "
                "a message timer, and unrestricted=False; shorten it, or use "
                "DelaySender(unrestricted=True) and an endpoint with a delay queue "
                f"({endpoint.delay_queue.name})"
            )
        asked.once(self._check_collision, endpoint)
        if route is Route.DUE_QUEUE:
            return self._through_due_queue(endpoint, message, remaining, asked)
        parked = self._to_store(endpoint, message, asked) if route is Route.STORE else None
        return parked or self._through_delay_queue(endpoint, message, asked)

    def _to_store(
        self, endpoint: Endpoint, message: CheckedMessage, asked: Asked
    ) -> ToStore | None:
        """None where the store cannot keep a message of this size: it hops."""
        parking = self._parking(endpoint)
        latest_ms = self.broker_latest(endpoint, asked)
        stored = as_stored(message, endpoint.address, now_ms=latest_ms)
        if parking is None or parking.store.too_large(stored):
            return None
        self._check_arrival(endpoint, message)
        return ToStore(parking, stored)

    def _route(self, endpoint: Endpoint, remaining: int) -> Route:
        if remaining <= self._settings.hop_seconds:
            return Route.DUE_QUEUE if endpoint.fifo and remaining > 0 else Route.DIRECT
        parking = self._settings.parking
        parked = parking is not None and remaining > parking.after_seconds
        return Route.STORE if parked else Route.DELAY_QUEUE

    def expected_route(self, endpoint: Endpoint, message: CheckedMessage) -> Route:
        """Where a message will go first, as far as can be told without asking anybody."""
        now_ms = self._queues.broker_clock.now_ms()
        return self._route(endpoint, seconds_until(message.due.due_ms(now_ms), now_ms))

    def check_max_delay(self, due_ms: int, now_ms: int) -> None:
        """Refuse what the delay consumer would send to the error queue.

        Raises:
            InvalidDelay
        """
        if problem := too_far(due_ms, now_ms, self._settings.max_delay_seconds):
            raise InvalidDelay(problem)

    def broker_now(self, endpoint: Endpoint, asked: Asked) -> int:
        """The broker's now, for an absolute due time; SQS is asked if no recent answer had it."""
        clock = self._queues.broker_clock
        proven = clock.proven_ms()
        if proven is not None:
            return proven
        asked.once(self._learn_time, endpoint)
        return clock.now_ms()

    def _learn_time(self, endpoint: Endpoint) -> None:
        try:
            self._queues.synchronise(endpoint.queue)
        except QueueUnavailable:
            # A refusal is dated, too: to send one need not be allowed to ask for a queue's URL.
            if not self._queues.broker_clock.synchronised:
                raise

    def broker_latest(self, endpoint: Endpoint, asked: Asked) -> int:
        """What a relative delay counts from that waits in a store, so that it is never early."""
        self.broker_now(endpoint, asked)
        return self._queues.broker_clock.latest_ms()

    def _direct(
        self, endpoint: Endpoint, message: CheckedMessage, due_ms: int, remaining: int, asked: Asked
    ) -> ToQueue:
        """Straight to the destination; a message timer goes with it, but to a FIFO queue, which takes
        none. It carries an id only if its sender named one."""
        named = message.message_id
        added = {} if named is None else {MESSAGE_ID: string(named)}
        timed = message.due.given and not endpoint.fifo
        entry = OutgoingMessage(
            body=message.body,
            attributes={**message.attributes, **added},
            size=check_limits(message.body, message.attributes, added),
            delay_seconds=remaining if timed else None,
            group_id=message.group_id,
            deduplication_id=message.ids(due_ms).deduplication_id if endpoint.fifo else None,
            trace_header=message.trace_header,
        )
        queue_url = asked.once(self._queues.url, endpoint.queue)
        return ToQueue(queue_url, entry, Route.DIRECT, named, due_ms, message.due.absolute)

    def _through_due_queue(
        self, endpoint: Endpoint, message: CheckedMessage, remaining: int, asked: Asked
    ) -> ToQueue:
        """A FIFO queue takes no message timers: the due queue before it does."""
        # The due time orders the messages of a group: it must be the broker's, as near as can be.
        # That is up to a second behind, so the timer of a relative delay is the whole delay.
        due_ms = message.due.due_ms(self.broker_now(endpoint, asked))
        message_id, deduplication_id = message.ids(due_ms)
        ids = FifoIds(message.group_id or "", deduplication_id or "")
        entry = outgoing.for_due_queue(
            message.body,
            message.attributes,
            ids,
            message_id=message_id,
            due_ms=due_ms,
            delay_seconds=remaining,
            trace_header=message.trace_header,
        )
        added = ids.attributes() | outgoing.identity(message_id, due_ms, waits=True)
        check_limits(message.body, message.attributes, added)
        self._check_arrival(endpoint, message)
        queue_url = asked.once(self._queues.url, endpoint.due_queue)
        return ToQueue(queue_url, entry, Route.DUE_QUEUE, message_id, due_ms, message.due.absolute)

    def _parking(self, endpoint: Endpoint) -> Parking | None:
        return None if self.stores is None else self.stores.parking(endpoint.name)

    def limit(self, endpoint: Endpoint, message: CheckedMessage, *, size: int) -> int:
        """The least that the queues on the message's way take, bytes.

        Args:
            size: the message's own.
        """
        queues = endpoint.queues[:-1] if message.due.given else (endpoint.queue,)
        return min(self._limits.of(queue, size=size) for queue in queues)

    def too_large_to_park(self, endpoint: Endpoint, message: CheckedMessage) -> bool:
        """Whether the message would be parked, were it smaller."""
        parking = self._parking(endpoint)
        if parking is None or message.size <= ALWAYS_PARKED_BYTES:
            return False
        now_ms = self._queues.broker_clock.now_ms()
        if seconds_until(message.due.due_ms(now_ms), now_ms) <= parking.after_seconds:
            return False
        return parking.store.too_large(as_stored(message, endpoint.address, now_ms=now_ms))

    def _check_arrival(self, endpoint: Endpoint, message: CheckedMessage) -> None:
        """Refuse now, not when the message is due. What sqsdelay adds does not count: it is left out
        rather than the message refused."""
        own = message.size
        if own <= MIN_QUEUE_LIMIT_BYTES:
            return  # No queue has a lower limit.
        for queue in {endpoint.hand_over_queue, endpoint.queue}:
            self._limits.check(queue, own)

    def _check_collision(self, endpoint: Endpoint) -> None:
        """Once for each endpoint: a delayed message must not reach the other one's destination."""
        if endpoint.queue not in self._alone:
            refuse_collision(self._queues, endpoint)
            self._alone.add(endpoint.queue)

    def _through_delay_queue(
        self, endpoint: Endpoint, message: CheckedMessage, asked: Asked
    ) -> ToQueue:
        # Now that the queue service has been asked about the endpoint, a first send knows its clock, too,
        # and the id that is made up tells the due time by it.
        now_ms = self._queues.broker_clock.now_ms()
        due_ms = message.due.due_ms(now_ms)
        message_id, _ = ids = message.ids(due_ms)
        idempotent = self._settings.idempotent or self._settings.parking is not None
        entry = outgoing.first_copy(
            message, ids, remaining_ms=due_ms - now_ms, due_ms=due_ms, idempotent=idempotent
        )
        queue_url = asked.once(self._delay_queue_url, endpoint)
        self._check_arrival(endpoint, message)
        if entry.size > MIN_QUEUE_LIMIT_BYTES:
            self._limits.check(endpoint.delay_queue, entry.size)
        return ToQueue(
            queue_url,
            entry,
            Route.DELAY_QUEUE,
            message_id,
            due_ms,
            absolute=message.due.absolute,
            named=message.message_id is not None,
        )

    def _delay_queue_url(self, endpoint: Endpoint) -> str:
        hop = self._settings.hop_seconds
        shorter = hop < MAX_MESSAGE_TIMER_SECONDS
        try:
            queue_url = self._queues.url(endpoint.delay_queue)
        except QueueMissing as error:
            option = f" --hop {hop}" if shorter else ""
            raise DelayQueueMissing(
                f"queue {endpoint.delay_queue.name} does not exist, so endpoint {endpoint.name} accepts "
                f"no delays above {hop} s; create it with: sqsdelay endpoint create {endpoint.name}{option}"
            ) from error
        if shorter and queue_url not in self._checked_hops:
            # A hop longer than what the sender counts on would make every message late.
            deployed = int(self._queues.attributes(queue_url).get("DelaySeconds", "0"))
            if deployed > hop:
                raise ConfigurationError(
                    f"is too short for {endpoint.delay_queue.name}, which holds messages for {deployed} s; "
                    f"use {deployed}",
                    hop_seconds=hop,
                )
            self._checked_hops.add(queue_url)
        return queue_url


def refuse_collision(queues: Queues, endpoint: Endpoint) -> None:
    """Raise if another endpoint of the account has the same queues.

    Raises:
        ConfigurationError: it has, with what to do.
        QueueUnreachable
    """
    if problem := collision(queues, endpoint):
        raise ConfigurationError(problem)


def collision(queues: Queues, endpoint: Endpoint) -> str | None:
    """Why the endpoint cannot be, beside another; None when it can, or nobody may tell us."""

    def exists(queue: QueueRef) -> bool:
        try:
            queues.url(queue)
        except QueueUnreachable as error:
            # Nothing else would be answered, either, and each call takes its time. Named for what was asked
            # for: the queues looked for here are often not there.
            raise QueueUnreachable(
                f"queue {endpoint.name} cannot be used now: {error.__cause__}; try again later"
            ) from error.__cause__
        except (QueueMissing, QueueUnavailable):
            # Denied: a policy that names our queues only is no reason to send nothing.
            return False
        return True

    return endpoints.collision(endpoint, exists)
