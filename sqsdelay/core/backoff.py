"""Backoff: how long to wait before the next attempt, for one message and for a whole destination."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from sqsdelay.core.clock import Clock
from sqsdelay.errors import QueueMissing

FIRST_RETRY_SECONDS: Final = 1
MAX_RETRY_SECONDS: Final = 60

_REMEMBERED: Final = 10_000


def retry_seconds(failures: int) -> int:
    """Seconds until the next attempt after so many failures: 1 s, doubling up to 60 s."""
    return min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS << min(failures, 10))


@dataclass(frozen=True, slots=True)
class _Down:
    failures: int
    until: float
    error: Exception


class DestinationBackoff:
    """Which destinations are out of reach, and when each is tried again. Thread-safe.

    A destination is *closed* while its pause lasts, and *probing* from then on, until a message
    reaches it or fails again. Each failure doubles the pause, a success ends it. Beyond 10,000
    destinations, one is forgotten and tried as if it were in reach.

    Args:
        clock: its monotonic time is used.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._down: dict[str, _Down] = {}
        self._lock = threading.Lock()

    def failed(self, destination: str, error: Exception) -> int:
        """Close a destination; returns for how many seconds."""
        with self._lock:
            before = self._down.get(destination)
            failures = 0 if before is None else before.failures
            seconds = retry_seconds(failures)
            until = self._clock.monotonic() + seconds
            self._down[destination] = _Down(failures + 1, until, error)
            if len(self._down) > _REMEMBERED:
                del self._down[next(iter(self._down))]
            return seconds

    def succeeded(self, destination: str) -> None:
        """It is in reach."""
        with self._lock:
            self._down.pop(destination, None)

    def closed(self) -> frozenset[str]:
        """Destinations that are not to be tried now."""
        now = self._clock.monotonic()
        with self._lock:
            return frozenset(name for name, down in self._down.items() if down.until > now)

    def probing(self) -> frozenset[str]:
        """Destinations to which one message may be tried."""
        with self._lock:
            names = frozenset(self._down)
        return names - self.closed()

    def forget_but(self, destinations: Collection[str]) -> bool:
        """Forget the probing destinations other than these; True if none is left."""
        forgotten = self.probing() - frozenset(destinations)
        for name in forgotten:
            self.succeeded(name)
        return bool(forgotten) and not self._down

    def end_pauses(self) -> bool:
        """Let every closed destination be probed now; False if none was closed."""
        now = self._clock.monotonic()
        with self._lock:
            closed = [name for name, down in self._down.items() if down.until > now]
            for name in closed:
                self._down[name] = replace(self._down[name], until=now)
        return bool(closed)

    def last_error(self) -> Exception | None:
        """Why the destination that failed last is out of reach; None if none is.

        One that does not exist is no outage.
        """
        with self._lock:
            errors = [down.error for down in self._down.values()]
        return next((e for e in reversed(errors) if not isinstance(e, QueueMissing)), None)

    def missing(self) -> frozenset[str]:
        """Destinations that did not exist when they were last tried."""
        with self._lock:
            return frozenset(
                name for name, down in self._down.items() if isinstance(down.error, QueueMissing)
            )

    def seconds_to_next(self) -> float | None:
        """Seconds until the next closed destination is tried again; None if none is closed."""
        now = self._clock.monotonic()
        with self._lock:
            left = [down.until - now for down in self._down.values() if down.until > now]
        return min(left, default=None)
