"""Gathering: copies to be parked wait for others, where a store keeps many for the price of one."""

from __future__ import annotations

import threading
from typing import Final

from sqsdelay.core.clock import Clock
from sqsdelay.relaying.outcome import Outcome
from sqsdelay.relaying.relay import Relay
from sqsdelay.relaying.visibility import InHand, Visibility

GATHERED_SECONDS: Final = 10.0
"""How long a copy may wait for others. What is parked is due hours later."""

MAX_GATHERED: Final = 5_000
"""Copies of one worker: SQS lets 120,000 be in flight."""


class Gathering:
    """What a worker's receivers have gathered. Thread-safe.

    Copies stay in their queue until the store has confirmed them.

    Args:
        most: copies parked in one call at most.
    """

    def __init__(self, relay: Relay, visibility: Visibility, clock: Clock, *, most: int) -> None:
        self._relay = relay
        self._visibility = visibility
        self._clock = clock
        self._most = min(most, MAX_GATHERED)
        self._batches: list[InHand] = []
        self._since = 0.0
        self._lock = threading.Lock()

    def seconds_left(self) -> float | None:
        """How long more may be waited for; None while nothing is gathered."""
        with self._lock:
            return self._seconds_left()

    def _seconds_left(self) -> float | None:
        if not self._batches:
            return None
        return max(0.0, self._since + GATHERED_SECONDS - self._clock.monotonic())

    def keep(self, batch: InHand) -> InHand:
        """Keep of a received batch what is to be parked; the rest, which may be none."""
        far = [copy for copy in batch.copies if self._relay.parks(copy)]
        if not far:
            return batch
        kept, rest = self._visibility.divide(batch, far)
        with self._lock:
            if not self._batches:
                self._since = self._clock.monotonic()
            self._batches.append(kept)
        return rest

    def full(self) -> bool:
        """Whether it is time to park."""
        with self._lock:
            return self._full()

    def _full(self) -> bool:
        left = self._seconds_left()
        count = sum(len(batch.copies) for batch in self._batches)
        return left is not None and (left <= 0 or count >= self._most)

    def park_if_full(self) -> list[Outcome]:
        """Park all of it in one call, if it is time to; one of the receivers does it."""
        with self._lock:
            batches = self._taken() if self._full() else []
        return self._parked(batches)

    def park(self) -> list[Outcome]:
        """Park all of it in one call."""
        with self._lock:
            batches = self._taken()
        return self._parked(batches)

    def _taken(self) -> list[InHand]:
        batches, self._batches = self._batches, []
        return batches

    def _parked(self, batches: list[InHand]) -> list[Outcome]:
        if not batches:
            return []
        copies = [copy for batch in batches for copy in batch.copies]

        def held() -> bool:
            # Each is asked, since that counts as work going on.
            return all(list(map(InHand.held, batches)))

        try:
            return self._relay.process(copies, held=held)
        finally:
            for batch in batches:
                self._visibility.done(batch)
