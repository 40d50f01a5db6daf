"""How fast the processes of an executor make calls: as many as SQS takes."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqsdelay.core.clock import Clock, SystemClock

_FIRST_RATE: Final = 60.0
_GROWTH: Final = 0.05
_GROWTH_A_SECOND: Final = 8.0
"""Of the rate until a call is refused: what SQS does not hold up loses half a second, once."""

_FIRST_CUT: Final = 0.7
_CUT: Final = 0.8
_STEP: Final = 0.03
_PATIENT_CALLS: Final = 20
_CUT_SECONDS: Final = 0.1
"""Chosen in virtual time (`tests/unit/test_spark_task.py`): the fewest refusals at hardly a longer job."""

_LEAST_RATE: Final = 0.2
_MOST_RATE: Final = 1e6
_STALE_SECONDS: Final = 600.0
_THROTTLING: Final = ("RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled")
"""Source: SendMessageBatch API reference, Errors; Common Errors."""

_STATE: Final = 5
_RATE, _LAST, _RECENT, _SINCE_CUT, _CUT_AGAIN_AT = range(_STATE)
"""Numbers in the file: calls a second; when the last call is made; calls of about the last second; calls
since the last cut, one more, 0 before the first; when the next cut may be."""


class CallPace:
    """Calls a second of the processes of one executor, which share a file and take turns. Thread-safe.

    None of them knows the quota, nor what others use of it. A refused call cuts the rate by a fifth, once for
    all calls that were on their way. Then each call raises it, the more the longer none was refused, for then
    others have ended. botocore's adaptive mode grows by calls a second alone, whatever the rate is: at four
    calls a second it has every seventh refused.
    """

    def __init__(
        self,
        file: str | None = None,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.refusals = 0
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._file = -1 if file is None else os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        if file is not None:
            os.truncate(self._file, 8 * _STATE)
        self._shared = memoryview(mmap.mmap(self._file, 8 * _STATE)).cast("d")

    def wait(self, **_: Any) -> None:
        """Return when a call may be made: botocore's event before each attempt on one."""
        # One waits and the others queue up: a cut holds them up, too.
        with self._turn:
            now = self._clock.monotonic()
            pause = self.turn(now) - now
            if pause > 0:
                self._sleep(pause)

    def turn(self, now: float) -> float:
        """When the next call may be made, by the monotonic clock: it will be."""
        with self._locked() as state:
            rate = state[_RATE] or _FIRST_RATE
            last = state[_LAST] if state[_LAST] < now + _STALE_SECONDS else 0.0
            at = max(now, last + 1 / rate)
            state[_RECENT] = state[_RECENT] * math.exp(last - at) + 1
            if state[_SINCE_CUT]:
                rate += _STEP / rate * (1 + (state[_SINCE_CUT] / _PATIENT_CALLS) ** 2)
                state[_SINCE_CUT] += 1
            else:
                rate *= 1 + min(_GROWTH, _GROWTH_A_SECOND * (at - last))
            state[_RATE], state[_LAST] = min(rate, _MOST_RATE), at
            return at

    def answered(self, *, response: Any = None, **_: Any) -> None:
        """botocore's event after each attempt on a call."""
        if response is not None:
            self.refused(response[1].get("Error", {}).get("Code", ""))

    def refused(self, code: str) -> None:
        """A call was refused, with this error code."""
        if code not in _THROTTLING:
            return
        now = self._clock.monotonic()
        with self._locked() as state:
            self.refusals += 1
            if now < state[_CUT_AGAIN_AT]:
                return
            rate = state[_RATE] or _FIRST_RATE
            recent = state[_RECENT] * math.exp(min(0.0, state[_LAST] - now))
            if not state[_SINCE_CUT]:
                rate = min(rate, recent) * _FIRST_CUT
            else:
                rate = (max(recent, rate / 2) if rate > 2 * recent else rate) * _CUT
            state[_RATE], state[_SINCE_CUT] = max(_LEAST_RATE, rate), 1
            state[_CUT_AGAIN_AT] = now + _CUT_SECONDS + 1 / state[_RATE]

    @contextmanager
    def _locked(self) -> Iterator[memoryview[float]]:
        with self._state:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield self._shared
            finally:
                if self._file >= 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
