"""What stores owe their dispatchers: leases, which end by themselves when their holder dies and are
renewed while it lives, and waking them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqsdelay.core.readable import one_line
from sqsdelay.errors import InvalidSetting, StoreError

logger = logging.getLogger(__name__)

DEFAULT_LEASE_SECONDS: Final = 60.0
"""How long a dead dispatcher's messages stay held. Renewed every third of it, so that clocks of
dispatchers may differ by some 40 seconds."""


def checked_lease(seconds: float) -> float:
    """``seconds`` itself, if a lease can be that long.

    Raises:
        ConfigurationError: not above 0.
    """
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
