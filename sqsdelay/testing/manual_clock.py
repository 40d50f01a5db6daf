"""A clock that moves only when told to."""

from __future__ import annotations


class ManualClock:
    """Virtual time. ``error_ms`` makes the wall clock wrong; the monotonic clock never is.

    Args:
        now_ms: the true time to start at, epoch milliseconds.
        error_ms: how far the wall clock is ahead of the true time (negative: behind).
    """

    def __init__(self, now_ms: int = 1_800_000_000_000, *, error_ms: int = 0) -> None:
        self.true_ms = now_ms
        self.error_ms = error_ms

    def now_ms(self) -> int:
        return self.true_ms + self.error_ms

    def monotonic(self) -> float:
        return self.true_ms / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds}; time does not run backwards")
        self.true_ms += round(seconds * 1000)
