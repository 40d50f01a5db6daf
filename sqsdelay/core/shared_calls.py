"""Threads that make calls for a few items each share calls: one of them makes it for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.coalescing import Coalescer, Waiting, checked_linger

T = TypeVar("T")
R = TypeVar("R")

Work = Callable[[Hashable, list[T]], Sequence[R]]
"""Makes one call for items of one key; a result for each, in order."""


@dataclass(eq=False, slots=True)
class _Thread(Generic[T, R]):
    """A thread that waits for results, or for its turn to make the call."""

    results: list[R | None]
    missing: int
    since: float
    error: BaseException | None = None
    woken: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False, slots=True)
class _Item(Generic[T, R]):
    """One item, and which of its thread's."""

    item: T
    position: int
    thread: _Thread[T, R]


class SharedCalls(Generic[T, R]):
    """Makes calls for the threads that need them, by these threads: there are none in the background, so
    there is nothing to close. Thread-safe.

    A thread makes calls of its own key only: another's may not be answered.

    Args:
        work: makes a call.
        linger_ms: how long an item waits for others.
        lanes: calls under way.
        clock: the local clock.
    """

    def __init__(
        self, work: Work[T, R], *, linger_ms: float, lanes: int, clock: Clock | None = None
    ) -> None:
        self._work = work
        self._clock = clock or SystemClock()
        self._linger = checked_linger(linger_ms)
        self._coalescer = Coalescer[_Item[T, R]](linger_seconds=self._linger, lanes=lanes)
        self._lock = threading.Lock()

    def call(
        self, key: Hashable, items: Sequence[T], *, sizes: Sequence[int], most: int
    ) -> list[R]:
        """The items' own results, in order.

        Args:
            key: what they share with those they may leave with.
            sizes: each one's bytes.
            most: how many one call takes.

        Raises:
            What ``work`` raised in this thread. In the others whose items it had: `Interrupted`.
        """
        now = self._clock.monotonic()
        thread = _Thread[T, R]([None] * len(items), len(items), now)
        with self._lock:
            waiting = [
                self._coalescer.add(key, _Item(item, n, thread), size=sizes[n], most=most, now=now)
                for n, item in enumerate(items)
            ]
        try:
            self._serve(key, thread)
        finally:
            if thread.missing:
                self._withdraw(waiting)
        if thread.error is not None:
            raise Interrupted(f"the thread that made the call failed: {thread.error!r}")
        return cast(list[R], thread.results)

    def _serve(self, key: Hashable, thread: _Thread[T, R]) -> None:
        while thread.missing:
            thread.woken.clear()
            with self._lock:
                now = self._clock.monotonic()
                group = self._coalescer.take(now, key)
                if group:
                    self._give_turn()
            if group:
                self._make(key, group)
            elif thread.missing:
                left = thread.since + self._linger - now
                # Once it has lingered, who gives back a lane gives it its turn.
                thread.woken.wait(left if left > 0 else None)

    def _make(self, key: Hashable, group: list[Waiting[_Item[T, R]]]) -> None:
        items = [waiting.item for waiting in group]
        results: Sequence[R] = ()
        error: BaseException | None = None
        try:
            results = self._work(key, [each.item for each in items])
        except BaseException as raised:
            error = raised
            raise
        finally:
            with self._lock:
                for n, each in enumerate(items):
                    if error is None:
                        each.thread.results[each.position] = results[n]
                    each.thread.error = each.thread.error or error
                    each.thread.missing -= 1
                    each.thread.woken.set()
                self._coalescer.done(group)
                self._give_turn()

    def _withdraw(self, waiting: Sequence[Waiting[_Item[T, R]]]) -> None:
        """Interrupted while they waited: they do not leave, and another takes the turn."""
        with self._lock:
            for each in waiting:
                self._coalescer.withdraw(each)
            self._give_turn()

    def _give_turn(self) -> None:
        following = self._coalescer.first(self._clock.monotonic())
        if following is not None:
            following.item.thread.woken.set()


class Interrupted(Exception):
    """The thread that made a call for several failed; whether the call was made is not known."""
