"""A timeout manager's queues on RabbitMQ: ``<endpoint>.Timeouts`` and ``<endpoint>.TimeoutsDispatcher``."""

from __future__ import annotations

import sys
import threading
import uuid
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

from pika import BasicProperties
from pika.exceptions import AMQPError

from sqsdelay import errors
from sqsdelay.core.delay import Clock, Reject, due_time
from sqsdelay.core.limits import ERROR_QUEUE_SUFFIX
from sqsdelay.core.message import DUE_AT, MESSAGE_ID, WAS_DUE_AT, string, text_of
from sqsdelay.core.received_message import whole_number
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.ports import in_each_child
from sqsdelay.ports.queues import Delivery, Failure
from sqsdelay.rabbitmq import message as amqp
from sqsdelay.rabbitmq.administration import create_missing
from sqsdelay.rabbitmq.connection import Address, Session, Taken, parameters, translated
from sqsdelay.rabbitmq.link import Publication
from sqsdelay.rabbitmq.message import RabbitMqMessage
from sqsdelay.rabbitmq.outbox import RabbitMqOutbox, with_headers, with_reason
from sqsdelay.rabbitmq.topology import check_queue_name, lasting_queue, quorum_queue
from sqsdelay.timeouts import sender

PREFETCH: Final = 100
"""Deliveries without an acknowledgement, and so the most of one batch."""


class Received(NamedTuple):
    """A message as the broker delivered it. What came over a lost connection comes again."""

    consumer: QueueConsumer
    session: Session
    method: Any
    properties: BasicProperties
    body: bytes


class QueueConsumer:
    """Receives from one queue. Thread-safe; nothing is opened before the first receive."""

    def __init__(self, given: Address, queue: str) -> None:
        self.given, self.queue = given, queue
        self._begin_anew()
        in_each_child(self, QueueConsumer._begin_anew)

    def _begin_anew(self) -> None:
        """Without a connection: one that another process opened is left to that one."""
        self._lock = threading.RLock()
        self._session: Session | None = None

    def _consume(self, session: Session) -> None:
        """Let the queue's messages arrive over a new connection, which is lost when the queue is."""

        def lose(_: Any) -> None:
            session.lost = ConnectionError(f"the broker ended the delivery from {self.queue}")

        self._channel, self._arrived = session.channel(), deque[Taken]()
        self._channel.add_on_cancel_callback(lose)
        session.consume(self.queue, PREFETCH, self._arrived)
        session.seconds = inf

    def receive(self, *, wait_seconds: float) -> list[Received]:
        """Up to `PREFETCH` messages, waiting at most so long for the first."""
        with self._lock:
            try:
                if self._session is None:  # a queue without a leader never delivers
                    self._session = Session(self.given, seconds=10.0, set_up=self._consume)
                self._session.wait(lambda: self._arrived, seconds=wait_seconds)
            except errors.QueueMissing:
                raise
            except (AMQPError, OSError, errors.SqsDelayError) as error:
                self.close()
                # A refused login, too: `check` has found it let in, so it may be again.
                raise errors.QueueUnavailable(str(translated(error, self.given))) from error
            received = [Received(self, self._session, *each) for each in self._arrived]
            self._arrived.clear()
            return received

    def acknowledge(self, received: Received) -> None:
        """Be done with a message; one whose connection has ended is delivered again."""
        with self._lock:
            if received.session is self._session and self._channel.is_open:
                self._channel.basic_ack(received.method.delivery_tag)

    def give_back(self, received: Received, *, seconds: float) -> None:
        """Return a message to its queue after so many seconds, or sooner if the connection ends: a queue
        has no such pause, so it is kept unacknowledged meanwhile."""
        with self._lock:
            channel = self._channel

            def give_back() -> None:
                if channel.is_open:
                    channel.basic_nack(received.method.delivery_tag)

            if received.session is self._session:
                received.session.wire.call_later(seconds, give_back)

    def close(self) -> None:
        """End the connection; what was not acknowledged returns to the queue."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                session.close()


ANNOUNCED_AT: Final = "sqsdelay.AnnouncedAt"
"""Epoch milliseconds on the clock of the process that found a message due."""

_OURS: Final = (sender.DESTINATION, DUE_AT, WAS_DUE_AT, MESSAGE_ID)


def timeout_queues(endpoint: str) -> tuple[str, str]:
    """An endpoint's timeouts queue and timeouts dispatcher queue, as NServiceBus names them. Source:
    docs.particular.net/nservicebus/messaging/timeout-manager."""
    check_queue_name(endpoint)
    return f"{endpoint}.Timeouts", f"{endpoint}.TimeoutsDispatcher"


def create_timeout_queues(url: str, endpoint: str) -> list[str]:
    """Create the endpoint's queue, error queue and timeout queues that do not exist yet, as durable quorum
    queues; the names of those created. Raises ConfigurationError: no such URL, no permission;
    InvalidEndpoint: no usable name; QueueUnavailable: the broker cannot be reached."""
    names = (*timeout_queues(endpoint), endpoint + ERROR_QUEUE_SUFFIX)
    with Session(parameters(url)) as session:
        return create_missing(session, quorum_queue(endpoint), *map(lasting_queue, names))


class RabbitMqTimeouts(RabbitMqOutbox):
    """The `TimeoutTransport` port on RabbitMQ, and what `TimeoutSender` sends to.

    Thread-safe; close it when done. Arguments and errors are those of `RabbitMqOutbox`; ``endpoint`` is
    whose timeouts these are.
    """

    message_type: Final = RabbitMqMessage

    def __init__(self, url: str, endpoint: str, *, clock: Clock | None = None) -> None:
        # What the broker has taken once, it takes again.
        super().__init__(url, endpoint, max_message_bytes=sys.maxsize, clock=clock)
        self._timeouts, self._dispatcher = timeout_queues(endpoint)
        self._needed += [self._timeouts, self._dispatcher]
        self._arriving = QueueConsumer(self._given, self._timeouts)
        self._announced = QueueConsumer(self._given, self._dispatcher)

    def addressed(self, message: RabbitMqMessage, destination: str) -> StoredMessage:
        limit, user = amqp.MAX_MESSAGE_BYTES, self._given.user
        body, kept = amqp.checked(message, limit=limit, user=user)
        due_ms = due_time(message.delay, message.due_at).due_ms(self.now_ms())
        return StoredMessage(
            message_id=str(kept.message_id),
            destination=check_queue_name(destination),
            due_ms=due_ms,
            body=body,
            attributes=amqp.packed(kept),
        )

    def put(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        """With NServiceBus's headers, which its timeout managers read as well as ours."""

        def to_timeouts(message: StoredMessage) -> Publication:
            properties = with_headers(message, sender.nservicebus_headers(message))
            return Publication("", self._timeouts, message.body, properties)

        return self._publish(messages, to_timeouts)

    def receive_timeouts(self, *, wait_seconds: int) -> list[Delivery[StoredMessage]]:
        received = self._arriving.receive(wait_seconds=wait_seconds)
        return [Delivery(read_timeout(each.properties, each.body), each) for each in received]

    def receive_due_ids(self, *, wait_seconds: int) -> list[Delivery[str]]:
        """Ids of due messages; one that is due only by a clock ahead of ours waits for ours. Looked up at
        once, it would be taken for one moved to a later due time, and dropped."""
        deliveries: list[Delivery[str]] = []
        for each in self._announced.receive(wait_seconds=wait_seconds):
            announced_ms = whole_number((each.properties.headers or {}).get(ANNOUNCED_AT)) or 0
            ahead_ms = announced_ms - self.now_ms()
            if ahead_ms > 0:
                self._announced.give_back(each, seconds=ahead_ms / 1000)
            else:
                message_id = sender.read_id(each.body.decode("utf-8", "replace"))
                deliveries.append(Delivery(message_id, each))
        return deliveries

    def announce(self, message_ids: Sequence[str]) -> list[Failure | None]:
        headers = {ANNOUNCED_AT: str(self.now_ms())}
        properties = BasicProperties(headers=headers, delivery_mode=amqp.PERSISTENT)

        def to_dispatcher(message_id: str) -> Publication:
            body = sender.id_body(message_id).encode()
            return Publication("", self._dispatcher, body, properties)

        return self._publish(message_ids, to_dispatcher)

    def reject_unreadable(self, deliveries: Sequence[Delivery[Any]]) -> list[Failure | None]:
        def to_error_queue(each: Delivery[Any]) -> Publication:
            received, reason = each.receipt, each.content.reason
            about, kept = {"reason": reason}, amqp.resendable(received.properties)
            try:
                attributes = amqp.packed(kept)
            except errors.InvalidMessage:
                about["properties"], attributes = repr(kept), {}
            message = StoredMessage(
                message_id=received.properties.message_id or "",
                destination="",
                due_ms=0,
                body=received.body,
                attributes=attributes,
                unreadable=reason,
            )
            return Publication("", self._error_queue, *with_reason(message, about))

        return self._publish(deliveries, to_error_queue)

    def settle(self, deliveries: Sequence[Delivery[Any]]) -> None:
        for delivery in deliveries:
            delivery.receipt.consumer.acknowledge(delivery.receipt)

    def give_back(self, deliveries: Sequence[Delivery[Any]], *, seconds: int) -> None:
        for delivery in deliveries:
            delivery.receipt.consumer.give_back(delivery.receipt, seconds=seconds)

    def close(self) -> None:
        """End the connections; what is not settled is delivered again."""
        self._arriving.close()
        self._announced.close()
        super().close()


def read_timeout(properties: BasicProperties, body: bytes) -> StoredMessage | Reject:
    """The message to keep until it is due, or why that cannot be told. Its id is the header
    ``sqsdelay.MessageId``, or the property ``message_id``, or made up: then a copy is another message."""
    headers = properties.headers or {}
    # A number is as good as its text.
    said = {
        name: string(str(value)) for name, value in headers.items() if isinstance(value, str | int)
    }
    kept = amqp.resendable(properties)
    kept.headers = {name: value for name, value in kept.headers.items() if name not in _OURS}
    own_id = text_of(said, MESSAGE_ID) or properties.message_id
    try:
        destination, due_ms = sender.destination_of(said), sender.due_ms_of(said)
        message = StoredMessage(
            message_id=own_id or str(uuid.uuid4()),
            destination=check_queue_name(destination),
            due_ms=due_ms,
            body=body,
            attributes=amqp.packed(kept),
        )
        # Found out now, when a person still knows the message; not when it is due.
        with_headers(message, {WAS_DUE_AT: str(due_ms)})
    except (errors.InvalidEndpoint, errors.InvalidMessage) as error:
        return Reject(str(error))
    return message
