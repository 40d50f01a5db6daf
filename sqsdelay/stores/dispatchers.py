"""What stores owe their dispatchers: leases, which end by themselves when their holder dies and are
renewed while it lives; waking them; and the clock that all users of a store share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqsdelay.core.delay import BrokerClock, Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.errors import InvalidSetting, StoreError
from sqsdelay.ports.stores import ParkingPlace

logger = logging.getLogger(__name__)

DEFAULT_LEASE_SECONDS: Final = 60.0
"""How long a dead dispatcher's messages stay held. Renewed every third of it, so that clocks of
dispatchers may differ by some 40 seconds."""


def checked_lease(seconds: float) -> float:
    """``seconds`` itself, if a lease can be that long; else raises ConfigurationError."""
    if not seconds > 0:
        raise InvalidSetting("use more than 0", lease_seconds=seconds)
    return seconds


@contextmanager
def kept_alive(renew: Callable[[], None], *, lease_seconds: float) -> Iterator[None]:
    """Call ``renew`` every third of the lease, from another thread, while the context lasts."""
    over = threading.Event()
    pause = lease_seconds / 3

    def keep() -> None:
        while not over.wait(pause):
            try:
                renew()
            except StoreError as error:
                logger.warning("lease not renewed, trying again: %s", one_line(error))

    keeper = threading.Thread(target=keep, name="lease-keeper", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


class Wakes:
    """A store that wakes the dispatchers of its own process."""

    def __init__(self) -> None:
        self._watchers: list[Callable[[], None]] = []

    @contextmanager
    def watch(self, wake: Callable[[], None]) -> Iterator[None]:
        """Wakes for what this object stores; other processes' messages are found by polling."""
        self._watchers.append(wake)
        try:
            yield
        finally:
            self._watchers.remove(wake)

    def _wake(self) -> None:
        for wake in list(self._watchers):
            wake()


class StoreClock:
    """The clock all users of one store share: its server's, or where it is a file the machine's.

    The server is asked every five minutes; between, the monotonic clock tells what has passed. While
    it cannot be asked the local clock stands in.
    """

    def __init__(self, store: ParkingPlace, local: Clock | None = None) -> None:
        self._store = store
        self._learned = BrokerClock(local or SystemClock())

    def now_ms(self) -> int:
        """The store's now, epoch milliseconds, never ahead of it: nothing due by it is early."""
        if not self._learned.synchronised:
            try:
                told_ms = self._store.now_ms()
            except StoreError as error:
                told_ms = None
                text = "using the local clock, because the store cannot be reached: %s"
                logger.warning(text, one_line(error))
            if told_ms is not None:
                self._learned.observe(told_ms)
        return self._learned.now_ms()

    def latest_ms(self) -> int:
        """The most the store's clock may read now, epoch milliseconds: what a delay counts from. Raises
        StoreUnavailable, StoreMissing: the server cannot be asked."""
        asked_at = self.monotonic()
        told_ms = self._store.now_ms()
        if told_ms is None:
            return self._learned.local.now_ms()
        return told_ms + int((self.monotonic() - asked_at) * 1000) + 1

    def monotonic(self) -> float:
        return self._learned.local.monotonic()
