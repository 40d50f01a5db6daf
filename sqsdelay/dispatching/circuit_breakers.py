"""Circuit breakers: tell a passing disturbance from one that needs attention."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqsdelay.core.clock import Clock
from sqsdelay.errors import CriticalError, InvalidSetting

DEFAULT_TRIGGER_SECONDS: Final = 30.0
"""Seed 001: store, fetch and dispatch breakers trigger after 30 seconds."""

DEFAULT_FAILURES_PER_SECOND: Final = 1
"""Seed 001: ``MaximumRecoveryFailuresPerSecond``."""


@dataclass(eq=False)
class _Breaker:
    """``limit``: the seconds that failures may last, or how many there may be in one. Triggered, it calls
    ``on_critical``; without it, `failed` raises the CriticalError."""

    name: str
    limit: float
    clock: Clock
    on_critical: Callable[[CriticalError], None] | None = None

    def _trigger(self, text: str, cause: Exception) -> None:
        critical = CriticalError(f"{self.name} circuit breaker: {text}: {cause}")
        critical.__cause__ = cause
        if self.on_critical is None:
            raise critical
        self.on_critical(critical)


@dataclass(eq=False)
class CircuitBreaker(_Breaker):
    """Armed by the first failure, disarmed by a success, triggered when failures last. Thread-safe."""

    _armed_at: float | None = None

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise InvalidSetting(f"{self.name} circuit breaker of {self.limit} s; use more than 0")
        self._lock = threading.Lock()

    @property
    def lasting(self) -> bool:
        """True when the next failure triggers it."""
        armed_at = self._armed_at
        return armed_at is not None and self.clock.monotonic() - armed_at >= self.limit

    def succeeded(self) -> None:
        """Disarm."""
        with self._lock:
            self._armed_at = None

    def failed(self, error: Exception) -> None:
        """Arm; or trigger once failures have lasted, and arm again."""
        with self._lock:
            now = self.clock.monotonic()
            lasted = 0.0 if self._armed_at is None else now - self._armed_at
            if self._armed_at is None or lasted >= self.limit:
                self._armed_at = now
        if lasted >= self.limit:
            self._trigger(f"failing for {lasted:.0f} s (limit {self.limit:g} s), last with", error)


@dataclass(eq=False)
class FailureRateBreaker(_Breaker):
    """Triggered by more than so many failures within one second."""

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise InvalidSetting(f"{self.name} breaker of {self.limit} a second; use 1 or more")
        self._failures: list[float] = []

    @property
    def armed(self) -> bool:
        """True within a second of a failure that did not trigger it."""
        return bool(self._failures) and self.clock.monotonic() - self._failures[-1] < 1

    def failed(self, error: Exception) -> None:
        """Count a failure; or trigger when there are too many, and start again."""
        now = self.clock.monotonic()
        self._failures = [*(at for at in self._failures if now - at < 1), now]
        counted = len(self._failures)
        if counted > self.limit:
            self._failures = []
            self._trigger(f"{counted} failures in a second (limit {self.limit}), last", error)
