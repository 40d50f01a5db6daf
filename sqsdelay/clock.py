"""Time as an argument: the clocks sqsdelay reads, and the broker's clock learned from its answers."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

SAMPLE_LIFETIME_SECONDS: Final = 300.0
STEP_TOLERANCE_SECONDS: Final = 0.5
_SAMPLES_KEPT: Final = 64


class Clock(Protocol):
    """What sqsdelay asks of a machine's clock."""

    def now_ms(self) -> int:
        """Wall clock, epoch milliseconds, UTC; may be wrong and may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed instant; never jumps back."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class _Sample:
    offset_ms: int
    wall_ms: int
    taken_at: float

    def holds(self, mono: float, wall: int) -> bool:
        passed = mono - self.taken_at
        stepped = abs((wall - self.wall_ms) / 1000 - passed)
        return passed <= SAMPLE_LIFETIME_SECONDS and stepped <= STEP_TOLERANCE_SECONDS


class BrokerClock:
    """The broker's now, never ahead of it: the local clock plus an offset learned from its answers.

    Every answer proves that the broker's clock had reached at least some instant when it was
    written. The largest offset of the recent proofs is used, so an estimate errs towards the past:
    a message may be late by the answer's travel time, it is never early. Proofs are dropped when
    the wall clock and the monotonic clock have since run apart (the wall clock was stepped, or the
    process was frozen) and when they are older than five minutes.
    """

    def __init__(self, local: Clock) -> None:
        self.local = local
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES_KEPT)
        self._best: _Sample | None = None
        self._lock = threading.Lock()

    def observe(self, broker_ms: int, *, at: float | None = None) -> None:
        """Record that the broker's clock read at least ``broker_ms`` (epoch milliseconds).

        ``at`` is the local monotonic time of the proof, now by default.
        """
        mono = self.local.monotonic()
        wall = self.local.now_ms()
        taken_at = mono if at is None else at
        taken_wall = wall - round((mono - taken_at) * 1000)
        sample = _Sample(broker_ms - taken_wall, taken_wall, taken_at)
        with self._lock:
            self._samples.append(sample)
            if self._best is None or sample.offset_ms >= self._best.offset_ms:
                self._best = sample

    @property
    def synchronised(self) -> bool:
        """True while there is a usable proof to correct the local clock with."""
        return self._usable(self.local.monotonic(), self.local.now_ms()) is not None

    def now_ms(self) -> int:
        """The broker's now, epoch milliseconds; the bare local clock while nothing is learned."""
        wall = self.local.now_ms()
        best = self._usable(self.local.monotonic(), wall)
        return wall if best is None else wall + best.offset_ms

    def _usable(self, mono: float, wall: int) -> _Sample | None:
        """The best proof that still holds; weaker ones are looked at only once it does not."""
        best = self._best
        if best is not None and not best.holds(mono, wall):
            with self._lock:
                holding = [sample for sample in self._samples if sample.holds(mono, wall)]
                best = max(holding, key=lambda sample: sample.offset_ms, default=None)
                self._best = best
        return best
