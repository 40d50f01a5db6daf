"""The outbox to RabbitMQ: due messages to their queues, hopeless ones to the error queue."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pika import BasicProperties

from sqsdelay import errors
from sqsdelay.core.delay import Clock, SystemClock
from sqsdelay.core.limits import ERROR_QUEUE_SUFFIX
from sqsdelay.core.message import ERROR, GROUP_ID, WAS_DUE_AT
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.ports.queues import Failure
from sqsdelay.rabbitmq import message as amqp
from sqsdelay.rabbitmq.administration import create_missing
from sqsdelay.rabbitmq.connection import Session, parameters
from sqsdelay.rabbitmq.link import Publication, refused
from sqsdelay.rabbitmq.publisher import DEFAULT_CONFIRM_SECONDS, Publisher
from sqsdelay.rabbitmq.topology import check_queue_name, lasting_queue

CONNECT_SECONDS: Final = 2.0
"""Short, because a dispatcher tries again by itself, and its circuit breaker counts from then on."""

_T = TypeVar("_T")


class RabbitMqOutbox:
    """Sends a store's messages to RabbitMQ queues once they are due. Thread-safe; close it when done.

    It has no message timer, though the broker's delay levels could be one: they round up to whole
    seconds, and what waits in them can no longer be cancelled. So it needs no delay infrastructure.

    Args:
        url: ``amqp://user:password@host:5672/vhost``, or ``amqps://…``.
        endpoint: the queue whose error queue, ``<endpoint>-delay-error``, takes what cannot be
            delivered.
        confirm_seconds: how long the broker may take to confirm a message.
        connect_seconds: how long to try to reach the broker before messages fail.
        max_message_bytes: the broker's ``max_message_size``.
        clock: the local clock measures due times, because RabbitMQ does not report the time.

    Raises:
        ConfigurationError, InvalidEndpoint: no such URL; no usable name.
    """

    max_ahead_seconds: Final = 0

    def __init__(
        self,
        url: str,
        endpoint: str,
        *,
        confirm_seconds: float = DEFAULT_CONFIRM_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
        max_message_bytes: int = amqp.MAX_MESSAGE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._given = parameters(url)
        self._needed = [check_queue_name(endpoint)]
        self._error_queue = endpoint + ERROR_QUEUE_SUFFIX
        self._max_message_bytes = max_message_bytes
        self._clock = clock or SystemClock()
        self._publisher = Publisher(self._given, confirm_seconds, connect_seconds)

    def check(self) -> None:
        """The endpoint's queue exists, and so does the error queue, declared where it was missing."""
        with Session(self._given) as session:
            for queue in self._needed:
                session.ask("queue_declare", queue, passive=True)
            create_missing(session, lasting_queue(self._error_queue))

    def now_ms(self) -> int:
        """The local clock's now."""
        return self._clock.now_ms()

    def send(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        now_ms = self.now_ms()

        def to_destination(message: StoredMessage) -> Publication:
            if message.due_ms > now_ms:
                # The clock was set back since the message was claimed. Never early.
                raise errors.QueueUnavailable(
                    f"message {message.message_id} is due in {message.due_ms - now_ms} ms, and an "
                    "outbox to RabbitMQ has no message timer; it is released later"
                )
            destination = check_queue_name(message.destination)
            properties = with_headers(message, {WAS_DUE_AT: str(message.due_ms)})
            return Publication("", destination, message.body, properties)

        return self._publish(messages, to_destination)

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        def to_error_queue(entry: tuple[StoredMessage, str]) -> Publication:
            message, reason = entry
            about = {
                "reason": reason,
                "messageId": message.message_id,
                "destination": message.destination,
                "dueMs": message.due_ms,
                "failures": message.failures,
            }
            return Publication("", self._error_queue, *with_reason(message, about))

        return self._publish(messages, to_error_queue)

    def close(self) -> None:
        """End the connection; nothing that was answered for is affected."""
        self._publisher.close()

    def _publish(
        self, messages: Iterable[_T], published: Callable[[_T], Publication]
    ) -> list[Failure | None]:
        publications = []
        for message in messages:
            try:
                publication = published(message)
                # Found here, or it would end the channel, and with it everyone's messages.
                if (size := len(publication.body)) > self._max_message_bytes:
                    raise errors.MessageTooLarge(
                        f"body of {size} bytes; the limit is {self._max_message_bytes}; store a pointer "
                        "to it instead, or, if the broker's max_message_size is higher, dispatch with "
                        "RabbitMqOutbox(max_message_bytes=…)"
                    )
            except errors.SqsDelayError as error:
                publication = refused(error)
            publications.append(publication)
        self._publisher.publish(publications)
        return [_failure(each.error) for each in publications]


def _failure(error: errors.SqsDelayError | None) -> Failure | None:
    """A message's own failure, or an outage, which says nothing about the message itself: no confirm, a nack
    (the queue is full, or has no leader), a refused login. What was not confirmed may arrive twice."""
    if error is None:
        return None
    code = error.code if isinstance(error, errors.SendFailed) else type(error).__name__
    invalid = isinstance(error, ValueError)
    outage = not invalid and not isinstance(error, errors.QueueMissing)
    return Failure(code, error, transient=not invalid, outage=outage)


def with_headers(message: StoredMessage, added: dict[str, str]) -> BasicProperties:
    """A stored message's properties, and these headers, if AMQP 0-9-1 can hold them."""
    properties = amqp.unpacked(message.attributes)
    headers = properties.headers or {}
    for name, value in message.attributes.items():
        if name in amqp.COPY_HEADERS or name.startswith(amqp.DEATH_HEADERS):
            raise errors.InvalidMessage(
                f"attribute {name!r} is a header that RabbitMQ acts on; choose another name"
            )
        if name != amqp.PROPERTIES:  # a Number stays the text that it is on SQS
            headers[name] = value["BinaryValue"] if "BinaryValue" in value else value["StringValue"]
    system = {GROUP_ID: message.group_id, "AWSTraceHeader": message.trace_header}
    headers |= {name: text for name, text in system.items() if text is not None}
    properties.headers = {**headers, **added}
    properties.message_id = message.message_id or None
    properties.delivery_mode = amqp.PERSISTENT
    amqp.check_encoding(properties)
    return properties


def with_reason(message: StoredMessage, about: Mapping[str, Any]) -> tuple[bytes, BasicProperties]:
    """Body and properties as they were, plus why it is rejected. What AMQP's properties cannot hold goes into
    a body of JSON, the reason with it: nothing is lost."""
    try:
        return message.body, with_headers(message, {ERROR: json.dumps(about)})
    except errors.InvalidMessage:
        body = base64.b64encode(message.body).decode("ascii")
        told = {**about, **json.loads(message.headers()), "body": body}
        properties = BasicProperties(
            headers={ERROR: json.dumps({"bodyEncoding": "json"})},
            content_type="application/json",
            delivery_mode=amqp.PERSISTENT,
        )
        return json.dumps(told).encode(), properties
