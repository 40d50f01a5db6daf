"""Time: delays and due times in milliseconds, never rounded down; what a hop does with a message; the clocks
it is counted by, the broker's learned from its answers; and the time that a call has left."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from numbers import Real
from typing import Any, Final, Protocol

from sqsdelay.core.limits import MAX_DUE_MS, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.errors import InvalidDelay, InvalidSetting

logger = logging.getLogger(__name__)

Delay = timedelta | int | float
"""A delay: a ``timedelta``, or seconds, whole or fractional."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NEGATIVE: Final = "is negative; use 0 or more (what was due in the past is sent at once)"


def delay_ms(delay: Delay) -> int:
    """Milliseconds of ``delay``, rounded up. Raises InvalidDelay: negative, not finite, not a number of
    seconds, or past the year 9999."""
    if isinstance(delay, timedelta):
        milliseconds = -1 if delay < timedelta(0) else -(-(delay // _MICROSECOND) // 1000)
    elif isinstance(delay, bool) or not isinstance(delay, int | float):
        raise InvalidDelay(
            f"is a {type(delay).__name__}; give a timedelta or seconds (int or float)", delay=delay
        )
    elif isinstance(delay, float) and not math.isfinite(delay):
        raise InvalidDelay("is not finite; give a timedelta or seconds", delay=delay)
    elif abs(delay) > MAX_DUE_MS:
        # Not shown as it is: Python refuses to print an int of more than 4,300 digits.
        too_long = f"of more than {MAX_DUE_MS} s ends after the year 9999; give a shorter delay"
        raise InvalidDelay(f"delay {too_long if delay > 0 else _NEGATIVE}")
    else:
        milliseconds = -1 if delay < 0 else math.ceil(delay * 1000)
    if milliseconds < 0:
        raise InvalidDelay(_NEGATIVE, delay=delay)
    if milliseconds > MAX_DUE_MS:
        why = (
            f"is longer than {MAX_DUE_MS} ms, which ends after the year 9999; give a shorter delay"
        )
        raise InvalidDelay(why, delay=delay)
    return milliseconds


def due_at_ms(due_at: datetime) -> int:
    """Epoch milliseconds of an absolute due time, rounded up. A past one is fine: one before 1970 is 0, since
    all are overdue alike. Raises InvalidDelay: no time zone, or no ``datetime``."""
    if not isinstance(due_at, datetime):
        raise InvalidDelay(f"is a {type(due_at).__name__}; give a datetime", due_at=due_at)
    if due_at.utcoffset() is None:
        raise InvalidDelay(
            "has no time zone; give one, e.g. datetime(..., tzinfo=timezone.utc)",
            due_at=due_at.isoformat(),
        )
    return max(0, -(-((due_at - EPOCH) // _MICROSECOND) // 1000))


def checked_due_ms(due_ms: int) -> int:
    """``due_ms`` itself, if some clock can still show it. Raises InvalidDelay: it is after the year 9999."""
    if due_ms > MAX_DUE_MS:
        raise InvalidDelay(
            f"due time {due_ms} ms is after the limit of {MAX_DUE_MS} ms (end of the year 9999); "
            "give a shorter delay"
        )
    return due_ms


def seconds_until(due_ms: int, now_ms: int) -> int:
    """Whole seconds from now until due, rounded up, 0 when it has passed."""
    return max(0, -((now_ms - due_ms) // 1000))


def utc(epoch_ms: int) -> datetime:
    """The aware UTC ``datetime`` of epoch milliseconds."""
    return EPOCH + timedelta(milliseconds=epoch_ms)


@dataclass(frozen=True, slots=True)
class DueTime:
    """A delay counted from a now, or an absolute time; with neither, the message is due at once."""

    delay_ms: int | None = None
    at_ms: int | None = None

    @property
    def given(self) -> bool:
        """Whether the sender gave either."""
        return self.delay_ms is not None or self.absolute

    @property
    def absolute(self) -> bool:
        """Whether it is independent of the now it is counted from."""
        return self.at_ms is not None

    def due_ms(self, now_ms: int) -> int:
        """Epoch milliseconds, counted from ``now_ms``. Raises InvalidDelay: it lies after the year 9999."""
        return checked_due_ms(now_ms + (self.delay_ms or 0) if self.at_ms is None else self.at_ms)


def due_time(delay: Delay | None, due_at: datetime | None) -> DueTime:
    """What a sender gave; see `Message` for the arguments. Raises InvalidDelay: both are given, or the one
    given is not valid."""
    if delay is not None and due_at is not None:
        raise InvalidDelay("delay and due_at are both given; give only one")
    return DueTime(
        None if delay is None else delay_ms(delay), None if due_at is None else due_at_ms(due_at)
    )


@dataclass(frozen=True, slots=True)
class HandOver:
    """Send to the endpoint's own queue with this message timer."""

    delay_seconds: int


@dataclass(frozen=True, slots=True)
class Requeue:
    """Send back to the delay queue for another hop."""


@dataclass(frozen=True, slots=True)
class Park:
    """Move to the store, which costs less than the hops that remain."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Move to the error queue: the message does not say when it is due."""

    reason: str


Decision = HandOver | Requeue | Park


def check_range(least: float, most: float = math.inf, /, why: str = "", **given: Any) -> None:
    """Refuse what is no number, below ``least`` or above ``most``. Raises InvalidSetting; it says ``why``."""
    for name, value in given.items():
        if not (issubclass(type(value), Real) and least <= value <= most):
            wanted = f"{least} or more" if most == math.inf else f"{least} to {most}"
            raise InvalidSetting(f"use {wanted}{why}", **{name: value})


def check_positive(most: float = math.inf, /, **given: Any) -> None:
    """Refuse what is no number, 0 or less, or above ``most``; None is left out. Raises InvalidSetting."""
    for name, value in given.items():
        if value is not None and not (issubclass(type(value), Real) and 0 < value <= most):
            at_most = "" if most == math.inf else f", at most {most}"
            raise InvalidSetting(f"use more than 0{at_most}", **{name: value})


def check_hop(hop_seconds: int) -> None:
    """Refuse a hop that no delay queue can have. Raises ConfigurationError: outside 1 to 900 seconds."""
    why = ", the delay queue's delivery delay"
    check_range(1, MAX_MESSAGE_TIMER_SECONDS, why, hop_seconds=hop_seconds)


def checked_max_delay(seconds: int) -> int:
    """``seconds`` itself, if an endpoint can be limited to it. Raises ConfigurationError: no whole number, or
    out of range."""
    most = MAX_DUE_MS // 1000
    # From a settings file it may be anything.
    whole = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not whole or not MAX_MESSAGE_TIMER_SECONDS <= seconds <= most:
        raise InvalidSetting(
            f"use {MAX_MESSAGE_TIMER_SECONDS} (what plain SQS delays) to {most} (the year 9999)",
            max_delay_seconds=seconds,
        )
    return seconds


def too_far(due_ms: int, now_ms: int, max_delay_seconds: int) -> str | None:
    """Why a due time is farther ahead than an endpoint accepts; None if it is not."""
    remaining = seconds_until(due_ms, now_ms)
    if remaining <= max_delay_seconds:
        return None
    return (
        f"due in {remaining} s, at {due_ms} ms; this endpoint allows delays of up to {max_delay_seconds} s; "
        "shorten it, or raise max_delay_seconds of both the sender and the delay consumer "
        "(consume --max-delay, -c maxDelay=)"
    )


def decide(
    due_ms: int, now_ms: int, *, hop_seconds: int, park_after_seconds: int | None = None
) -> Decision:
    """Hand over when what remains, in whole seconds rounded up, fits one message timer of a hop. Both times
    are the broker's. Park what remains longer than ``park_after_seconds``, None where there is no store."""
    remaining = seconds_until(due_ms, now_ms)
    if remaining <= hop_seconds:
        return HandOver(remaining)
    if park_after_seconds is not None and remaining > park_after_seconds:
        return Park()
    return Requeue()


PROOF_LIFETIME_SECONDS: Final = 300.0
APART_TOLERANCE_SECONDS: Final = 0.5
DATE_RESOLUTION_MS: Final = 1000
"""An HTTP ``Date`` tells whole seconds. Source: RFC 9110, 5.6.7."""
MACHINES_APART_MS: Final = 1000
"""How far the clocks of a broker's own machines may be apart."""
MAX_DRIFT_RATE: Final = 500e-6
"""How much faster or slower than true time a monotonic clock may run: as far as NTP may steer one.
Source: Linux, ``MAXFREQ_SCALED`` in ``include/linux/timex.h``; RFC 5905, section 7.1."""
_PROOFS_KEPT: Final = 64
_APART: Final = "answers tell times %.1f s apart; messages may be late: look at proxies' clocks"


class Clock(Protocol):
    """What sqsdelay needs of a machine's clock."""

    def now_ms(self) -> int:
        """Wall clock, epoch milliseconds, UTC; may be wrong and may jump."""

    def monotonic(self) -> float:
        """Seconds since some fixed instant; never jumps back."""


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class _Proof:
    """At local monotonic time ``taken_at`` the broker's clock read ``broker_ms`` or more."""

    broker_ms: int
    taken_at: float
    wall_ms: int
    asked_at: float | None = None
    """Where the proof is an answer's date: a time at which its second had not ended yet."""

    def holds(self, mono: float, wall_ms: int) -> bool:
        """Whether the monotonic clock can still be trusted: it stands still in a frozen process."""
        passed = mono - self.taken_at
        apart = abs((wall_ms - self.wall_ms) / 1000 - passed)
        return passed <= PROOF_LIFETIME_SECONDS and apart <= APART_TOLERANCE_SECONDS


class BrokerClock:
    """The broker's now, never ahead of it, learned from its answers.

    Every answer proves that the broker's clock had reached at least some instant when it was written; what
    has passed since, the monotonic clock tells, less what it may run fast. So an estimate errs towards the
    past, by an answer's travel time and 0.5 ms for each second since (150 ms at most), and a wall clock that
    is wrong or is stepped plays no part. A proof is dropped when it is older than five minutes, or when wall
    and monotonic clock have since run apart: one of them was stepped, or the process frozen. ``local``: the
    machine's clock. ``drift_rate``: how much faster than true time its monotonic clock may run; 0 for a
    test's clock."""

    def __init__(self, local: Clock, *, drift_rate: float = MAX_DRIFT_RATE) -> None:
        self.local = local
        self._drift_rate = drift_rate
        # Apart, so that the stamps of a large batch do not push out the dates that bound them.
        self._stamps, self._dates = (deque[_Proof](maxlen=_PROOFS_KEPT) for _ in range(2))
        self._best: _Proof | None = None
        self._quiet_until = -math.inf
        self._lock = threading.Lock()

    def observe(
        self, broker_ms: int, *, at: float | None = None, asked_at: float | None = None
    ) -> None:
        """Record that the broker's clock read at least ``broker_ms`` (epoch milliseconds) at the local
        monotonic time ``at``, now by default. ``asked_at`` is given for an answer's date: when the request
        was made, at which time that second had not ended. What is ahead of what the dates leave room for
        proves nothing, as messages would be early; a warning says so."""
        mono, wall_ms = self.local.monotonic(), self.local.now_ms()
        taken_at = mono if at is None else at
        proof = _Proof(broker_ms, taken_at, wall_ms - round((mono - taken_at) * 1000), asked_at)
        with self._lock:
            (self._stamps if asked_at is None else self._dates).append(proof)
            best, most_ms = self._best, self._most_ms(proof, mono) + MACHINES_APART_MS
            if (
                best is None
                or self._lead_ms(proof) >= self._lead_ms(best)
                or self._now_ms(best, mono) > most_ms
            ):
                self._choose(mono, wall_ms)

    def _choose(self, mono: float, wall_ms: int) -> _Proof | None:
        """The best is the tightest proof that holds, of those that the dates leave room for."""
        holding = [p for p in (*self._stamps, *self._dates) if p.holds(mono, wall_ms)]
        now_ms, most_ms = {p: self._now_ms(p, mono) for p in holding}, self._dated_ms(mono, wall_ms)
        fitting = (p for p in holding if now_ms[p] <= most_ms + MACHINES_APART_MS)
        self._best = max(fitting, key=self._lead_ms, default=None)
        ahead_ms = max(now_ms.values(), default=0) - most_ms
        if ahead_ms > MACHINES_APART_MS and mono >= self._quiet_until:
            self._quiet_until = mono + PROOF_LIFETIME_SECONDS
            logger.warning(_APART, ahead_ms / 1000)
        return self._best

    @property
    def synchronised(self) -> bool:
        """True while a proof holds."""
        return self.proven_ms() is not None

    def now_ms(self) -> int:
        """The broker's now, epoch milliseconds; the local clock's until an answer has been seen."""
        proven = self.proven_ms()
        return self.local.now_ms() if proven is None else proven

    def proven_ms(self) -> int | None:
        """The broker's now, epoch milliseconds; None while no proof holds."""
        mono, wall_ms, best = self.local.monotonic(), self.local.now_ms(), self._best
        if best is not None and not best.holds(mono, wall_ms):
            with self._lock:
                best = self._choose(mono, wall_ms)
        return None if best is None else self._now_ms(best, mono)

    def latest_ms(self) -> int:
        """The most the broker's clock may read now; `now_ms` while no dated answer is known. A delay that has
        no SentTimestamp starts then: counted from `now_ms` it would be early. A date that leaves no room for
        another is behind, and does not count."""
        mono, wall_ms = self.local.monotonic(), self.local.now_ms()
        with self._lock:
            dates = [proof for proof in self._dates if proof.holds(mono, wall_ms)]
        least_ms = max((self._now_ms(proof, mono) for proof in dates), default=0)
        bounds = (self._most_ms(proof, mono) for proof in dates)
        return min((most for most in bounds if most >= least_ms), default=self.now_ms())

    def _dated_ms(self, mono: float, wall_ms: int) -> int:
        """The most that the dates which hold leave room for; where none does, the last, with all the time
        that either clock tells has passed: it need not be known exactly."""
        holding = [self._most_ms(p, mono) for p in self._dates if p.holds(mono, wall_ms)]
        if holding or not self._dates:
            return min(holding, default=MAX_DUE_MS)
        last = self._dates[-1]
        stood_still_ms = wall_ms - last.wall_ms - round((mono - last.taken_at) * 1000)
        return self._most_ms(last, mono) + max(0, stood_still_ms)

    def _lead_ms(self, proof: _Proof) -> float:
        """The broker's clock against the slowest true time: the larger, the tighter the proof."""
        return proof.broker_ms - proof.taken_at * 1000 * (1 - self._drift_rate)

    def _now_ms(self, proof: _Proof, mono: float) -> int:
        """With the least true time that can have passed."""
        return proof.broker_ms + int((mono - proof.taken_at) * 1000 * (1 - self._drift_rate))

    def _most_ms(self, proof: _Proof, mono: float) -> int:
        """With the most true time that can have passed; a stamp leaves room for any."""
        if proof.asked_at is None:
            return MAX_DUE_MS
        passed_ms = (mono - proof.asked_at) * 1000 / (1 - self._drift_rate)
        return proof.broker_ms + DATE_RESOLUTION_MS + math.ceil(passed_ms)


_begin_by: ContextVar[float] = ContextVar("begin_by", default=math.inf)


@contextmanager
def begun_within(seconds: float) -> Iterator[None]:
    """In this thread and context, let no request to the broker begin later than so many seconds from now."""
    token = _begin_by.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _begin_by.reset(token)


def may_begin(in_seconds: float = 0) -> bool:
    """Whether there will be time left for one more request."""
    return time.monotonic() + in_seconds < _begin_by.get()
