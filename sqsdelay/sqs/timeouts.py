"""A timeout manager's queues on SQS: ``<endpoint>-timeouts`` and ``<endpoint>-timeouts-dispatcher``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqsdelay.core import limits
from sqsdelay.core import message as wire
from sqsdelay.core.delay import Reject
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import Message, OutgoingMessage, full_batches, size_of
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import ReceivedMessage, learn
from sqsdelay.core.rejection import rejected
from sqsdelay.core.stored_message import StoredMessage, to_store
from sqsdelay.errors import InvalidEndpoint, SqsDelayError
from sqsdelay.ports.queues import Delivery, Failure, Queues
from sqsdelay.sqs.endpoints import create_missing, due_queue_attributes, standard_queue_attributes
from sqsdelay.sqs.outbox import SqsOutbox, failures
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.timeouts.sender import id_body, read_id, read_timeout, timeout_attributes

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_RECEIVED: Final = 500
"""At once, ten a request: found in one query, sent and removed together."""


@dataclass(frozen=True, slots=True)
class _Receipt:
    queue_url: str
    copy: ReceivedMessage


def timeout_queues(endpoint: Endpoint) -> tuple[QueueRef, QueueRef]:
    """The timeouts queue and the timeouts dispatcher queue of an endpoint. Raises InvalidEndpoint: a name too
    long for the suffixes, or a FIFO queue's."""
    queue = endpoint.queue
    if endpoint.fifo:
        raise InvalidEndpoint(
            f"endpoint {queue.name!r} is a FIFO queue; run the timeout manager of a standard "
            "endpoint, its messages may name FIFO queues as their destinations"
        )
    if len(queue.name) > limits.MAX_TIMEOUT_ENDPOINT_CHARS:
        raise InvalidEndpoint(
            f"endpoint {queue.name!r} has {len(queue.name)} characters; with a timeout manager the "
            f"limit is {limits.MAX_TIMEOUT_ENDPOINT_CHARS} (SQS takes {limits.MAX_QUEUE_NAME_CHARS}, and "
            f"{limits.TIMEOUTS_DISPATCHER_SUFFIX!r} is added); shorten it"
        )
    timeouts, dispatcher = (
        QueueRef(queue.name + suffix, queue.account_id, queue.region)
        for suffix in (limits.TIMEOUTS_SUFFIX, limits.TIMEOUTS_DISPATCHER_SUFFIX)
    )
    return timeouts, dispatcher


def create_timeout_queues(client: SQSClient, endpoint: Endpoint) -> list[str]:
    """Create the endpoint's queue, error queue and timeout queues that do not exist yet; the names of those
    created. Raises InvalidEndpoint: a name too long for the suffixes; QueueUnavailable, SendFailed."""
    attributes = standard_queue_attributes()
    wanted = [(ref, attributes) for ref in (endpoint.queue, endpoint.error_queue)]
    wanted += [(ref, due_queue_attributes()) for ref in timeout_queues(endpoint)]
    return create_missing(client, SqsQueues(client), wanted)


class SqsTimeouts(SqsOutbox):
    """The `TimeoutTransport` port on SQS, and what `TimeoutSender` sends to. Raises InvalidEndpoint: a name
    too long for the suffixes."""

    message_type: Final = Message

    def __init__(self, queues: Queues, endpoint: Endpoint) -> None:
        super().__init__(queues, endpoint)
        self._timeouts, self._dispatcher = timeout_queues(endpoint)

    def check(self) -> None:
        """All four queues exist, and the broker's clock is known."""
        super().check()
        for queue in (self._timeouts, self._dispatcher):
            self._queues.url(queue)

    def addressed(self, message: Message, destination: str) -> StoredMessage:
        self._queues.url(Endpoint.parse(destination).hand_over_queue)
        return to_store(message, destination, now_ms=self.now_ms())

    def put(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        def to_timeouts(message: StoredMessage) -> tuple[QueueRef, OutgoingMessage]:
            body, attributes = message.body.decode("utf-8"), timeout_attributes(message)
            size = wire.check_limits(body, attributes)
            header = message.trace_header
            return self._timeouts, OutgoingMessage(body, attributes, size, trace_header=header)

        return failures(self._send_all(messages, to_timeouts))

    def receive_timeouts(self, *, wait_seconds: int) -> list[Delivery[StoredMessage]]:
        return self._receive(self._timeouts, wait_seconds, _read_timeout)

    def receive_due_ids(self, *, wait_seconds: int) -> list[Delivery[str]]:
        return self._receive(self._dispatcher, wait_seconds, lambda copy: read_id(copy.body))

    def _receive(
        self, queue: QueueRef, wait_seconds: int, read: Callable[[ReceivedMessage], T | Reject]
    ) -> list[Delivery[T]]:
        url = self._queues.url(queue)
        copies = self._queues.receive_batch(url, wait_seconds=wait_seconds)
        full = len(copies) == limits.MAX_BATCH_ENTRIES
        while full and len(copies) < _MOST_RECEIVED:
            batches = list(self._threads.map(self._receive_more, [url] * self._concurrency))
            copies += chain.from_iterable(batches)
            full = max(map(len, batches)) == limits.MAX_BATCH_ENTRIES
        learn(self._queues.broker_clock, copies)
        return [Delivery(read(copy), _Receipt(url, copy)) for copy in copies]

    def _receive_more(self, url: str) -> list[ReceivedMessage]:
        try:
            return self._queues.receive_batch(url, wait_seconds=0)
        except SqsDelayError as error:
            # What was received before it must not wait for its visibility timeout.
            logger.warning("received no more: %s", one_line(error))
            return []

    def announce(self, message_ids: Sequence[str]) -> list[Failure | None]:
        def to_dispatcher(message_id: str) -> tuple[QueueRef, OutgoingMessage]:
            body = id_body(message_id)
            return self._dispatcher, OutgoingMessage(body, {}, size_of(body, {}))

        return failures(self._send_all(message_ids, to_dispatcher))

    def reject_unreadable(self, deliveries: Sequence[Delivery[Any]]) -> list[Failure | None]:
        def to_error_queue(delivery: Delivery[Any]) -> tuple[QueueRef, OutgoingMessage]:
            copy, reason = delivery.receipt.copy, delivery.content.reason
            return self._endpoint.error_queue, rejected(copy, reason)

        return failures(self._send_all(deliveries, to_error_queue))

    def settle(self, deliveries: Sequence[Delivery[Any]]) -> None:
        self._each(deliveries, self._queues.delete_batch, "not deleted, it will come again")

    def give_back(self, deliveries: Sequence[Delivery[Any]], *, seconds: int) -> None:
        def hide(url: str, copies: Sequence[ReceivedMessage]) -> list[Failure | None]:
            return self._queues.hide_batch(url, [(copy, seconds) for copy in copies])

        self._each(deliveries, hide, "comes back later than asked for")

    def _each(
        self,
        deliveries: Sequence[Delivery[Any]],
        call: Callable[[str, Sequence[ReceivedMessage]], list[Failure | None]],
        otherwise: str,
    ) -> None:
        """Make the call for full batches of what was received from the same queue."""
        receipts = [delivery.receipt for delivery in deliveries]
        batches = full_batches(receipts, target=lambda r: r.queue_url, size=lambda _: 0)

        def settle(batch: Sequence[_Receipt]) -> list[Failure | None]:
            return call(batch[0].queue_url, [receipt.copy for receipt in batch])

        for failure in chain.from_iterable(self._threads.map(settle, batches)):
            if failure is not None:
                logger.warning("%s: %s", otherwise, one_line(failure.error))


def _read_timeout(copy: ReceivedMessage) -> StoredMessage | Reject:
    message = read_timeout(copy)
    if isinstance(message, StoredMessage):
        # Found out now, when a person still knows the message; not when it is due.
        try:
            destination = Endpoint.parse(message.destination)
        except SqsDelayError as error:
            return Reject(str(error))
        if destination.fifo and message.group_id is None:
            missing = f"{wire.GROUP_ID} is missing, which the FIFO queue {destination.name} needs"
            return Reject(missing)
    return message
