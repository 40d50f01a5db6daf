"""`AsyncRabbitMqSender`: tasks that send within a few milliseconds of each other are published together."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from pika import BasicProperties

from sqsdelay.core.delay import Delay
from sqsdelay.core.loop_calls import DEFAULT_LINGER_MS, DEFAULT_MAX_WAITING, LoopCalls
from sqsdelay.ports.forks import in_each_child
from sqsdelay.rabbitmq.message import RabbitMqMessage
from sqsdelay.rabbitmq.sender import RabbitMqSender, RabbitMqSendResult
from sqsdelay.rabbitmq.topology import check_queue_name

LANES: Final = 4
"""Calls under way: while the broker confirms one, others are written. More find nothing to do: all go over
one connection."""

PUBLISHED_AT_ONCE: Final = 500
"""Messages of one call: enough that its thread and its binding cost each of them little."""


class AsyncRabbitMqSender:
    """A `RabbitMqSender` for asyncio. For the tasks of one event loop at a time.

    What tasks send to the same queue within a few milliseconds of each other is published by one
    call, in a thread. ``async with`` closes it; so does `aclose`.

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
        self._calls = LoopCalls[RabbitMqMessage, RabbitMqSendResult](
            self._send, linger_ms=linger_ms, lanes=LANES, max_waiting=max_waiting
        )
        in_each_child(self, AsyncRabbitMqSender._begin_anew)

    def _send(
        self, endpoint: Hashable, messages: list[RabbitMqMessage]
    ) -> list[RabbitMqSendResult]:
        return self._sender.send_many(str(endpoint), messages)

    def _begin_anew(self) -> None:
        """In a forked process."""
        self._calls.begin_anew()

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
        """Send one message; see `RabbitMqMessage`. Returns once the broker has confirmed it.

        A task that is cancelled before its message has left does not send it; later it may or may not
        be sent.

        Args:
            endpoint: the destination queue's name.

        Raises:
            ConfigurationError: also where the sender is closed.
            As `RabbitMqSender.send`: for this message only, whatever it was published with.
        """
        message = RabbitMqMessage(
            body,
            delay=delay,
            due_at=due_at,
            headers=headers or {},
            message_id=message_id,
            properties=properties,
        )
        queue = check_queue_name(endpoint)
        size = len(body) if isinstance(body, str | bytes) else 0
        result = await self._calls.call(queue, message, size=size, most=PUBLISHED_AT_ONCE)
        if result.error is not None:
            raise result.error
        return result

    async def send_many(
        self, endpoint: str, messages: Iterable[RabbitMqMessage]
    ) -> list[RabbitMqSendResult]:
        """Send many messages in a call of their own.

        Returns:
            As `RabbitMqSender.send_many`: a result per message, in order. When the task is cancelled,
            sending goes on.

        Raises:
            InvalidEndpoint: nothing was sent.
            ConfigurationError: the sender is closed.
        """
        self._calls.check_open()
        return await asyncio.to_thread(self._sender.send_many, endpoint, list(messages))

    async def aclose(self) -> None:
        """Send at once what waits, wait for the results, and end the connection."""
        await self._calls.close()
        await asyncio.to_thread(self._sender.close)

    async def __aenter__(self) -> Self:
        self._calls.check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
