"""Leases: a claim that ends by itself when its holder dies, and is renewed while it lives."""

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
        raise InvalidSetting(f"lease_seconds={seconds}; use more than 0")
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
