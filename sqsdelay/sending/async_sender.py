"""The sender for asyncio: tasks that send within a few milliseconds of each other share requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Final, ParamSpec, Self, TypeVar

from sqsdelay.core.coalescing import NeverLeft
from sqsdelay.core.delay import Delay, begun_within
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.loop_calls import DEFAULT_LINGER_MS, DEFAULT_MAX_WAITING, LoopCalls
from sqsdelay.core.message import AttributeInput, CheckedMessage, Message, Route, checked
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.parking.parking import Change
from sqsdelay.sending.sender import QueueSender, SendResult, sent, too_late, with_header

P = ParamSpec("P")
R = TypeVar("R")
_PAGE: Final = 100


class AsyncQueueSender:
    """A `QueueSender` for asyncio, whose requests are made by a few threads: as many as ``sender`` has for
    concurrency. ``linger_ms``: how long a message waits for others to share a request with; 0 lets each have
    its own. ``max_waiting``: messages that wait or are in flight; further calls of `send` wait until one is
    done. Raises ConfigurationError: a setting out of range."""

    def __init__(
        self,
        sender: QueueSender,
        *,
        linger_ms: float = DEFAULT_LINGER_MS,
        max_waiting: int = DEFAULT_MAX_WAITING,
    ) -> None:
        self._sender = sender
        self._calls = LoopCalls[CheckedMessage, SendResult](
            self._send,
            linger_ms=linger_ms,
            lanes=sender.concurrency,
            max_waiting=max_waiting,
            within_seconds=sender.deadline_seconds,
        )

    def _send(
        self, key: tuple[Endpoint, Route], messages: list[CheckedMessage]
    ) -> list[SendResult]:
        with begun_within(self._sender._settings.begin_within_seconds):
            return self._sender._send_all(key[0], messages)

    async def send(
        self,
        endpoint: str,
        body: str,
        *,
        delay: Delay | None = None,
        due_at: datetime | None = None,
        attributes: Mapping[str, AttributeInput] | None = None,
        message_id: str | None = None,
        message_group_id: str | None = None,
        message_deduplication_id: str | None = None,
        trace_header: str | None = None,
    ) -> SendResult:
        """Send one message, in one request with what other tasks send; arguments and errors as of
        `DelaySender.send`, errors for this message only, whatever it shared its request with.

        A task that is cancelled before its message has left does not send it; later it may or may not
        be sent.

        Raises:
            ConfigurationError: also where the sender is closed.
        """
        ids = (message_id, message_group_id, trace_header, message_deduplication_id)
        message = Message(body, delay, due_at, attributes or {}, *ids)
        parsed = Endpoint.parse(endpoint)
        with self._sender.traced(parsed) as header:
            ready = checked(with_header(message, header), fifo=parsed.fifo)
            key, most = self._sender._together(parsed, ready)
            try:
                return sent(await self._calls.call(key, ready, size=ready.size, most=most))
            except NeverLeft:
                raise too_late(parsed) from None

    async def send_many(self, endpoint: str, messages: Iterable[Message]) -> list[SendResult]:
        """Send many messages in full batches of their own; answers and errors as of `DelaySender.send_many`.
        When the task is cancelled, sending goes on."""
        return await self._in_thread(self._sender.send_many, endpoint, list(messages))

    async def cancel(self, endpoint: str, message_id: str) -> Change:
        """Cancel a message that waits; arguments, answers and errors as of `DelaySender.cancel`."""
        return await self._in_thread(self._sender.cancel, endpoint, message_id)

    async def reschedule(
        self,
        endpoint: str,
        message_id: str,
        *,
        delay: Delay | None = None,
        due_at: datetime | None = None,
    ) -> Change:
        """Move a message that waits; arguments, answers and errors as of `DelaySender.reschedule`."""
        move = self._sender.reschedule
        return await self._in_thread(move, endpoint, message_id, delay=delay, due_at=due_at)

    async def pending(
        self,
        endpoint: str,
        *,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """The messages that wait in the endpoint's store, read page by page: for ``async for``. Arguments
        and errors as of `DelaySender.pending`."""
        messages = await self._in_thread(
            self._sender.pending, endpoint, due_from=due_from, due_before=due_before
        )
        while page := await asyncio.to_thread(lambda: list(islice(messages, _PAGE))):
            for message in page:
                yield message

    async def _in_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        self._calls.check_open()
        return await asyncio.to_thread(call, *arguments, **named)

    async def aclose(self) -> None:
        """Send at once what waits, and wait for the results; further sends are refused."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        self._calls.check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
