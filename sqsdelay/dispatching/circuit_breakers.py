"""Circuit breakers: tell a passing disturbance from one that needs attention."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from sqsdelay.core.clock import Clock
from sqsdelay.errors import CriticalError, InvalidSetting

DEFAULT_TRIGGER_SECONDS: Final = 30.0
"""Seed 001: store, fetch and dispatch breakers trigger after 30 seconds."""

DEFAULT_FAILURES_PER_SECOND: Final = 1
"""Seed 001: ``MaximumRecoveryFailuresPerSecond``."""


def report(
    critical: CriticalError | None, on_critical: Callable[[CriticalError], None] | None
) -> None:
    """Report a triggered breaker; without a callback, raise its error."""
    if critical is not None:
        if on_critical is None:
            raise critical
        on_critical(critical)


class CircuitBreaker:
    """Armed by the first failure, disarmed by a success, triggered when failures last too long. Thread-safe.

    Args:
        name: what it watches, for the message of the critical error.
        seconds: how long failures may last.
        clock: its monotonic time is used.

    Raises:
        ConfigurationError: ``seconds`` is not above 0.
    """

    def __init__(self, name: str, seconds: float, clock: Clock) -> None:
        if not seconds > 0:
            raise InvalidSetting(f"{name} circuit breaker of {seconds} s; use more than 0")
        self._name = name
        self._seconds = seconds
        self._clock = clock
        self._armed_at: float | None = None
        self._lock = threading.Lock()

    @property
    def armed(self) -> bool:
        """True between a failure and the next success."""
        return self._armed_at is not None

    @property
    def lasting(self) -> bool:
        """True when the next failure triggers it."""
        armed_at = self._armed_at
        return armed_at is not None and self._clock.monotonic() - armed_at >= self._seconds

    def succeeded(self) -> None:
        """Disarm."""
        with self._lock:
            self._armed_at = None

    def arm(self) -> None:
        """Start counting now, unless it already is."""
        with self._lock:
            self._armed_at = self._clock.monotonic() if self._armed_at is None else self._armed_at

    def failed(self, error: Exception) -> CriticalError | None:
        """Arm, or return the critical error once failures have lasted; then arm again."""
        with self._lock:
            now = self._clock.monotonic()
            self._armed_at = now if self._armed_at is None else self._armed_at
            lasted = now - self._armed_at
            if lasted < self._seconds:
                return None
            self._armed_at = now
        text = f"failing for {lasted:.0f} s (limit {self._seconds:g} s), last with: {error}"
        return _critical(self._name, text, error)


class FailureRateBreaker:
    """Triggered by more than so many failures within one second.

    Raises:
        ConfigurationError: ``per_second`` below 1.
    """

    def __init__(self, name: str, per_second: int, clock: Clock) -> None:
        if per_second < 1:
            raise InvalidSetting(f"{name} breaker of {per_second} a second; use 1 or more")
        self._name = name
        self._per_second = per_second
        self._clock = clock
        self._failures: deque[float] = deque()

    @property
    def armed(self) -> bool:
        """True within a second of a failure that did not trigger it."""
        return bool(self._failures) and self._clock.monotonic() - self._failures[-1] < 1

    def failed(self, error: Exception) -> CriticalError | None:
        """Count a failure; return the critical error when there are too many, and start again."""
        now = self._clock.monotonic()
        self._failures.append(now)
        while now - self._failures[0] >= 1:
            self._failures.popleft()
        counted = len(self._failures)
        if counted <= self._per_second:
            return None
        self._failures.clear()
        text = f"{counted} failures in a second (limit {self._per_second}), last: {error}"
        return _critical(self._name, text, error)


def _critical(name: str, text: str, cause: Exception) -> CriticalError:
    critical = CriticalError(f"{name} circuit breaker: {text}")
    critical.__cause__ = cause
    return critical
