"""So many messages a second at most: a task's share of its job's rate."""

from __future__ import annotations

from collections.abc import Callable

from sqsdelay.core.clock import Clock


class Pace:
    """Lets messages pass at a rate; None holds none up.

    Args:
        rate: messages a second, above 0.
        clock: the local clock.
        sleep: how to wait so many seconds.
    """

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
