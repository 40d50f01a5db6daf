"""A timeout manager's queues on RabbitMQ: ``<endpoint>.Timeouts`` and ``<endpoint>.TimeoutsDispatcher``."""

from __future__ import annotations

import base64
import json
import sys
import uuid
from collections.abc import Sequence
from typing import Any, Final

from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.core.clock import Clock
from sqsdelay.core.delay import Reject
from sqsdelay.core.message import DUE_AT, ERROR, MESSAGE_ID, WAS_DUE_AT, Attribute, string
from sqsdelay.core.received_message import whole_number
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.core.timeout_headers import (
    DESTINATION,
    NSERVICEBUS_DESTINATION,
    NSERVICEBUS_DUE,
    destination_of,
    due_ms_of,
    id_body,
    read_id,
)
from sqsdelay.errors import InvalidEndpoint, InvalidMessage
from sqsdelay.limits import ERROR_QUEUE_SUFFIX
from sqsdelay.ports.queues import Delivery, Failure
from sqsdelay.rabbitmq.confirms import Publication
from sqsdelay.rabbitmq.connection import NOT_FOUND, channel, parameters
from sqsdelay.rabbitmq.infrastructure import declare_queue, retrying_races
from sqsdelay.rabbitmq.message import PERSISTENT, check_encoding
from sqsdelay.rabbitmq.outbox import CONNECT_SECONDS, RabbitMqOutbox, released_properties
from sqsdelay.rabbitmq.publisher import DEFAULT_CONFIRM_SECONDS
from sqsdelay.rabbitmq.queue_consumer import QueueConsumer, Received
from sqsdelay.rabbitmq.routing_keys import check_queue_name
from sqsdelay.rabbitmq.stored_properties import PROPERTIES, packed, resendable
from sqsdelay.rabbitmq.topology import Queue, lasting_queue

TIMEOUTS_SUFFIX: Final = ".Timeouts"
TIMEOUTS_DISPATCHER_SUFFIX: Final = ".TimeoutsDispatcher"
"""NServiceBus's names. Source: docs.particular.net/nservicebus/messaging/timeout-manager."""

ANNOUNCED_AT: Final = "sqsdelay.AnnouncedAt"
"""Epoch milliseconds on the clock of the process that found a message due."""

_READ: Final = (DESTINATION, NSERVICEBUS_DESTINATION, DUE_AT, NSERVICEBUS_DUE, MESSAGE_ID)
_OURS: Final = (DESTINATION, DUE_AT, WAS_DUE_AT, MESSAGE_ID)


def timeout_queues(endpoint: str) -> tuple[str, str]:
    """The timeouts queue and the timeouts dispatcher queue of an endpoint.

    Raises:
        InvalidEndpoint: no usable name.
    """
    check_queue_name(endpoint)
    return endpoint + TIMEOUTS_SUFFIX, endpoint + TIMEOUTS_DISPATCHER_SUFFIX


def create_timeout_queues(url: str, endpoint: str) -> list[str]:
    """Create the endpoint's queue, error queue and timeout queues that do not exist yet.

    All are durable quorum queues. Those there already stay as they are.

    Returns:
        The names of the queues that were created.

    Raises:
        ConfigurationError, InvalidEndpoint: no such URL, no permission; no usable name.
        QueueUnavailable: the broker cannot be reached.
    """
    timeouts, dispatcher = timeout_queues(endpoint)
    wanted = (
        Queue(name=endpoint, arguments={"x-queue-type": "quorum"}),
        lasting_queue(endpoint + ERROR_QUEUE_SUFFIX),
        lasting_queue(timeouts),
        lasting_queue(dispatcher),
    )
    with channel(parameters(url)) as first:
        return [
            queue.name for queue in wanted if retrying_races()(_created, first.connection, queue)
        ]


def _created(connection: Any, queue: Queue) -> bool:
    on = connection.channel()
    try:
        on.queue_declare(queue.name, passive=True)
    except ChannelClosedByBroker as error:
        if error.reply_code != NOT_FOUND:
            raise
        on = connection.channel()
        declare_queue(on, queue)
        return True
    finally:
        if on.is_open:
            on.close()
    return False


class RabbitMqTimeouts(RabbitMqOutbox):
    """The `TimeoutTransport` port on RabbitMQ. Thread-safe; close it when done.

    Args:
        url: ``amqp://user:password@host:5672/vhost``, or ``amqps://…``.
        endpoint: whose timeouts these are.
        confirm_seconds: how long the broker may take to confirm a message.
        connect_seconds: how long to try to reach the broker before messages fail.
        clock: the local clock measures due times, because RabbitMQ does not report the time.

    Raises:
        ConfigurationError, InvalidEndpoint: no such URL; no usable name.
    """

    def __init__(
        self,
        url: str,
        endpoint: str,
        *,
        confirm_seconds: float = DEFAULT_CONFIRM_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            url,
            endpoint,
            confirm_seconds=confirm_seconds,
            connect_seconds=connect_seconds,
            # What the broker has taken once, it takes again.
            max_message_bytes=sys.maxsize,
            clock=clock,
        )
        self._timeouts, self._dispatcher = timeout_queues(endpoint)
        self._arriving = QueueConsumer(self._given, self._timeouts, self._clock)
        self._announced = QueueConsumer(self._given, self._dispatcher, self._clock)

    def check(self) -> None:
        """Both timeout queues and the endpoint's exist; a missing error queue is declared."""
        super().check()
        with channel(self._given) as on:
            for queue in (self._timeouts, self._dispatcher):
                on.queue_declare(queue, passive=True)

    def receive_timeouts(self, *, wait_seconds: int) -> list[Delivery[StoredMessage]]:
        received = self._arriving.receive(wait_seconds=wait_seconds)
        return [Delivery(read_timeout(each.properties, each.body), each) for each in received]

    def receive_due_ids(self, *, wait_seconds: int) -> list[Delivery[str]]:
        """Ids of due messages; one that is due only by a clock ahead of ours waits for ours.

        Looked up at once, it would be taken for one moved to a later due time, and dropped.
        """
        deliveries: list[Delivery[str]] = []
        for each in self._announced.receive(wait_seconds=wait_seconds):
            ahead_ms = _announced_ms(each.properties) - self.now_ms()
            if ahead_ms > 0:
                self._announced.give_back(each, seconds=ahead_ms / 1000)
            else:
                content = read_id(each.body.decode("utf-8", "replace"))
                deliveries.append(Delivery(content, each))
        return deliveries

    def announce(self, message_ids: Sequence[str]) -> list[Failure | None]:
        headers = {ANNOUNCED_AT: str(self.now_ms())}

        def to_dispatcher(message_id: str) -> Publication:
            properties = BasicProperties(headers=headers, delivery_mode=PERSISTENT)
            return Publication("", self._dispatcher, id_body(message_id).encode(), properties)

        return self._publish(message_ids, to_dispatcher)

    def reject_unreadable(self, deliveries: Sequence[Delivery[Any]]) -> list[Failure | None]:
        def to_error_queue(delivery: Delivery[Any]) -> Publication:
            return Publication(
                "", self._error_queue, *_unreadable(delivery.receipt, delivery.content.reason)
            )

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
    """The message to keep until it is due, or why that cannot be told.

    Its id is the header ``sqsdelay.MessageId``, or else the property ``message_id``, or else made up:
    then a copy that is delivered again is another message.
    """
    said = _said(properties)
    destination, due_ms = destination_of(said), due_ms_of(said)
    if isinstance(destination, Reject):
        return destination
    if isinstance(due_ms, Reject):
        return due_ms
    kept = resendable(properties)
    kept.headers = {name: value for name, value in kept.headers.items() if name not in _OURS}
    own_id = said[MESSAGE_ID]["StringValue"] if MESSAGE_ID in said else properties.message_id
    try:
        message = StoredMessage(
            message_id=own_id or str(uuid.uuid4()),
            destination=check_queue_name(destination),
            due_ms=due_ms,
            body=body,
            attributes=packed(kept),
        )
        # Found out now, when a person still knows the message; not when it is due.
        released_properties(message)
    except (InvalidEndpoint, InvalidMessage) as error:
        return Reject(str(error))
    return message


def _said(properties: BasicProperties) -> dict[str, Attribute]:
    """The headers that are read here; a number is as good as its text."""
    headers = properties.headers or {}
    return {
        name: string(str(headers[name]))
        for name in _READ
        if isinstance(headers.get(name), str | int)
    }


def _announced_ms(properties: BasicProperties) -> int:
    """When it was announced; 0 if unknown."""
    return whole_number((properties.headers or {}).get(ANNOUNCED_AT)) or 0


def _unreadable(received: Received, reason: str) -> tuple[bytes, BasicProperties]:
    """Body and properties as they were, plus why; all in a body of JSON if they leave no room."""
    properties = resendable(received.properties)
    properties.delivery_mode = PERSISTENT
    encoded = base64.b64encode(packed(properties)[PROPERTIES]["BinaryValue"])
    properties.headers = {**properties.headers, ERROR: json.dumps({"reason": reason})}
    try:
        check_encoding(properties)
    except InvalidMessage:
        about = {
            "reason": reason,
            "amqpProperties": encoded.decode("ascii"),
            "body": base64.b64encode(received.body).decode("ascii"),
        }
        return json.dumps(about).encode(), BasicProperties(
            headers={ERROR: json.dumps({"bodyEncoding": "json"})},
            content_type="application/json",
            delivery_mode=PERSISTENT,
        )
    return received.body, properties
