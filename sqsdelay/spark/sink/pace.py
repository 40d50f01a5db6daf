"""How fast a task sends: at the rate a job is told to keep, and as many calls as SQS takes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from sqsdelay.core.clock import Clock, SystemClock


class Pace:
    """Lets so many messages a second pass; None holds none up."""

    def __init__(self, rate: float | None, *, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock.monotonic()

    def wait(self, messages: int) -> None:
        """Return when so many more may be sent; what was not used is not saved up."""
        if self._rate is None:
            return
        now = self._clock.monotonic()
        if now < self._free_at:
            self._sleep(self._free_at - now)
        self._free_at = max(now, self._free_at) + messages / self._rate


_FIRST_RATE: Final = 30.0
_GROWTH: Final = 1.1
"""Of the rate with each call until one is refused: a process that SQS does not hold up loses 0.4 s."""

_CUT: Final = 0.8
_STEP: Final = 0.01
_PATIENT_CALLS: Final = 10
_CUT_SECONDS: Final = 0.1
"""Chosen in virtual time (`tests/unit/test_spark_task.py`): the fewest refusals at hardly a longer job."""

_LEAST_RATE: Final = 0.2
_MOST_RATE: Final = 1e6
_THROTTLING: Final = ("RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled")
"""Source: SendMessageBatch API reference, Errors; Common Errors."""


class CallPace:
    """Calls a second of one process, of many that share a quota which none of them knows. Thread-safe.

    A refused call cuts the rate by a fifth, once for all calls that were on their way. Then each call raises
    it: at first by an amount that is the same for all processes, so that their shares become alike; the more
    the longer none was refused, for then others have ended. botocore's adaptive mode grows by calls a second
    alone, whatever the rate is: at four calls a second it has every seventh refused.
    """

    def __init__(
        self, *, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.refusals = 0
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._rate = _FIRST_RATE
        self._last = -math.inf
        self._recent = 0.0
        """Calls of about the last second."""
        self._since_cut: int | None = None
        self._cut_again_at = 0.0

    def wait(self, **_: Any) -> None:
        """Return when a call may be made: botocore's event before each attempt on one."""
        # One waits and the others queue up: a cut holds them up, too.
        with self._turn:
            pause = self.free_at - self._clock.monotonic()
            if pause > 0:
                self._sleep(pause)
            self.passed(self._clock.monotonic())

    @property
    def free_at(self) -> float:
        """When the next call may be made, by the monotonic clock."""
        return self._last + 1 / self._rate

    def passed(self, now: float) -> None:
        """A call is made."""
        with self._state:
            self._recent = self._recent * math.exp(self._last - now) + 1
            self._last = now
            if self._since_cut is None:
                self._rate *= _GROWTH
            else:
                self._since_cut += 1
                self._rate += _STEP / self._rate * (1 + (self._since_cut / _PATIENT_CALLS) ** 2)
            self._rate = min(self._rate, _MOST_RATE)

    def answered(self, *, response: Any = None, **_: Any) -> None:
        """botocore's event after each attempt on a call."""
        if response is not None:
            self.refused(response[1].get("Error", {}).get("Code", ""))

    def refused(self, code: str) -> None:
        """A call was refused, with this error code."""
        if code not in _THROTTLING:
            return
        now = self._clock.monotonic()
        with self._state:
            self.refusals += 1
            if now < self._cut_again_at:
                return
            recent = self._recent * math.exp(self._last - now)
            if self._since_cut is None:
                self._rate = min(self._rate, recent)
            elif self._rate > 2 * recent:
                self._rate = max(recent, self._rate / 2)
            self._since_cut = 0
            self._rate = max(_LEAST_RATE, self._rate * _CUT)
            self._cut_again_at = now + _CUT_SECONDS + 1 / self._rate
