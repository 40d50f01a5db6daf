"""Where a message goes first: checked against every limit before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from sqsdelay import errors
from sqsdelay.core import endpoint as endpoints
from sqsdelay.core import limits, outgoing
from sqsdelay.core import message as wire
from sqsdelay.core.coalescing import checked_linger
from sqsdelay.core.delay import check_hop, check_range, checked_max_delay, seconds_until, too_far
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import CheckedMessage, Message, OutgoingMessage, Route, check_limits
from sqsdelay.core.received_message import DelayedMessage, FifoIds
from sqsdelay.core.stored_message import StoredMessage, as_stored
from sqsdelay.ledger.events import Ledger
from sqsdelay.parking.parking import Parking, ParkingSettings, Stores
from sqsdelay.ports.queues import LargeBodies, Queues, Tracing
from sqsdelay.sending.sizes import SizeLimits, as_new, stand_in

A = TypeVar("A", Endpoint, QueueRef)
T = TypeVar("T")

DEFAULT_CONCURRENCY: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """The settings of a sender; `sqsdelay.DelaySender` says what they mean. With a store it is idempotent in
    any case: it sees what was cancelled or rescheduled. Raises ConfigurationError: a setting out of range, or
    a hop without a delay queue."""

    unrestricted: bool = True
    hop_seconds: int = limits.DEFAULT_HOP_SECONDS
    max_delay_seconds: int = limits.DEFAULT_MAX_DELAY_SECONDS
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
        check_range(1, concurrency=self.concurrency)
        if self.linger_ms >= 1000 * self.begin_within_seconds:
            most = f"use less than {1000 * self.begin_within_seconds:g}"
            why = f"with deadline_seconds={self.deadline_seconds}, or a send has no time left"
            raise errors.InvalidSetting(f"{most} {why}", linger_ms=self.linger_ms)
        if not self.unrestricted and self.hop_seconds != limits.DEFAULT_HOP_SECONDS:
            raise errors.InvalidSetting(
                "with unrestricted=False; without a delay queue there is no hop; leave hop_seconds out",
                hop_seconds=self.hop_seconds,
            )


ALWAYS_PARKED_BYTES: Final = 32 * 1024
"""What every place keeps that this package has; above it the place is asked."""


class Call:
    """One call's endpoint, and what failed when the queue service was asked about it: the same is not asked
    again for each message. ``undated``: nor is the time, which the service does not tell. ``chances``: for
    what is made up."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self.undated, self.chances = endpoint, False, wire.chances()
        self._failed: dict[Any, errors.SqsDelayError] = {}

    def once(self, ask: Callable[[A], T], about: A) -> T:
        """The answer to ``ask(about)``, which remembers it; or the error that it raised before."""
        key = ask, about.name
        if key in self._failed:
            raise self._failed[key]
        try:
            return ask(about)
        except errors.SqsDelayError as error:
            self._failed[key] = error
            raise


@dataclass(slots=True)
class Prepared:
    """A checked message: where it goes first, when it is due; and what became of it there."""

    route: Route
    message_id: str | None
    due_ms: int
    sqs_message_id: str | None = field(default=None, init=False)
    error: errors.SqsDelayError | None = field(default=None, init=False)


@dataclass(slots=True)
class ToStore(Prepared):
    """A message that is to wait in a store."""

    parking: Parking
    stored: StoredMessage


@dataclass(slots=True)
class ToQueue(Prepared):
    """A message on its way to a queue."""

    queue_url: str
    entry: OutgoingMessage
    absolute: bool
    named: bool = False
    """Its sender named its id: a message before it may have had the same, and been cancelled."""

    def set_timer(self, now_ms: int) -> None:
        """Update the message timer of an absolute due time: earlier batches took time."""
        remaining = seconds_until(self.due_ms, now_ms)
        if self.absolute and self.entry.delay_seconds is not None:
            self.entry.delay_seconds = remaining
        elif self.absolute and wire.DELAY_SECONDS in self.entry.attributes:
            self.entry.attributes[wire.DELAY_SECONDS] = wire.string(str(remaining))


class Router:
    """Prepares messages for the route their delay asks for: each check is made before anything is sent."""

    def __init__(self, queues: Queues, settings: SenderSettings) -> None:
        self._queues = queues
        self._settings = settings
        self.stores = None if settings.parking is None else Stores(settings.parking)
        self._limits = SizeLimits(queues)
        self._checked_hops: set[str] = set()
        self._alone: set[QueueRef] = set()

    def prepare(
        self, call: Call, message: Message | CheckedMessage, *, put: bool = True
    ) -> ToQueue | ToStore:
        """Choose the route and check the message for it; a body that is too large is put elsewhere, unless
        ``put`` is False. Raises every error of a send that comes before its request."""
        if not isinstance(message, CheckedMessage):
            message = wire.checked(message, fifo=call.endpoint.fifo)
        bodies = self._settings.large_bodies
        if bodies is None:
            return self._routed(call, message)
        message = as_new(message)
        if message.size <= bodies.above_bytes and not self._too_large(call.endpoint, message):
            return self._routed(call, message)
        # All else is checked before the body is put.
        prepared = self._routed(call, stand_in(message))
        if not put:
            return prepared
        # A body is kept until the last day of its message in the destination queue at least.
        needed_until_ms = prepared.due_ms + limits.MAX_RETENTION_SECONDS * 1000
        pointer = bodies.put(message.body, needed_until_ms=needed_until_ms)
        if isinstance(prepared, ToStore):
            prepared.stored = replace(prepared.stored, body=pointer.encode("utf-8"))
        else:
            prepared.entry = replace(prepared.entry, body=pointer, size=-1)
        return prepared

    def _routed(self, call: Call, message: CheckedMessage) -> ToQueue | ToStore:
        endpoint, clock = call.endpoint, self._queues.broker_clock
        now_ms = self.broker_now(call) if message.due.absolute else clock.now_ms()
        due_ms = message.due.due_ms(now_ms)
        self.check_max_delay(due_ms, now_ms)
        remaining = seconds_until(due_ms, now_ms)
        route = self._route(endpoint, remaining)
        if route is Route.DIRECT:
            return self._direct(call, message, due_ms, remaining)
        if route is not Route.DUE_QUEUE and not self._settings.unrestricted:
            raise errors.DelayTooLong(
                f"delay of {(due_ms - now_ms) / 1000} s exceeds the {limits.MAX_MESSAGE_TIMER_SECONDS} s of "
                "a message timer, and unrestricted=False; shorten it, or use "
                "DelaySender(unrestricted=True) and an endpoint with a delay queue "
                f"({endpoint.delay_queue.name})"
            )
        call.once(self._check_collision, endpoint)
        if route is Route.DUE_QUEUE:
            return self._through_due_queue(call, message, remaining)
        parked = self._to_store(call, message) if route is Route.STORE else None
        return parked or self._through_delay_queue(call, message)

    def _route(self, endpoint: Endpoint, remaining: int) -> Route:
        if remaining <= self._settings.hop_seconds:
            return Route.DUE_QUEUE if endpoint.fifo and remaining > 0 else Route.DIRECT
        parking = self._settings.parking
        parked = parking is not None and remaining > parking.after_seconds
        return Route.STORE if parked else Route.DELAY_QUEUE

    def expected_route(self, endpoint: Endpoint, message: CheckedMessage) -> Route:
        """Where a message will go first, as far as can be told without asking anybody."""
        now_ms = self._queues.broker_clock.now_ms() if message.due.absolute else 0
        return self._route(endpoint, seconds_until(message.due.due_ms(now_ms), now_ms))

    def _to_store(self, call: Call, message: CheckedMessage) -> ToStore | None:
        """None where the store cannot keep a message of this size: it hops."""
        parking = self.parking(call.endpoint)
        stored = as_stored(message, call.endpoint.address, now_ms=self.broker_latest(call))
        if parking is None or parking.store.too_large(stored):
            return None
        self._check_arrival(call.endpoint, message)
        return ToStore(Route.STORE, stored.message_id, stored.due_ms, parking, stored)

    def _direct(self, call: Call, message: CheckedMessage, due_ms: int, remaining: int) -> ToQueue:
        """Straight to the destination; a message timer goes with it, but to a FIFO queue, which takes
        none. It carries an id only if its sender named one."""
        named, fifo = message.message_id, call.endpoint.fifo
        added = {} if named is None else {wire.MESSAGE_ID: wire.string(named)}
        entry = OutgoingMessage(
            body=message.body,
            attributes={**message.attributes, **added},
            size=check_limits(message.body, message.attributes, added),
            delay_seconds=remaining if message.due.given and not fifo else None,
            group_id=message.group_id,
            deduplication_id=message.ids(due_ms, next(call.chances))[1] if fifo else None,
            trace_header=message.trace_header,
        )
        queue_url = call.once(self._queues.url, call.endpoint.queue)
        return ToQueue(Route.DIRECT, named, due_ms, queue_url, entry, message.due.absolute)

    def _through_due_queue(self, call: Call, message: CheckedMessage, remaining: int) -> ToQueue:
        """A FIFO queue takes no message timers: the due queue before it does."""
        # The due time orders the messages of a group: it must be the broker's, as near as can be.
        # That is up to a second behind, so the timer of a relative delay is the whole delay.
        due_ms = message.due.due_ms(self.broker_now(call))
        message_id, deduplication_id = message.ids(due_ms, next(call.chances))
        ids = FifoIds(message.group_id or "", deduplication_id or "")
        entry = outgoing.last_leg(
            message.body,
            message.attributes,
            DelayedMessage(message_id, due_ms),
            delay_seconds=remaining,
            ids=ids,
            group_id=None,
            trace_header=message.trace_header,
            at_ms=due_ms,
        )
        added = ids.attributes() | outgoing.identity(message_id, due_ms, waits=True)
        check_limits(message.body, message.attributes, added)
        self._check_arrival(call.endpoint, message)
        queue_url = call.once(self._queues.url, call.endpoint.due_queue)
        absolute = message.due.absolute
        return ToQueue(Route.DUE_QUEUE, message_id, due_ms, queue_url, entry, absolute)

    def _through_delay_queue(self, call: Call, message: CheckedMessage) -> ToQueue:
        # Now that the queue service has been asked about the endpoint, a first send knows its clock, too,
        # and the id that is made up tells the due time by it.
        endpoint, now_ms = call.endpoint, self._queues.broker_clock.now_ms()
        due_ms = message.due.due_ms(now_ms)
        ids = message.ids(due_ms, chance := next(call.chances))
        idempotent = self._settings.idempotent or self._settings.parking is not None
        made_up = None if idempotent and message.message_id is not None else chance
        entry = outgoing.first_copy(
            message, ids, remaining_ms=due_ms - now_ms, due_ms=due_ms, chance=made_up
        )
        queue_url = call.once(self._delay_queue_url, endpoint)
        self._check_arrival(endpoint, message)
        if entry.size > limits.MIN_QUEUE_LIMIT_BYTES:
            self._limits.check(endpoint.delay_queue, entry.size)
        known = message.due.absolute, message.message_id is not None
        return ToQueue(Route.DELAY_QUEUE, ids[0], due_ms, queue_url, entry, *known)

    def check_max_delay(self, due_ms: int, now_ms: int) -> None:
        """Refuse what the delay consumer would send to the error queue. Raises InvalidDelay."""
        if problem := too_far(due_ms, now_ms, self._settings.max_delay_seconds):
            raise errors.InvalidDelay(problem)

    def broker_now(self, call: Call) -> int:
        """The broker's now, for an absolute due time; SQS is asked if no recent answer had it."""
        clock = self._queues.broker_clock
        if not clock.synchronised and not call.undated:
            call.once(self._queues.synchronise, call.endpoint.queue)
            call.undated = not clock.synchronised
        return clock.now_ms()

    def broker_latest(self, call: Call) -> int:
        """What a relative delay counts from that waits in a store, so that it is never early."""
        self.broker_now(call)
        return self._queues.broker_clock.latest_ms()

    def parking(self, endpoint: Endpoint) -> Parking | None:
        """The endpoint's store, to park in; None where there is none."""
        return None if self.stores is None else self.stores.parking(endpoint.name)

    def _too_large(self, endpoint: Endpoint, message: CheckedMessage) -> bool:
        """Whether a queue on the message's way may refuse it, with what sqsdelay adds; or the store, if it
        would be parked were it smaller."""
        most = message.size + wire.MOST_ADDED_BYTES
        queues = endpoint.queues[:-1] if message.due.given else (endpoint.queue,)
        if most > limits.MAX_MESSAGE_BYTES or any(
            most > self._limits.of(queue, size=most) for queue in queues
        ):
            return True
        small = message.size <= ALWAYS_PARKED_BYTES
        if small or self.expected_route(endpoint, message) is not Route.STORE:
            return False
        parking, now_ms = self.parking(endpoint), self._queues.broker_clock.now_ms()
        stored = as_stored(message, endpoint.address, now_ms=now_ms)
        return parking is not None and parking.store.too_large(stored)

    def _check_arrival(self, endpoint: Endpoint, message: CheckedMessage) -> None:
        """Refuse now, not when the message is due. What sqsdelay adds does not count: it is left out
        rather than the message refused."""
        if message.size > limits.MIN_QUEUE_LIMIT_BYTES:  # No queue has a lower limit.
            for queue in {endpoint.hand_over_queue, endpoint.queue}:
                self._limits.check(queue, message.size)

    def _check_collision(self, endpoint: Endpoint) -> None:
        """Once for each endpoint: a delayed message must not reach the other one's destination."""
        if endpoint.queue not in self._alone:
            refuse_collision(self._queues, endpoint)
            self._alone.add(endpoint.queue)

    def _delay_queue_url(self, endpoint: Endpoint) -> str:
        hop = self._settings.hop_seconds
        shorter = hop < limits.MAX_MESSAGE_TIMER_SECONDS
        try:
            queue_url = self._queues.url(endpoint.delay_queue)
        except errors.QueueMissing as error:
            option = f" --hop {hop}" if shorter else ""
            raise errors.DelayQueueMissing(
                f"queue {endpoint.delay_queue.name} does not exist, so endpoint {endpoint.name} accepts "
                f"no delays above {hop} s; create it with: sqsdelay endpoint create {endpoint.name}{option}"
            ) from error
        if shorter and queue_url not in self._checked_hops:
            # A hop longer than what the sender counts on would make every message late.
            deployed = int(self._queues.attributes(queue_url).get("DelaySeconds", "0"))
            if deployed > hop:
                raise errors.ConfigurationError(
                    f"is too short for {endpoint.delay_queue.name}, which holds messages for {deployed} s; "
                    f"use {deployed}",
                    hop_seconds=hop,
                )
            self._checked_hops.add(queue_url)
        return queue_url


def refuse_collision(queues: Queues, endpoint: Endpoint) -> None:
    """Raise ConfigurationError, with what to do, if another endpoint of the account has the same queues;
    QueueUnreachable."""
    if problem := collision(queues, endpoint):
        raise errors.ConfigurationError(problem)


def collision(queues: Queues, endpoint: Endpoint) -> str | None:
    """Why the endpoint cannot be, beside another; None when it can, or nobody may tell us."""

    def exists(queue: QueueRef) -> bool:
        try:
            queues.url(queue)
        except errors.QueueUnreachable as error:
            # Nothing else would be answered, either, and each call takes its time. Named for what was asked
            # for: the queues looked for here are often not there.
            raise errors.QueueUnreachable(
                f"queue {endpoint.name} cannot be used now: {error.__cause__}; try again later"
            ) from error.__cause__
        except (errors.QueueMissing, errors.QueueUnavailable):
            # Denied: a policy that names our queues only is no reason to send nothing.
            return False
        return True

    return endpoints.collision(endpoint, exists)
