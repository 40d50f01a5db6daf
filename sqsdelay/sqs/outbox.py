"""The outbox to SQS: due messages to their queues with message timers, hopeless ones to the error queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from sqsdelay.core import message as wire
from sqsdelay.core import outgoing
from sqsdelay.core.delay import seconds_until
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.message import OutgoingMessage, check_limits, full_batches
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import DelayedMessage, FifoIds
from sqsdelay.core.rejection import rejected_stored
from sqsdelay.core.stored_message import StoredMessage, text_for_sqs
from sqsdelay.errors import InvalidMessage, QueueMissing, QueueUnavailable, SqsDelayError
from sqsdelay.ports import in_each_child
from sqsdelay.ports.queues import DeliverySpan, Failure, Queues, Released, SendReceipt, Tracing

logger = logging.getLogger(__name__)

DEFAULT_CONCURRENCY: Final = 8

_Prepared = tuple[int, str, OutgoingMessage]


class SqsOutbox:
    """Sends a store's messages to SQS. A message's destination is a queue's name, URL or ARN. ``endpoint``:
    whose error queue takes what cannot be delivered. ``concurrency``: batches in flight. ``tracing``: traces
    deliveries; None makes no spans."""

    max_ahead_seconds: Final = MAX_MESSAGE_TIMER_SECONDS

    def __init__(
        self,
        queues: Queues,
        endpoint: Endpoint,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        tracing: Tracing | None = None,
    ) -> None:
        self._queues = queues
        self._endpoint = endpoint
        self._concurrency = concurrency
        self._tracing = tracing
        self._begin_anew()
        in_each_child(self, SqsOutbox._begin_anew)

    def _begin_anew(self) -> None:
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="outbox")

    def check(self) -> None:
        """The queues sent to exist, and the broker's clock is known."""
        self._queues.url(self._endpoint.error_queue)
        self._queues.synchronise(self._endpoint.hand_over_queue)

    def now_ms(self) -> int:
        """The broker's now; while SQS cannot be asked, the local clock's."""
        try:
            return self._broker_now()
        except SqsDelayError as error:
            told = "using the local clock, because SQS cannot be reached: %s"
            logger.warning(told, one_line(error))
            return self._queues.broker_clock.now_ms()

    def _broker_now(self) -> int:
        clock = self._queues.broker_clock
        if not clock.synchronised:
            self._queues.synchronise(self._endpoint.queue)
        return clock.now_ms()

    def send(self, messages: Sequence[StoredMessage]) -> list[Failure | Released]:
        try:
            now_ms = self._broker_now()
        except SqsDelayError as error:
            # A message timer set by a wrong local clock would end early: rather wait.
            outage = QueueUnavailable(f"the broker's time is unknown: {error}")
            return [_failure(outage)] * len(messages)

        deliveries: dict[int, DeliverySpan] = {}

        def to_destination(message: StoredMessage) -> tuple[QueueRef, OutgoingMessage]:
            destination = Endpoint.parse(message.destination)
            released = _released(message, seconds_until(message.due_ms, now_ms), destination)
            if self._tracing is not None and not destination.fifo:
                delivery = deliveries[id(message)] = self._tracing.delivering(
                    destination.name,
                    message.message_id,
                    sent_with=message.trace_header,
                    due_ms=message.due_ms,
                )
                released.trace_header = delivery.header or released.trace_header
            return destination.hand_over_queue, released

        def set_timer(position: int, entry: OutgoingMessage) -> None:
            # The batches before this one took time; what the local clock says of it plays no part.
            clock = self._queues.broker_clock
            if clock.synchronised:
                seconds = seconds_until(messages[position].due_ms, clock.now_ms())
                entry.delay_seconds = min(entry.delay_seconds or 0, seconds)

        outcomes = self._send_all(messages, to_destination, set_timer=set_timer)
        for message, outcome in zip(messages, outcomes, strict=True):
            if id(message) in deliveries:
                failed = str(outcome.error) if isinstance(outcome, Failure) else None
                deliveries[id(message)].end(failed)
        return outcomes

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        def to_error_queue(entry: tuple[StoredMessage, str]) -> tuple[QueueRef, OutgoingMessage]:
            return self._endpoint.error_queue, rejected_stored(*entry)

        def without_reason(entry: tuple[StoredMessage, str]) -> OutgoingMessage:
            return rejected_stored(*entry, limit=0)

        return failures(self._send_all(messages, to_error_queue, smaller=without_reason))

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _send_all(
        self,
        messages: Sequence[Any],
        addressed: Callable[[Any], tuple[QueueRef, OutgoingMessage]],
        *,
        set_timer: Callable[[int, OutgoingMessage], None] | None = None,
        smaller: Callable[[Any], OutgoingMessage] | None = None,
    ) -> list[Failure | Released]:
        outcomes: dict[int, Failure | Released] = {}
        ready: list[_Prepared] = []
        missing: dict[QueueRef, QueueMissing] = {}
        for position, message in enumerate(messages):
            try:
                queue, entry = addressed(message)
                if queue in missing:
                    # Asked for once a call: 500 requests for a queue that is gone took seconds.
                    raise missing[queue]
                ready.append((position, self._queues.url(queue), entry))
            except SqsDelayError as error:
                if isinstance(error, QueueMissing):
                    missing[queue] = error
                outcomes[position] = _failure(error)

        def send(batch: Sequence[_Prepared]) -> list[SendReceipt | Failure]:
            def less(at: int) -> OutgoingMessage | None:
                position, _, entry = batch[at]
                return (
                    outgoing.without_identity(entry)
                    if smaller is None
                    else smaller(messages[position])
                )

            if set_timer is not None:
                for position, _, entry in batch:
                    set_timer(position, entry)
            entries = [entry for _, _, entry in batch]
            to_queue = partial(self._queues.send_batch, batch[0][1])
            return outgoing.send_fitting(to_queue, entries, less)

        batches = list(full_batches(ready, target=lambda r: r[1], size=lambda r: r[2].size))
        for batch, sent in zip(batches, self._threads.map(send, batches), strict=True):
            for (position, _, entry), outcome in zip(batch, sent, strict=True):
                released = Released(entry.delay_seconds or 0, len(batch))
                outcomes[position] = outcome if isinstance(outcome, Failure) else released
        return [outcomes[position] for position in range(len(messages))]


def failures(outcomes: Sequence[Failure | Released]) -> list[Failure | None]:
    """Just what failed, None where nothing did."""
    return [outcome if isinstance(outcome, Failure) else None for outcome in outcomes]


def _failure(error: SqsDelayError) -> Failure:
    """What keeps a message from being sent at all; an invalid one will never work."""
    return Failure(
        type(error).__name__,
        error,
        transient=not isinstance(error, ValueError),
        outage=isinstance(error, QueueUnavailable),
    )


def _released(message: StoredMessage, delay_seconds: int, destination: Endpoint) -> OutgoingMessage:
    body = text_for_sqs(message)
    wire.check_body(body)
    if delay_seconds > MAX_MESSAGE_TIMER_SECONDS:
        # The broker's clock was estimated too early when the message was claimed. Never clamped.
        raise QueueUnavailable(
            f"message {message.message_id} is due in {delay_seconds} s, and a message timer is limited to "
            f"{MAX_MESSAGE_TIMER_SECONDS} s; it is released later"
        )
    attributes = dict(message.attributes)
    ids: FifoIds | None = None
    if destination.fifo:
        if message.group_id is None:
            raise InvalidMessage(
                f"message {message.message_id} has no group_id; the FIFO queue {message.destination} "
                "requires one: store it with a group_id"
            )
        deduplication_id = attributes.pop(wire.DEDUPLICATION_ID, wire.string(message.message_id))
        ids = FifoIds(message.group_id, deduplication_id["StringValue"])
        check_limits(body, attributes, ids.attributes())
    entry = outgoing.last_leg(
        body,
        attributes,
        DelayedMessage(message.message_id, message.due_ms),
        delay_seconds=delay_seconds,
        ids=ids,
        group_id=message.group_id,
        trace_header=message.trace_header,
        at_ms=message.due_ms,
    )
    check_limits(body, entry.attributes)
    return entry
