"""Shared calls of tasks: a few threads make them, each for several tasks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Generic, TypeVar

from sqsdelay.core.coalescing import Coalescer, NeverLeft, Waiting, Work, checked_linger, own
from sqsdelay.core.delay import check_range
from sqsdelay.errors import ConfigurationError

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_LINGER_MS: Final = 5.0
DEFAULT_MAX_WAITING: Final = 10_000

_OfTask = tuple[T, asyncio.Future[R]]
"""A task's item, and the result it waits for."""


class _OneLoop(Generic[T, R]):
    """What waits and is in flight on one event loop."""

    def __init__(
        self, work: Work[T, R], linger: float, lanes: int, max_waiting: int, within: float
    ) -> None:
        self._work, self._within = work, within
        self.loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(max_waiting)
        self._calls = 0
        self._idle: asyncio.Future[None] | None = None
        self._coalescer = Coalescer[_OfTask[T, R]](linger_seconds=linger, lanes=lanes)
        self._threads = ThreadPoolExecutor(lanes, thread_name_prefix="delay-sender")
        self._timer: asyncio.TimerHandle | None = None

    async def call(self, key: Hashable, item: T, *, size: int, most: int) -> R:
        until = self.loop.time() + self._within
        self._calls += 1
        try:
            try:
                async with asyncio.timeout_at(until if self._room.locked() else None):
                    await self._room.acquire()
            except TimeoutError:
                raise NeverLeft from None
            try:
                return await self._called(key, item, size, most, until)
            finally:
                self._room.release()
        finally:
            self._calls -= 1
            if self._idle is not None and not self._calls and not self._idle.done():
                self._idle.set_result(None)

    async def _called(self, key: Hashable, item: T, size: int, most: int, until: float) -> R:
        result: asyncio.Future[R] = self.loop.create_future()
        now = self.loop.time()
        waiting = self._coalescer.add(key, (item, result), size=size, most=most, now=now)
        self._go_on()

        def give_up() -> None:
            if self._coalescer.withdraw(waiting) and not result.done():
                result.set_exception(NeverLeft())

        turn = self.loop.call_at(until, give_up)
        try:
            return await result
        finally:
            turn.cancel()
            self._coalescer.withdraw(waiting)

    def _go_on(self) -> None:
        """Make the calls that may be made, and look again when others may."""
        while group := self._coalescer.take(self.loop.time()):
            work = partial(self._work, group[0].key, [waiting.item[0] for waiting in group])
            making = self.loop.run_in_executor(self._threads, work)
            making.add_done_callback(partial(self._settle, group))
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
        self, group: list[Waiting[_OfTask[T, R]]], making: asyncio.Future[Sequence[R]]
    ) -> None:
        self._coalescer.done(group)
        error = making.exception()
        for position, waiting in enumerate(group):
            _, result = waiting.item
            if result.done():
                continue  # Its task was cancelled meanwhile.
            if error is not None:
                result.set_exception(own(error))
            else:
                result.set_result(making.result()[position])
        self._go_on()

    async def finish(self) -> None:
        """Let what waits leave at once, and wait for all results."""
        self._coalescer.hurry()
        self._go_on()
        if self._calls:
            self._idle = self._idle or self.loop.create_future()
            # Several may wait for it, and one that gives up ends it for none of the others.
            await asyncio.shield(self._idle)
        self.end()

    def end(self) -> None:
        """Let the threads go; they end with what they are doing."""
        self._threads.shutdown(wait=False)


class LoopCalls(Generic[T, R]):
    """Makes calls for the tasks of one event loop at a time, until it is closed. Raises ConfigurationError: a
    setting out of range.

    Args:
        work: makes one call for the items of a key, in a thread; a result for each, in order.
        linger_ms: how long an item waits for others; 0 lets each have a call of its own.
        lanes: calls under way, and threads.
        max_waiting: items that wait or are in flight; further ones wait until one is done.
        within_seconds: how long an item may wait, for room too, before a call has it.
    """

    def __init__(
        self,
        work: Work[T, R],
        *,
        linger_ms: float,
        lanes: int,
        max_waiting: int,
        within_seconds: float = math.inf,
    ) -> None:
        check_range(1, max_waiting=max_waiting)
        settings = checked_linger(linger_ms), lanes, max_waiting, within_seconds
        self._begin: Callable[[], _OneLoop[T, R]] = partial(_OneLoop, work, *settings)
        self._closed = False
        self._here: _OneLoop[T, R] | None = None

    def begin_anew(self) -> None:
        """In a forked process: what waits there belongs to tasks of the parent."""
        self._here = None

    async def call(self, key: Hashable, item: T, *, size: int, most: int) -> R:
        """The item's own result; cancelled while it waits, it does not leave. For the arguments see
        `Coalescer.add`. Raises what ``work`` raised; NeverLeft; ConfigurationError: closed, or in use on
        another event loop."""
        self.check_open()
        here, loop = self._here, asyncio.get_running_loop()
        if here is None or here.loop is not loop:
            if here is not None:
                if not here.loop.is_closed():
                    raise ConfigurationError(
                        "this sender is in use on another event loop; make one for each loop"
                    )
                here.end()
            here = self._here = self._begin()
        return await here.call(key, item, size=size, most=most)

    async def close(self) -> None:
        """Let what waits leave at once, and wait for the results; further calls are refused."""
        self._closed = True
        if self._here is not None and self._here.loop is asyncio.get_running_loop():
            await self._here.finish()

    def check_open(self) -> None:
        """Raises ConfigurationError: closed."""
        if self._closed:
            raise ConfigurationError("this sender is closed; make another one")
