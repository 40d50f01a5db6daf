"""A service's own clock, by the dates of its answers: all who use one table or bucket go by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

from sqsdelay.core.clock import Clock

_APART_MS: Final = 3_000
"""An answer's date may lie so far behind what is known: it is cut off, and was some time on its way.
More, and the machine's monotonic clock has run away."""


class ServiceClock:
    """The service's now, epoch milliseconds.

    Args:
        given: tests only: this clock instead of the dates of answers.
    """

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds since some time; another one in virtual time."""

    def __init__(self, given: Clock | None) -> None:
        self._given = given
        self._lock = threading.Lock()
        self._best: tuple[int, float] | None = None

    def begin_anew(self) -> None:
        """In a forked process: a thread that is not in it may hold the lock."""
        self._lock = threading.Lock()

    def read(self, response: Mapping[str, Any]) -> int:
        """When an answer was written, epoch milliseconds; cut off to the second where it is a date
        (RFC 9110, 5.6.7)."""
        if self._given is not None:
            return self._given.now_ms()
        date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is None:
            return time.time_ns() // 1_000_000
        read_ms = int(parsedate_to_datetime(date).timestamp()) * 1000
        with self._lock:
            ahead_ms = 0 if self._best is None else self._now(self._best) - read_ms
            if self._best is None or not 0 < ahead_ms <= _APART_MS:
                self._best = (read_ms, self.monotonic())
        return read_ms

    def now_ms(self) -> int:
        """About the service's now; the machine's own clock until it has answered."""
        if self._given is not None:
            return self._given.now_ms()
        best = self._best
        return time.time_ns() // 1_000_000 if best is None else self._now(best)

    def _now(self, best: tuple[int, float]) -> int:
        read_ms, at = best
        return read_ms + int((self.monotonic() - at) * 1000)
