"""Sending from asyncio: tasks that send within a few milliseconds of each other share requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Final, Self

from sqsdelay.core.checked_message import CheckedMessage, checked
from sqsdelay.core.coalescing import Coalescer, Waiting, checked_linger
from sqsdelay.core.delay import Delay
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import AttributeInput, Message
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError
from sqsdelay.parking.schedule import Change
from sqsdelay.sending.batches import SendResult
from sqsdelay.sending.sender import QueueSender, with_header

DEFAULT_LINGER_MS: Final = 5.0
DEFAULT_MAX_WAITING: Final = 10_000
_PAGE: Final = 100


@dataclass(eq=False, slots=True)
class _Call:
    """A task's message, and the result it waits for."""

    endpoint: Endpoint
    message: CheckedMessage
    result: asyncio.Future[SendResult]


class _LoopSends:
    """What waits and is in flight on one event loop.

    Args:
        sender: what sends, in threads.
        linger_seconds: how long a message waits for others.
        max_waiting: messages that wait or are in flight.
    """

    def __init__(self, sender: QueueSender, *, linger_seconds: float, max_waiting: int) -> None:
        lanes = sender.concurrency
        self.loop = asyncio.get_running_loop()
        self.room = asyncio.Semaphore(max_waiting)
        self.calls = 0
        self._idle: asyncio.Future[None] | None = None
        self._sender = sender
        self._coalescer = Coalescer[_Call](linger_seconds=linger_seconds, lanes=lanes)
        self._threads = ThreadPoolExecutor(lanes, thread_name_prefix="delay-sender")
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, endpoint: Endpoint, message: CheckedMessage) -> SendResult:
        """The message's own result; cancelled while it waits, it does not leave."""
        self.calls += 1
        try:
            async with self.room:
                return await self._sent(endpoint, message)
        finally:
            self.calls -= 1
            if self._idle is not None and not self.calls and not self._idle.done():
                self._idle.set_result(None)

    async def _sent(self, endpoint: Endpoint, message: CheckedMessage) -> SendResult:
        route, most = self._sender.batches.together(endpoint, message)
        call = _Call(endpoint, message, self.loop.create_future())
        waiting = self._coalescer.add(
            (endpoint, route), call, size=message.size, most=most, now=self.loop.time()
        )
        self._go_on()
        try:
            return await call.result
        finally:
            self._coalescer.withdraw(waiting)

    def _go_on(self) -> None:
        """Send what may leave, and look again when something else may."""
        while group := self._coalescer.take(self.loop.time()):
            calls = [waiting.item for waiting in group]
            work = partial(
                self._sender.batches.send, calls[0].endpoint, [call.message for call in calls]
            )
            sending = self.loop.run_in_executor(self._threads, work)
            sending.add_done_callback(partial(self._settle, group))
        at = self._coalescer.next_at()
        if self._timer is not None:
            if self._timer.when() == at:
                return
            self._timer.cancel()
        self._timer = None if at == math.inf else self.loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._go_on()

    def _settle(
        self, group: list[Waiting[_Call]], sending: asyncio.Future[list[SendResult]]
    ) -> None:
        self._coalescer.done(group)
        error = sending.exception()
        for position, waiting in enumerate(group):
            result = waiting.item.result
            if result.done():
                continue  # Its task was cancelled meanwhile.
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(sending.result()[position])
        self._go_on()

    async def finish(self) -> None:
        """Send what waits at once, and wait for all results."""
        self._coalescer.hurry()
        self._go_on()
        if self.calls:
            self._idle = self.loop.create_future()
            await self._idle
        self.end()

    def end(self) -> None:
        """Let the threads go; they end with what they are sending."""
        self._threads.shutdown(wait=False)


class AsyncQueueSender:
    """A `QueueSender` for asyncio, whose requests are made by a few threads.

    Args:
        sender: what sends; its concurrency is the number of threads.
        linger_ms: how long a message waits for others to share a request with; 0 lets each have its own.
        max_waiting: messages that wait or are in flight; further calls of `send` wait until one is done.

    Raises:
        ConfigurationError: a setting out of range.
    """

    def __init__(
        self,
        sender: QueueSender,
        *,
        linger_ms: float = DEFAULT_LINGER_MS,
        max_waiting: int = DEFAULT_MAX_WAITING,
    ) -> None:
        if max_waiting < 1:
            raise ConfigurationError(f"max_waiting={max_waiting}; use 1 or more")
        self._sender = sender
        self._linger = checked_linger(linger_ms)
        self._max_waiting = max_waiting
        self._closed = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """In a forked process: what waits there belongs to tasks of the parent."""
        self._sends: _LoopSends | None = None

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
        """Send one message, in one request with what other tasks send; see `Message`.

        A task that is cancelled before its message has left does not send it; later it may or may not
        be sent.

        Args:
            endpoint: the destination queue's name, URL or ARN.

        Raises:
            ConfigurationError: the sender is closed.
            As `DelaySender.send`: for this message only, whatever it shared its request with.
        """
        message = Message(
            body,
            delay=delay,
            due_at=due_at,
            attributes=attributes or {},
            message_id=message_id,
            message_group_id=message_group_id,
            message_deduplication_id=message_deduplication_id,
            trace_header=trace_header,
        )
        parsed = Endpoint.parse(endpoint)
        with self._sender.traced(parsed) as header:
            ready = checked(with_header(message, header), fifo=parsed.fifo)
            result = await self._sends_here().send(parsed, ready)
            if result.error is not None:
                raise result.error
        return result

    async def send_many(self, endpoint: str, messages: Iterable[Message]) -> list[SendResult]:
        """Send many messages in full batches of their own, several batches at a time.

        Returns:
            As `DelaySender.send_many`: a result per message, in order. When the task is cancelled, sending
            goes on.

        Raises:
            InvalidEndpoint: nothing was sent.
            ConfigurationError: the sender is closed.
        """
        self._check_open()
        return await asyncio.to_thread(self._sender.send_many, endpoint, list(messages))

    async def cancel(self, endpoint: str, message_id: str) -> Change:
        """Cancel a message that waits; arguments, answers and errors as of `DelaySender.cancel`."""
        self._check_open()
        return await asyncio.to_thread(self._sender.cancel, endpoint, message_id)

    async def reschedule(
        self,
        endpoint: str,
        message_id: str,
        *,
        delay: Delay | None = None,
        due_at: datetime | None = None,
    ) -> Change:
        """Move a message that waits; arguments, answers and errors as of `DelaySender.reschedule`."""
        self._check_open()
        move = partial(self._sender.reschedule, endpoint, message_id, delay=delay, due_at=due_at)
        return await asyncio.to_thread(move)

    async def pending(
        self,
        endpoint: str,
        *,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """The messages that wait in the endpoint's store, read page by page: for ``async for``.

        Arguments and errors as of `DelaySender.pending`.
        """
        self._check_open()
        list_them = partial(
            self._sender.pending, endpoint, due_from=due_from, due_before=due_before
        )
        messages = await asyncio.to_thread(list_them)
        while page := await asyncio.to_thread(_page, messages):
            for message in page:
                yield message

    async def aclose(self) -> None:
        """Send at once what waits, and wait for the results; further sends are refused."""
        self._closed = True
        sends, self._sends = self._sends, None
        if sends is not None and sends.loop is asyncio.get_running_loop():
            await sends.finish()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("this sender is closed; make another one")

    def _sends_here(self) -> _LoopSends:
        self._check_open()
        sends = self._sends
        if sends is None or sends.loop is not asyncio.get_running_loop():
            if sends is not None and not sends.loop.is_closed():
                raise ConfigurationError(
                    "this sender is in use on another event loop; make one for each loop"
                )
            if sends is not None:
                sends.end()
            sends = self._sends = _LoopSends(
                self._sender, linger_seconds=self._linger, max_waiting=self._max_waiting
            )
        return sends


def _page(messages: Iterator[StoredMessage]) -> list[StoredMessage]:
    return list(islice(messages, _PAGE))
