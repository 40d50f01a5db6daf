"""How many receivers a queue has: more while it has work and the processor has time, fewer when not."""

from __future__ import annotations

from typing import Final

from sqsdelay.limits import MAX_BATCH_ENTRIES

LEAST_RECEIVERS: Final = 2
"""What an idle queue has: each costs a long poll every 20 s."""

MOST_RECEIVERS: Final = 32
"""At 20 ms an answer they relay some 5,000 messages a second: more than one processor can."""

STEP_SECONDS: Final = 0.1
"""How often the number may change: some answers' time, so that a change shows before the next."""

BUSY: Final = 0.85
"""Of one processor, which is what Python's threads share: more receivers would only wait for it."""

OVERLOADED: Final = 0.97
"""Threads that wait for the processor cost some of it: fewer do the same."""

PLENTY: Final = MAX_BATCH_ENTRIES // 2
"""Copies of a receive that say that there are more."""


class Concurrency:
    """Finds the number of receivers of one queue. Time and processor time are arguments.

    The number doubles as long as receives come back half full at least and the process leaves some of
    a processor unused. A receive that comes back empty ends one receiver, above the least.

    Args:
        least: receivers of an idle queue.
        most: receivers at any time.
    """

    def __init__(self, *, least: int = LEAST_RECEIVERS, most: int = MOST_RECEIVERS) -> None:
        self._least = min(least, most)
        self._most = most
        self._since: tuple[float, float] | None = None
        self.wanted = self._least

    def received(self, copies: int, *, now: float, cpu_seconds: float) -> None:
        """A receive came back.

        Args:
            copies: how many it brought.
            now: monotonic seconds.
            cpu_seconds: what the process has used so far.
        """
        if not copies:
            self.wanted = max(self._least, self.wanted - 1)
        if copies < PLENTY:
            return
        if self._since is None:
            self._since = (now, cpu_seconds)
        passed = now - self._since[0]
        if passed < STEP_SECONDS:
            return
        share = (cpu_seconds - self._since[1]) / passed
        self._since = (now, cpu_seconds)
        if share < BUSY:
            self.wanted = min(self._most, 2 * self.wanted)
        elif share > OVERLOADED:
            self.wanted = max(self._least, self.wanted * 3 // 4)
