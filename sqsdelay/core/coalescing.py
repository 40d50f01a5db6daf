"""Shared calls: what threads need within a few milliseconds of each other leaves in one call."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar, cast

from sqsdelay.core.delay import Clock, SystemClock, check_range
from sqsdelay.core.limits import MAX_BATCH_BYTES

T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E", bound=BaseException)

Work = Callable[[Any, list[T]], Sequence[R]]
"""Makes one call for items of one key; a result for each, in order."""

MAX_LINGER_MS: Final = 1000
"""Longer is no coalescing but a delay, which a message has one of already."""


def checked_linger(linger_ms: float) -> float:
    """The linger in seconds. Raises ConfigurationError: not between 0 and 1,000 ms."""
    check_range(0, MAX_LINGER_MS, ", where 0 is off", linger_ms=linger_ms)
    return linger_ms / 1000


@dataclass(eq=False, slots=True)
class Waiting(Generic[T]):
    """One item that waits to leave; ``since`` is when it came."""

    line: Line[T]
    item: T
    size: int
    since: float


@dataclass(eq=False, slots=True)
class Line(Generic[T]):
    """What waits for one key, in the order in which it came."""

    key: Hashable
    most: int
    waiting: dict[Waiting[T], None] = field(default_factory=dict)
    bytes: int = 0
    in_flight: int = 0

    def since(self) -> float:
        return next(iter(self.waiting)).since

    def remove(self, waiting: Waiting[T]) -> None:
        del self.waiting[waiting]
        self.bytes -= waiting.size


class Coalescer(Generic[T]):
    """Groups items of the same key, each group as large as one request takes.

    A group leaves when it is full or its first item has lingered, and a lane is free. Until then it takes
    more: the busier the lanes, the fuller the groups. Of those that may leave, the one that has waited
    longest goes first. The last free lane is kept for a key that has nothing in flight, so that a queue that
    does not answer holds up no other. ``linger_seconds``: how long an item waits for others; 0 lets each
    leave by itself. ``lanes``: groups in flight. ``within``: for how many seconds an item may wait at all."""

    def __init__(self, *, linger_seconds: float, lanes: int, within: float = math.inf) -> None:
        self._linger, self._lanes, self._within = linger_seconds, lanes, within
        self._lines: dict[Hashable, Line[T]] = {}
        self._in_flight = 0
        self._hurried = False

    def add(self, key: Hashable, item: T, *, size: int, most: int, now: float) -> Waiting[T]:
        """Let an item wait. ``key``: what it shares with those it may leave with. ``size``: its bytes as SQS
        counts them. ``most``: how many one request for this key takes. ``now``: monotonic seconds."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key, most if self._linger else 1)
        waiting = Waiting(line, item, size, now)
        line.waiting[waiting] = None
        line.bytes += size
        return waiting

    def withdraw(self, waiting: Waiting[T]) -> bool:
        """Take back an item whose caller has given up; False if it has left already."""
        if waiting not in waiting.line.waiting:
            return False
        waiting.line.remove(waiting)
        self._forget_if_idle(waiting.line)
        return True

    def overdue(self, now: float) -> list[Waiting[T]]:
        """Take back what has waited for as long as it may."""
        late = [
            waiting
            for line in self._lines.values()
            for waiting in takewhile(lambda each: each.since + self._within <= now, line.waiting)
        ]
        for waiting in late:
            self.withdraw(waiting)
        return late

    def take(self, now: float, key: Hashable | None = None) -> list[Waiting[T]]:
        """The next group that may leave now, of a key if one is named; `done` gives its lane back."""
        group = self.ready(now, key)
        if group:
            line = group[0].line
            for waiting in group:
                line.remove(waiting)
            line.in_flight += 1
            self._in_flight += 1
        return group

    def ready(self, now: float, key: Hashable | None = None) -> list[Waiting[T]]:
        """The group that `take` would give."""
        lines = self._lines.values() if key is None else filter(None, [self._lines.get(key)])
        due = [line for line in lines if self._leaves_at(line) <= now]
        group, size = list[Waiting[T]](), 0
        first = min(due, key=Line.since, default=None)
        for waiting in () if first is None else first.waiting:
            if group and (len(group) == waiting.line.most or size + waiting.size > MAX_BATCH_BYTES):
                break
            group.append(waiting)
            size += waiting.size
        return group

    def done(self, group: list[Waiting[T]]) -> None:
        """A group's outcome is known."""
        group[0].line.in_flight -= 1
        self._in_flight -= 1
        self._forget_if_idle(group[0].line)

    def next_at(self) -> float:
        """When `overdue` or `take` is worth a try, if nothing is added or done before; infinity for never."""
        lines = [line for line in self._lines.values() if line.waiting]
        turns = (min(self._leaves_at(line), line.since() + self._within) for line in lines)
        return min(turns, default=math.inf)

    def hurry(self) -> None:
        """Let nothing linger from now on: no more callers will come."""
        self._hurried = True

    def _leaves_at(self, line: Line[T]) -> float:
        free = self._lanes - self._in_flight
        has_lane = free > 1 or (free == 1 and (line.in_flight == 0 or self._lanes == 1))
        if not line.waiting or not has_lane:
            return math.inf
        full = len(line.waiting) >= line.most or line.bytes >= MAX_BATCH_BYTES
        return -math.inf if self._hurried or full else line.since() + self._linger

    def _forget_if_idle(self, line: Line[T]) -> None:
        if not line.waiting and not line.in_flight:
            del self._lines[line.key]


def own(error: E) -> E:
    """The error as an object of the caller's own: type, text, attributes, notes and cause, no traceback.
    Python appends frames and notes to the object that is raised: callers that share a call that failed would
    each show those of all."""
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    if notes := getattr(error, "__notes__", None):
        made.__notes__ = list(notes)
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    return made


class Interrupted(Exception):
    """The thread that makes a call for several failed or takes too long. The call may have been made."""


class NeverLeft(Exception):
    """The caller's time was over before a call had its items."""


@dataclass(eq=False, slots=True)
class _Thread(Generic[R]):
    """A thread that waits for results, or for its turn to make the call."""

    results: list[R | None]
    missing: int
    until: float
    error: BaseException | None = None
    woken: SimpleQueue[None] = field(default_factory=SimpleQueue)


_OfThread = tuple[T, int, _Thread[R]]
"""An item, which of its thread's it is, and the thread."""


class SharedCalls(Generic[T, R]):
    """Makes calls for the threads that need them, by these threads: there are none in the background, so
    there is nothing to close. Thread-safe.

    A thread makes only calls that have items of its own. Of those that share a call, the one with the
    most time left makes it, and none of the others waits for longer than it may. ``work`` makes a call.
    ``linger_ms``: how long an item waits for others. ``lanes``: calls under way. ``within_seconds``: how long
    a thread may wait for another."""

    def __init__(
        self, work: Work[T, R], *, linger_ms: float, lanes: int, within_seconds: float = math.inf
    ) -> None:
        self._work, self._within = work, within_seconds
        self._clock: Clock = SystemClock()
        self._linger = checked_linger(linger_ms)
        self._coalescer = Coalescer[_OfThread[T, R]](linger_seconds=self._linger, lanes=lanes)
        self._lock = threading.Lock()

    def call(
        self, key: Hashable, items: Sequence[T], *, sizes: Sequence[int], most: int
    ) -> list[R]:
        """The items' own results, in order; arguments as of `Coalescer.add`. Raises what ``work`` raised in
        this thread; Interrupted: another had its items, and failed or has no result in time; NeverLeft."""
        now = self._clock.monotonic()
        thread = _Thread[R]([None] * len(items), len(items), now + self._within)
        waiting = list[Waiting[_OfThread[T, R]]]()
        try:
            with self._lock:
                for n, (item, size) in enumerate(zip(items, sizes, strict=True)):
                    each = (item, n, thread)
                    waiting.append(self._coalescer.add(key, each, size=size, most=most, now=now))
            self._serve(waiting, thread)
        finally:
            never_left = thread.missing > 0 and self._withdraw(waiting)
        if thread.error is not None:
            raise Interrupted(f"the thread that made the call failed: {thread.error!r}")
        if never_left:
            raise NeverLeft
        if thread.missing:
            raise Interrupted("the thread that makes the call has no answer in time")
        return cast(list[R], thread.results)

    def _serve(self, waiting: Sequence[Waiting[_OfThread[T, R]]], thread: _Thread[R]) -> None:
        while thread.missing:
            line = waiting[0].line
            with self._lock:
                now = self._clock.monotonic()
                if now >= thread.until:
                    return
                group, left = self._coalescer.ready(now, line.key), thread.until - now
                if group and (maker := _maker(group)) is not thread:
                    maker.woken.put(None)
                    group = []
                elif group:
                    self._coalescer.take(now, line.key)
                    self._give_turn(group)
                elif _first(line) == [thread] and line.since() + self._linger > now:
                    # Only the first wakes for the linger. Later, who gives back a lane gives the turn.
                    left = min(left, line.since() + self._linger - now)
            if group:
                self._make(group)
            elif thread.missing:
                with suppress(Empty):
                    thread.woken.get(timeout=None if left == math.inf else left)

    def _make(self, group: list[Waiting[_OfThread[T, R]]]) -> None:
        results: Sequence[R] = ()
        error: BaseException | None = None
        try:
            results = self._work(group[0].line.key, [waiting.item[0] for waiting in group])
        except BaseException as raised:
            error = raised
            raise
        finally:
            with self._lock:
                for n, waiting in enumerate(group):
                    _, position, thread = waiting.item
                    if error is None:
                        thread.results[position] = results[n]
                    thread.error = thread.error or error
                    thread.missing -= 1
                    thread.woken.put(None)
                self._coalescer.done(group)
                self._give_turn()

    def _withdraw(self, waiting: Sequence[Waiting[_OfThread[T, R]]]) -> bool:
        """Take back what has not left, and give another its turn; whether none had left."""
        with self._lock:
            stayed = [self._coalescer.withdraw(each) for each in waiting]
            self._give_turn(waiting)
        return all(stayed)

    def _give_turn(self, left: Sequence[Waiting[_OfThread[T, R]]] = ()) -> None:
        """Wake who makes the next call, and who is now the first of the line that these have left."""
        if group := self._coalescer.ready(self._clock.monotonic()):
            _maker(group).woken.put(None)
        for waiting in left[:1]:
            for first in _first(waiting.line):
                first.woken.put(None)


def _first(line: Line[_OfThread[T, R]]) -> list[_Thread[R]]:
    return [waiting.item[2] for waiting in islice(line.waiting, 1)]


def _maker(group: Sequence[Waiting[_OfThread[T, R]]]) -> _Thread[R]:
    """The thread with the most time left; of several, the first."""
    return max((waiting.item[2] for waiting in group), key=lambda thread: thread.until)
