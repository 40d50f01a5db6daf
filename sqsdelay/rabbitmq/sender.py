"""`DelaySender` over RabbitMQ: any delay up to 268,435,455 seconds through the broker's own queues."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self

from pika import BasicProperties

from sqsdelay.clock import Clock, SystemClock
from sqsdelay.delay import Delay, checked_due_ms, delay_ms, due_at_ms, seconds_until, utc
from sqsdelay.errors import InvalidDelay, InvalidMessage, SqsDelayError
from sqsdelay.rabbitmq import routing
from sqsdelay.rabbitmq.confirms import Publication
from sqsdelay.rabbitmq.connection import parameters
from sqsdelay.rabbitmq.message import (
    MAX_MESSAGE_BYTES,
    Message,
    body_of,
    properties_of,
)
from sqsdelay.rabbitmq.publisher import (
    DEFAULT_CONFIRM_SECONDS,
    DEFAULT_CONNECT_SECONDS,
    Publisher,
)
from sqsdelay.rabbitmq.topology import SHARED_PREFIX, Topology

BOUND_SECONDS: Final = 60.0
"""How long an endpoint's binding is taken to be there still, before it is made sure of again."""


class Route(StrEnum):
    """Where a message was sent first."""

    DIRECT = "direct"
    DELAY_LEVEL = "delay-level"


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of one message.

    ``error`` is None if and only if the broker confirmed it. With `Unconfirmed` the broker may have
    it or not: whoever sends it again uses the same ``message_id``. ``due`` is on the local clock.
    """

    message_id: str | None = None
    route: Route | None = None
    due: datetime | None = None
    error: SqsDelayError | None = None


@dataclass(slots=True)
class _Prepared:
    publication: Publication
    route: Route
    due_ms: int

    def result(self) -> SendResult:
        return SendResult(
            self.publication.properties.message_id,
            self.route,
            utc(self.due_ms),
            self.publication.error,
        )


class DelaySender:
    """Sends to RabbitMQ queues with any delay up to 268,435,455 s. Thread-safe; close it when done.

    The first delayed message to an endpoint makes sure that its queue exists and is bound to the
    delivery exchange (as NServiceBus does), so that a wrong name is an error now, not later.

    Args:
        url: ``amqp://user:password@host:5672/vhost``, or ``amqps://…``.
        prefix: of the delay infrastructure; NServiceBus's by default.
        bind: False for a user who may publish only. Endpoints must then be bound beforehand, and a
            delayed message for one that is not is undeliverable when due, instead of an error now.
        confirm_seconds: how long the broker may take to confirm a message.
        connect_seconds: how long to try to reach a broker before messages fail.
        max_message_bytes: the broker's ``max_message_size``.
        clock: the local clock.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = SHARED_PREFIX,
        bind: bool = True,
        confirm_seconds: float = DEFAULT_CONFIRM_SECONDS,
        connect_seconds: float = DEFAULT_CONNECT_SECONDS,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        given = parameters(url)
        self._user = given.user
        self._topology = Topology(prefix)
        self._bind = bind
        self._max_message_bytes = max_message_bytes
        self._clock = clock or SystemClock()
        self._publisher = Publisher(
            given,
            confirm_seconds=confirm_seconds,
            connect_seconds=connect_seconds,
            clock=self._clock,
        )
        self._bound: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; nothing that `send` or `send_many` returned for is affected."""
        self._publisher.close()

    def send(
        self,
        endpoint: str,
        body: str | bytes,
        *,
        delay: Delay | None = None,
        due_at: datetime | None = None,
        headers: Mapping[str, Any] | None = None,
        message_id: str | None = None,
        properties: BasicProperties | None = None,
    ) -> SendResult:
        """Send one message; see `Message` for the arguments. Returns once the broker has confirmed.

        Args:
            endpoint: the destination queue's name.

        Raises:
            InvalidDelay, InvalidMessage, InvalidEndpoint: nothing was sent.
            DelayTooLong: above 268,435,455 seconds; nothing was sent.
            QueueMissing: there is no such queue.
            ConfigurationError: no delay infrastructure, or no permission.
            QueueUnavailable: the broker cannot be reached; nothing was sent.
            SendFailed: the broker did not take it.
            Unconfirmed: the broker may have it or not.
        """
        message = Message(
            body,
            delay=delay,
            due_at=due_at,
            headers=headers or {},
            message_id=message_id,
            properties=properties,
        )
        prepared = self._prepare(routing.check_endpoint(endpoint), message)
        if prepared.route is Route.DELAY_LEVEL:
            self._ensure_bound(endpoint)
        self._publisher.publish([prepared.publication])
        result = prepared.result()
        if result.error is not None:
            raise result.error
        return result

    def send_many(self, endpoint: str, messages: Iterable[Message]) -> list[SendResult]:
        """Send many messages, pipelined over one connection.

        Returns:
            A result per message, in order; one that failed carries its ``error`` and none of the
            others is lost for it.

        Raises:
            InvalidEndpoint: nothing was sent.
        """
        routing.check_endpoint(endpoint)
        results: list[SendResult] = []
        ready: list[tuple[int, _Prepared]] = []
        for position, message in enumerate(messages):
            results.append(SendResult(message.message_id))
            try:
                ready.append((position, self._prepare(endpoint, message)))
            except SqsDelayError as error:
                results[position] = SendResult(message.message_id, error=error)
        unbound = self._binding_error(endpoint, (prepared for _, prepared in ready))
        sendable = []
        for position, prepared in ready:
            if unbound is not None and prepared.route is Route.DELAY_LEVEL:
                prepared.publication.error = unbound
                results[position] = prepared.result()
            else:
                sendable.append((position, prepared))
        self._publisher.publish([prepared.publication for _, prepared in sendable])
        for position, prepared in sendable:
            results[position] = prepared.result()
        return results

    def _binding_error(self, endpoint: str, prepared: Iterable[_Prepared]) -> SqsDelayError | None:
        if not any(each.route is Route.DELAY_LEVEL for each in prepared):
            return None
        try:
            self._ensure_bound(endpoint)
        except SqsDelayError as error:
            return error
        return None

    def _ensure_bound(self, endpoint: str) -> None:
        if not self._bind:
            return
        now = self._clock.monotonic()
        connection, since = self._bound.get(endpoint, (0, 0.0))
        if connection == self._publisher.connections and now - since < BOUND_SECONDS:
            return
        self._publisher.bind(
            endpoint, self._topology.delivery_exchange, routing.binding_key(endpoint)
        )
        self._bound[endpoint] = (self._publisher.connections, now)

    def _prepare(self, endpoint: str, message: Message) -> _Prepared:
        if message.delay is not None and message.due_at is not None:
            raise InvalidDelay("delay and due_at are both given; give one of them")
        now_ms = self._clock.now_ms()
        if message.due_at is not None:
            due_ms = due_at_ms(message.due_at)
        else:
            due_ms = now_ms + (0 if message.delay is None else delay_ms(message.delay))
        checked_due_ms(due_ms)
        seconds = routing.check_delay(seconds_until(due_ms, now_ms))
        properties = properties_of(
            message,
            message_id=_message_id(message),
            delay_seconds=seconds,
            due_ms=due_ms,
            user=self._user,
        )
        return _Prepared(
            Publication(
                *self._address(endpoint, seconds),
                body_of(message, limit=self._max_message_bytes),
                properties,
            ),
            Route.DELAY_LEVEL if seconds else Route.DIRECT,
            due_ms,
        )

    def _address(self, endpoint: str, seconds: int) -> tuple[str, str]:
        """Exchange and routing key; the nameless exchange leads straight to the queue of that name."""
        if not seconds:
            return "", endpoint
        level = routing.entry_level(seconds)
        return self._topology.level_name(level), routing.routing_key(seconds, endpoint)


def _message_id(message: Message) -> str:
    own = message.properties.message_id if message.properties else None
    message_id = message.message_id if message.message_id is not None else own
    if message_id is None:
        return str(uuid.uuid4())
    if not message_id or not isinstance(message_id, str):
        raise InvalidMessage(f"message_id={message_id!r} is no id; give a non-empty string")
    return message_id
