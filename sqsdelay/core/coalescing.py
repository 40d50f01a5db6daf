"""Shared calls: what threads need within a few milliseconds of each other leaves in one call."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast

from sqsdelay.core.delay import Clock, SystemClock
from sqsdelay.core.limits import MAX_BATCH_BYTES
from sqsdelay.errors import InvalidSetting

T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E", bound=BaseException)

Work = Callable[[Any, list[T]], Sequence[R]]
"""Makes one call for items of one key; a result for each, in order."""

MAX_LINGER_MS: Final = 1000
"""Longer is no coalescing but a delay, which a message has one of already."""


def checked_linger(linger_ms: float) -> float:
    """The linger in seconds. Raises ConfigurationError: not between 0 and 1,000 ms."""
    if not 0 <= linger_ms <= MAX_LINGER_MS:
        raise InvalidSetting(f"use 0 (off) to {MAX_LINGER_MS}", linger_ms=linger_ms)
    return linger_ms / 1000


@dataclass(eq=False, slots=True)
class Waiting(Generic[T]):
    """One item that waits to leave; ``since`` is when it came."""

    key: Hashable
    item: T
    size: int
    since: float


@dataclass(slots=True)
class _Line(Generic[T]):
    """What waits for one key, in the order in which it came."""

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

    A group leaves when it is full or its first item has lingered, and a lane is free. Until then it
    takes more items: the busier the lanes, the fuller the groups. Of those that may leave, the one
    that has waited longest goes first. The last free lane is kept for a key that has nothing
    in flight, so that a queue that does not answer does not hold up the others. ``linger_seconds``: how long
    an item waits for others; 0 lets each leave by itself. ``lanes``: groups in flight."""

    def __init__(self, *, linger_seconds: float, lanes: int) -> None:
        self._linger = linger_seconds
        self._lanes = lanes
        self._lines: dict[Hashable, _Line[T]] = {}
        self._in_flight = 0
        self._hurried = False

    def add(self, key: Hashable, item: T, *, size: int, most: int, now: float) -> Waiting[T]:
        """Let an item wait. ``key``: what it shares with those it may leave with. ``size``: its bytes as SQS
        counts them. ``most``: how many one request for this key takes. ``now``: monotonic seconds."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(most if self._linger else 1)
        waiting = Waiting(key, item, size, now)
        line.waiting[waiting] = None
        line.bytes += size
        return waiting

    def withdraw(self, waiting: Waiting[T]) -> bool:
        """Take back an item whose caller has given up; False if it has left already."""
        line = self._lines.get(waiting.key)
        if line is None or waiting not in line.waiting:
            return False
        line.remove(waiting)
        self._forget_if_idle(waiting.key)
        return True

    def take(self, now: float, key: Hashable | None = None) -> list[Waiting[T]]:
        """The next group that may leave now, of a key if one is named; `done` gives its lane back."""
        group = self.ready(now, key)
        if group:
            line = self._lines[group[0].key]
            for waiting in group:
                line.remove(waiting)
            line.in_flight += 1
            self._in_flight += 1
        return group

    def ready(self, now: float, key: Hashable | None = None) -> list[Waiting[T]]:
        """The group that `take` would give."""
        keys = self._lines if key is None else (key,)
        lines = [line for each in keys if (line := self._lines.get(each)) is not None]
        due = [line for line in lines if self._leaves_at(line) <= now]
        group, size = list[Waiting[T]](), 0
        if not due:
            return group
        line = min(due, key=_Line.since)
        for waiting in line.waiting:
            if group and (len(group) == line.most or size + waiting.size > MAX_BATCH_BYTES):
                break
            group.append(waiting)
            size += waiting.size
        return group

    def done(self, group: list[Waiting[T]]) -> None:
        """A group's outcome is known."""
        key = group[0].key
        self._lines[key].in_flight -= 1
        self._in_flight -= 1
        self._forget_if_idle(key)

    def next_at(self) -> float:
        """When `take` is worth a try, if nothing is added or done before; infinity for never."""
        return min(map(self._leaves_at, self._lines.values()), default=math.inf)

    def hurry(self) -> None:
        """Let nothing linger from now on: no more callers will come."""
        self._hurried = True

    def _leaves_at(self, line: _Line[T]) -> float:
        free = self._lanes - self._in_flight
        has_lane = free > 1 or (free == 1 and (line.in_flight == 0 or self._lanes == 1))
        if not line.waiting or not has_lane:
            return math.inf
        full = len(line.waiting) >= line.most or line.bytes >= MAX_BATCH_BYTES
        return -math.inf if self._hurried or full else line.since() + self._linger

    def _forget_if_idle(self, key: Hashable) -> None:
        line = self._lines[key]
        if not line.waiting and not line.in_flight:
            del self._lines[key]


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
    since: float
    until: float
    error: BaseException | None = None
    woken: threading.Event = field(default_factory=threading.Event)


_OfThread = tuple[T, int, _Thread[R]]
"""An item, which of its thread's it is, and the thread."""


class SharedCalls(Generic[T, R]):
    """Makes calls for the threads that need them, by these threads: there are none in the background, so
    there is nothing to close. Thread-safe.

    A thread makes only calls that have items of its own. Of those that share a call, the one with the
    most time left makes it, and none of the others waits for longer than it may. ``work`` makes a call.
    ``linger_ms``: how long an item waits for others. ``lanes``: calls under way. ``clock``: the local one."""

    def __init__(
        self, work: Work[T, R], *, linger_ms: float, lanes: int, clock: Clock | None = None
    ) -> None:
        self._work = work
        self._clock = clock or SystemClock()
        self._linger = checked_linger(linger_ms)
        self._coalescer = Coalescer[_OfThread[T, R]](linger_seconds=self._linger, lanes=lanes)
        self._lock = threading.Lock()

    def call(
        self,
        key: Hashable,
        items: Sequence[T],
        *,
        sizes: Sequence[int],
        most: int,
        within_seconds: float = math.inf,
    ) -> list[R]:
        """The items' own results, in order. For the arguments see `Coalescer.add`. ``within_seconds``: how
        long it may wait for another thread. Raises what ``work`` raised in this thread; Interrupted: another
        had its items, and failed or has no result in time; NeverLeft."""
        now = self._clock.monotonic()
        thread = _Thread[R]([None] * len(items), len(items), now, now + within_seconds)
        waiting = list[Waiting[_OfThread[T, R]]]()
        try:
            with self._lock:
                for n, (item, size) in enumerate(zip(items, sizes, strict=True)):
                    each = (item, n, thread)
                    waiting.append(self._coalescer.add(key, each, size=size, most=most, now=now))
            self._serve(key, thread)
        finally:
            never_left = thread.missing > 0 and self._withdraw(waiting)
        if thread.error is not None:
            raise Interrupted(f"the thread that made the call failed: {thread.error!r}")
        if never_left:
            raise NeverLeft
        if thread.missing:
            raise Interrupted("the thread that makes the call has no answer in time")
        return cast(list[R], thread.results)

    def _serve(self, key: Hashable, thread: _Thread[R]) -> None:
        while thread.missing:
            thread.woken.clear()
            with self._lock:
                now = self._clock.monotonic()
                if now >= thread.until:
                    return
                group = self._coalescer.ready(now, key)
                if group and (maker := _maker(group)) is not thread:
                    maker.woken.set()
                    group = []
                elif group:
                    self._coalescer.take(now, key)
                    self._give_turn()
            if group:
                self._make(key, group)
            elif thread.missing:
                left = thread.since + self._linger - now
                # Once it has lingered, who gives back a lane gives it its turn.
                left = min(left if left > 0 else math.inf, thread.until - now)
                thread.woken.wait(None if left == math.inf else left)

    def _make(self, key: Hashable, group: list[Waiting[_OfThread[T, R]]]) -> None:
        results: Sequence[R] = ()
        error: BaseException | None = None
        try:
            results = self._work(key, [waiting.item[0] for waiting in group])
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
                    thread.woken.set()
                self._coalescer.done(group)
                self._give_turn()

    def _withdraw(self, waiting: Sequence[Waiting[_OfThread[T, R]]]) -> bool:
        """Take back what has not left, and give another its turn; whether none had left."""
        with self._lock:
            stayed = [self._coalescer.withdraw(each) for each in waiting]
            self._give_turn()
        return all(stayed)

    def _give_turn(self) -> None:
        if group := self._coalescer.ready(self._clock.monotonic()):
            _maker(group).woken.set()


def _maker(group: Sequence[Waiting[_OfThread[T, R]]]) -> _Thread[R]:
    """The thread with the most time left; of several, the first."""
    return max((waiting.item[2] for waiting in group), key=lambda thread: thread.until)
