"""`RabbitMqSender` and `AsyncRabbitMqSender`: delays of up to 8.5 years through the broker's own queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final, Self

from pika import BasicProperties

from sqsdelay.core.delay import Delay, DueTime, SystemClock, due_time, seconds_until, utc
from sqsdelay.core.loop_calls import DEFAULT_LINGER_MS, DEFAULT_MAX_WAITING, LoopCalls
from sqsdelay.errors import DelayTooLong, SqsDelayError
from sqsdelay.ports import in_each_child
from sqsdelay.rabbitmq import message as amqp
from sqsdelay.rabbitmq import topology
from sqsdelay.rabbitmq.connection import parameters
from sqsdelay.rabbitmq.link import BindJob, Publication, refused
from sqsdelay.rabbitmq.message import RabbitMqMessage
from sqsdelay.rabbitmq.publisher import DEFAULT_CONFIRM_SECONDS, DEFAULT_CONNECT_SECONDS, Publisher


class RabbitMqRoute(StrEnum):
    """Where a message was sent first."""

    DIRECT = "direct"
    DELAY_LEVEL = "delay-level"


@dataclass(frozen=True, slots=True)
class RabbitMqSendResult:
    """What became of one message.

    ``error`` is None if and only if the broker confirmed it. With `Unconfirmed` the broker may have
    it or not: whoever sends it again uses the same ``message_id``. ``due`` is on the local clock.
    """

    message_id: str | None = None
    route: RabbitMqRoute | None = None
    due: datetime | None = None
    error: SqsDelayError | None = None


def _result(publication: Publication) -> RabbitMqSendResult:
    message_id, due_ms = publication.properties.message_id, publication.due_ms
    if due_ms is None:  # it was not even tried
        return RabbitMqSendResult(message_id, error=publication.error)
    route = RabbitMqRoute.DELAY_LEVEL if publication.exchange else RabbitMqRoute.DIRECT
    return RabbitMqSendResult(message_id, route, utc(due_ms), publication.error)


class RabbitMqSender:
    """Sends to RabbitMQ queues with any delay up to 268,435,455 s. Thread-safe; close it when done.

    Every call with a delayed message makes sure that its queue exists and is bound (as NServiceBus does), so
    that a wrong name is an error now, not later. A forked process has a connection of its own.

    One deadline holds for a call: ``connect_seconds`` and ``confirm_seconds`` together, and a second
    more for each 100 messages that the broker has confirmed meanwhile.

    Args:
        url: ``amqp://user:password@host:5672/vhost``, or ``amqps://…``; several nodes of one broker as
            ``amqp://user:password@a,b/vhost``, as URLs with ``;`` between them, or as a list of URLs.
        prefix: of the delay infrastructure; one of sqsdelay's own by default, NServiceBus's is
            ``nsb.v2``.
        without_alternate_exchange: True to delay through ``nsb.v2`` although its delivery exchange has
            no alternate: there, messages for an endpoint that has gone hold up everyone else's.
        bind: False for a user who may publish only. Endpoints must then be bound beforehand, and a
            delayed message for one that is not is undeliverable when due, instead of an error now.
        confirm_seconds: how long the broker may take to confirm a message.
        connect_seconds: how long to try to reach a broker before messages fail.
        max_message_bytes: the broker's ``max_message_size``.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        prefix: str = topology.OWN_PREFIX,
        without_alternate_exchange: bool = False,
        bind: bool = True,
        confirm_seconds: float = DEFAULT_CONFIRM_SECONDS,
        connect_seconds: float = DEFAULT_CONNECT_SECONDS,
        max_message_bytes: int = amqp.MAX_MESSAGE_BYTES,
    ) -> None:
        given = parameters(url)
        self._user = given.user
        self._topology = topology.Topology(prefix)
        self._caught = without_alternate_exchange or not self._topology.shared
        self._bind = bind
        self._max_message_bytes = max_message_bytes
        self._now_ms = SystemClock().now_ms
        self._publisher = Publisher(given, confirm_seconds, connect_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
    ) -> RabbitMqSendResult:
        """Send one message; see `RabbitMqMessage` for the arguments. Returns once the broker has confirmed.

        Args:
            endpoint: the destination queue's name.

        Raises:
            InvalidDelay, InvalidMessage, InvalidEndpoint: nothing was sent.
            DelayTooLong: above 268,435,455 seconds; nothing was sent.
            QueueMissing: there is no such queue.
            ConfigurationError: no delay infrastructure, one without an alternate exchange, or no
                permission.
            QueueUnavailable: the broker cannot be reached, or takes no messages; nothing was sent.
            SendFailed: the broker did not take it.
            Unconfirmed: the broker may have it or not.
        """
        message = RabbitMqMessage(body, delay, due_at, headers or {}, message_id, properties)
        (result,) = self._send_each([(topology.check_queue_name(endpoint), message)])
        if result.error is not None:
            raise result.error
        return result

    def send_many(
        self, endpoint: str, messages: Iterable[RabbitMqMessage]
    ) -> list[RabbitMqSendResult]:
        """Send many messages, pipelined over one connection.

        Returns:
            A result per message, in order; one that failed carries its ``error`` and none of the
            others is lost for it.

        Raises:
            InvalidEndpoint: nothing was sent.
        """
        topology.check_queue_name(endpoint)
        return self._send_each([(endpoint, message) for message in messages])

    def _send_each(
        self, messages: Iterable[tuple[str, RabbitMqMessage]]
    ) -> list[RabbitMqSendResult]:
        """Send many messages, each with its endpoint's name, as `send_many` does: their endpoints are
        bound side by side. Each time, as NServiceBus does: a queue may have been made anew since."""
        began = time.monotonic()
        publications: list[Publication] = []
        bindings: dict[str, BindJob] = {}
        for endpoint, message in messages:
            try:
                publication = self._publication(endpoint, message)
                # Not for the nameless exchange, which leads straight to the queue.
                if publication.exchange and self._bind:
                    if endpoint not in bindings:
                        bindings[endpoint] = BindJob(self._topology.way(endpoint))
                    publication.after = bindings[endpoint]
            except SqsDelayError as error:
                publication = refused(error, getattr(message, "message_id", None))
            publications.append(publication)
        delayed = [each for each in publications if each.exchange]
        if delayed and not self._caught:  # found out once
            uncaught = self._publisher.uncaught(self._topology, since=began)
            self._caught = uncaught is None
            for each in delayed if uncaught else ():
                each.settle(uncaught)
        self._publisher.publish(publications, since=began)
        return [_result(each) for each in publications]

    def _publication(self, endpoint: str, message: RabbitMqMessage) -> Publication:
        """The message as it would be written now; one with a delay, which counts from then, as it is
        written."""
        body, properties = amqp.checked(message, limit=self._max_message_bytes, user=self._user)
        publication = Publication("", endpoint, body, properties)
        due = due_time(message.delay, message.due_at)
        address = partial(self._address, endpoint, due, properties)
        if (seconds := address(publication)) > topology.MAX_DELAY_SECONDS:
            raise DelayTooLong(
                f"delay of {seconds} s exceeds the {topology.MAX_DELAY_SECONDS} s that the delay levels "
                "hold (about 8.5 years); shorten it, or keep the message in a store until nearer its due time"
            )
        if publication.exchange:
            publication.on_write = address
        return publication

    def _address(
        self, endpoint: str, due: DueTime, properties: BasicProperties, publication: Publication
    ) -> int:
        """Say where to, and with what properties, if it is written now; by how many seconds it is delayed.
        The nameless exchange leads straight to the queue of that name."""
        now_ms, to, key = self._now_ms(), "", endpoint
        publication.due_ms = due_ms = due.due_ms(now_ms)
        delay = seconds_until(due_ms, now_ms)
        if seconds := min(delay, topology.MAX_DELAY_SECONDS):
            to = self._topology.level_name(topology.entry_level(seconds))
            key = topology.routing_key(seconds, endpoint)
            properties = amqp.delayed(properties, seconds=seconds, due_ms=due_ms)
        publication.exchange, publication.routing_key, publication.properties = to, key, properties
        return delay


LANES: Final = 4
"""Calls under way: while the broker confirms one, others are written, all over one connection."""

PUBLISHED_AT_ONCE: Final = 1_000
"""Messages of one call: enough that its thread and its bindings cost each of them little."""


class AsyncRabbitMqSender:
    """A `RabbitMqSender` for asyncio. For the tasks of one event loop at a time.

    What tasks send within a few milliseconds of each other, delayed or to the same queue, is published by
    one call, in a thread. ``async with`` closes it; so does `aclose`.

    Args:
        sender: what sends, with your URL and other settings. It is closed with this one.
        linger_ms: how long a message waits for others, 0 to 1,000; 0 turns sharing off.
        max_waiting: messages that wait or are in flight; further calls of `send` wait until one is done.

    Raises:
        ConfigurationError: a setting out of range.
    """

    def __init__(
        self,
        sender: RabbitMqSender,
        *,
        linger_ms: float = DEFAULT_LINGER_MS,
        max_waiting: int = DEFAULT_MAX_WAITING,
    ) -> None:
        self._sender = sender
        self._calls = LoopCalls[tuple[str, RabbitMqMessage], RabbitMqSendResult](
            lambda _, messages: sender._send_each(messages),
            linger_ms=linger_ms,
            lanes=LANES,
            max_waiting=max_waiting,
        )
        in_each_child(self._calls, LoopCalls.begin_anew)

    async def send(
        self,
        endpoint: str,
        body: str | bytes,
        *,
        delay: Delay | None = None,
        due_at: datetime | None = None,
        headers: Mapping[str, Any] | None = None,
        message_id: str | None = None,
        properties: BasicProperties | None = None,
    ) -> RabbitMqSendResult:
        """Send one message; arguments, result and errors as of `RabbitMqSender.send`, errors for this message
        only, whatever it was published with.

        A task that is cancelled before its message has left does not send it; later it may or may not
        be sent.

        Raises:
            ConfigurationError: also where the sender is closed.
        """
        message = RabbitMqMessage(body, delay, due_at, headers or {}, message_id, properties)
        queue = topology.check_queue_name(endpoint)
        size = len(body) if isinstance(body, str | bytes) else 0
        # Delayed messages go to the same levels; one without a delay to its own queue, which may not
        # answer, and holds up none but its like.
        key = None if delay or due_at else queue
        result = await self._calls.call(key, (queue, message), size=size, most=PUBLISHED_AT_ONCE)
        if result.error is not None:
            raise result.error
        return result

    async def send_many(
        self, endpoint: str, messages: Iterable[RabbitMqMessage]
    ) -> list[RabbitMqSendResult]:
        """Send many messages in a call of their own; results and errors as of `RabbitMqSender.send_many`.
        When the task is cancelled, sending goes on."""
        self._calls.check_open()
        return await asyncio.to_thread(self._sender.send_many, endpoint, list(messages))

    async def aclose(self) -> None:
        """Send at once what waits, wait for the results, and end the connection."""
        await self._calls.close()
        await asyncio.to_thread(self._sender.close)

    async def __aenter__(self) -> Self:
        self._calls.check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
