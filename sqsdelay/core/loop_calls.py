"""Shared calls of tasks: a few threads make them, each for several tasks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
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
        self._idle = asyncio.Event()
        self._coalescer = Coalescer[_OfTask[T, R]](
            linger_seconds=linger, lanes=lanes, within=within
        )
        self.threads = ThreadPoolExecutor(lanes, thread_name_prefix="delay-sender")
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None

    async def call(self, key: Hashable, item: T, *, size: int, most: int) -> R:
        now = self.loop.time()
        self._calls += 1
        try:
            full, until = self._room.locked(), now + self._within
            try:
                async with asyncio.timeout_at(until) if full else nullcontext():
                    await self._room.acquire()
            except TimeoutError:
                raise NeverLeft from None
            result: asyncio.Future[R] = self.loop.create_future()
            waiting = self._coalescer.add(key, (item, result), size=size, most=most, now=now)
            if not self._soon:
                # Once for all tasks that run before it: their threads would only take turns with them.
                self._soon = True
                self.loop.call_soon(self._go_on)
            try:
                return await result
            finally:
                self._coalescer.withdraw(waiting)
                self._room.release()
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    def _go_on(self) -> None:
        """Make the calls that may be made, and look again when others may."""
        self._soon, now = False, self.loop.time()
        for waiting in self._coalescer.overdue(now):
            if not waiting.item[1].done():
                waiting.item[1].set_exception(NeverLeft())
        while group := self._coalescer.take(now):
            work = partial(self._work, group[0].line.key, [waiting.item[0] for waiting in group])
            making = Future[Sequence[R]]()
            try:
                self.threads.submit(_make, making, work)
            except RuntimeError as error:
                # No thread can be started; those that run would still make the call.
                if making.cancel():
                    making = Future()
                    making.set_exception(error)
            asyncio.wrap_future(making).add_done_callback(partial(self._settle, group))
        if self._timer is not None:
            self._timer.cancel()
        at = self._coalescer.next_at()
        self._timer = None if at == math.inf else self.loop.call_at(at, self._go_on)

    def _settle(
        self, group: list[Waiting[_OfTask[T, R]]], making: asyncio.Future[Sequence[R]]
    ) -> None:
        self._coalescer.done(group)
        error = making.exception()
        for position, (_, result) in enumerate(waiting.item for waiting in group):
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
        while self._calls:
            self._idle.clear()
            await self._idle.wait()
        self.threads.shutdown(wait=False)


def _make(making: Future[R], work: Callable[[], R]) -> None:
    """A call, unless it was taken back."""
    if making.set_running_or_notify_cancel():
        try:
            making.set_result(work())
        except BaseException as error:
            making.set_exception(error)


class LoopCalls(Generic[T, R]):
    """Makes calls for the tasks of one event loop at a time, until it is closed. ``work`` makes one in a
    thread. ``linger_ms``: how long an item waits for others; 0 lets each have a call of its own. ``lanes``:
    calls under way, and threads. ``max_waiting``: items that wait or are in flight; further ones wait until
    one is done. ``within_seconds``: how long an item may wait, for room too, before a call has it. Raises
    ConfigurationError: a setting out of range."""

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
        if here is not None and here.loop is not loop:
            if not here.loop.is_closed():
                raise ConfigurationError(
                    "this sender is in use on another event loop; make one for each loop"
                )
            here.threads.shutdown(wait=False)
            here = None
        if here is None:
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
