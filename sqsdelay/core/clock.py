"""Time as an argument: the clocks sqsdelay reads, and the broker's clock learned from its answers."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

PROOF_LIFETIME_SECONDS: Final = 300.0
APART_TOLERANCE_SECONDS: Final = 0.5
DATE_RESOLUTION_MS: Final = 1000
"""An HTTP ``Date`` tells whole seconds. Source: RFC 9110, 5.6.7."""
MAX_DRIFT_RATE: Final = 500e-6
"""How much faster or slower than true time a monotonic clock may run: as far as NTP may steer one.
Source: Linux, ``MAXFREQ_SCALED`` in ``include/linux/timex.h``; RFC 5905, section 7.1."""
_PROOFS_KEPT: Final = 64


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

    Every answer proves that the broker's clock had reached at least some instant when it was
    written; what has passed since, the monotonic clock tells, less what it may run fast. So an estimate
    errs towards the past: a message may be late by an answer's travel time and 0.5 ms for each second
    since (150 ms at most), it is never early, and a wall clock that is wrong or is stepped plays no
    part. A proof is dropped when it is older than five minutes, or when
    wall and monotonic clock have since run apart: one of them was stepped, or the process frozen.

    Args:
        local: the machine's clock.
        drift_rate: how much faster than true time its monotonic clock may run; 0 for a test's clock.
    """

    def __init__(self, local: Clock, *, drift_rate: float = MAX_DRIFT_RATE) -> None:
        self.local = local
        self._drift_rate = drift_rate
        self._proofs: deque[_Proof] = deque(maxlen=_PROOFS_KEPT)
        self._best: _Proof | None = None
        self._lock = threading.Lock()

    def observe(
        self, broker_ms: int, *, at: float | None = None, asked_at: float | None = None
    ) -> None:
        """Record that the broker's clock read at least ``broker_ms`` (epoch milliseconds).

        ``at`` is the local monotonic time of the proof, now by default. ``asked_at`` is given for an
        answer's date: when the request was made, at which time that second had not ended.
        """
        mono = self.local.monotonic()
        taken_at = mono if at is None else at
        wall_ms = self.local.now_ms() - round((mono - taken_at) * 1000)
        proof = _Proof(broker_ms, taken_at, wall_ms, asked_at)
        with self._lock:
            self._proofs.append(proof)
            if self._best is None or self._lead_ms(proof) >= self._lead_ms(self._best):
                self._best = proof

    @property
    def synchronised(self) -> bool:
        """True while a proof holds."""
        return self._usable(self.local.monotonic()) is not None

    def now_ms(self) -> int:
        """The broker's now, epoch milliseconds; the local clock's until an answer has been seen."""
        proven = self.proven_ms()
        return self.local.now_ms() if proven is None else proven

    def proven_ms(self) -> int | None:
        """The broker's now, epoch milliseconds; None while no proof holds."""
        mono = self.local.monotonic()
        best = self._usable(mono)
        return None if best is None else best.broker_ms + self._least_ms(mono - best.taken_at)

    def after_ms(self, broker_ms: int, taken_at: float) -> int:
        """The broker's now, never ahead, from one proof: what its clock read at ``taken_at``.

        ``taken_at`` is local monotonic time. Other proofs play no part.
        """
        return broker_ms + max(0, self._least_ms(self.local.monotonic() - taken_at))

    def latest_ms(self) -> int:
        """The most the broker's clock may read now; `now_ms` while no dated answer is known.

        The start of a delay that has no SentTimestamp: counted from `now_ms` it would be early.
        """
        mono, wall_ms = self.local.monotonic(), self.local.now_ms()
        with self._lock:
            bounds = [
                proof.broker_ms + DATE_RESOLUTION_MS + self._most_ms(mono - proof.asked_at)
                for proof in self._proofs
                if proof.asked_at is not None and proof.holds(mono, wall_ms)
            ]
        return min(bounds) if bounds else self.now_ms()

    def _lead_ms(self, proof: _Proof) -> float:
        """The broker's clock against the slowest true time: the larger, the tighter the proof."""
        return proof.broker_ms - proof.taken_at * 1000 * (1 - self._drift_rate)

    def _least_ms(self, seconds: float) -> int:
        """The least true time that has passed for these seconds of the monotonic clock."""
        return int(seconds * 1000 * (1 - self._drift_rate))

    def _most_ms(self, seconds: float) -> int:
        """The most true time that can have passed."""
        return math.ceil(seconds * 1000 / (1 - self._drift_rate))

    def _usable(self, mono: float) -> _Proof | None:
        """The tightest proof that still holds; others are looked at only once the best does not."""
        best, wall_ms = self._best, self.local.now_ms()
        if best is not None and not best.holds(mono, wall_ms):
            with self._lock:
                holding = [proof for proof in self._proofs if proof.holds(mono, wall_ms)]
                best = max(holding, key=self._lead_ms, default=None)
                self._best = best
        return best
