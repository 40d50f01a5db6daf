"""Clocks of stores: a service's own, by the dates of its answers, and the one that all users of a
store share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

from sqsdelay.core.clock import BrokerClock, Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.errors import StoreError
from sqsdelay.ports.stores import ParkingPlace

logger = logging.getLogger(__name__)

_APART_MS: Final = 3_000
"""An answer's date may lie so far behind what is known: it is cut off, and was some time on its way.
More, and the machine's monotonic clock has run away."""


def answered_ms(response: Mapping[str, Any]) -> int | None:
    """The date of a service's answer, epoch milliseconds, cut off to the second; None without one."""
    date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if date is None else int(parsedate_to_datetime(date).timestamp()) * 1000


class ServiceClock:
    """The service's now, epoch milliseconds.

    Args:
        given: tests only: this clock instead of the dates of answers.
    """

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds since some time; another one in virtual time."""

    def __init__(self, given: Clock | None) -> None:
        self._given = given
        self._best: tuple[int, float] | None = None

    def read(self, response: Mapping[str, Any]) -> int:
        """When an answer was written, epoch milliseconds; cut off to the second where it is a date
        (RFC 9110, 5.6.7)."""
        if self._given is not None:
            return self._given.now_ms()
        read_ms = answered_ms(response)
        if read_ms is None:
            return time.time_ns() // 1_000_000
        best = self._best
        if best is None or not 0 < self._now(best) - read_ms <= _APART_MS:
            self._best = (read_ms, self.monotonic())
        return read_ms

    def now_ms(self) -> int:
        """About the service's now; the machine's own clock until it has answered."""
        if self._given is not None:
            return self._given.now_ms()
        best = self._best
        return time.time_ns() // 1_000_000 if best is None else self._now(best)

    def _now(self, best: tuple[int, float]) -> int:
        read_ms, at = best
        return read_ms + int((self.monotonic() - at) * 1000)


class StoreClock:
    """The clock all users of one store share: its server's, or where it is a file the machine's.

    The server is asked every five minutes; between, the monotonic clock tells what has passed. While
    it cannot be asked the local clock stands in.

    Args:
        store: one that tells its server's time, or has no clock but the machine's.
        local: the machine's clock.
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
        """The most the store's clock may read now, epoch milliseconds: what a delay counts from.

        Raises:
            StoreUnavailable, StoreMissing: the server cannot be asked.
        """
        asked_at = self.monotonic()
        told_ms = self._store.now_ms()
        if told_ms is None:
            return self._learned.local.now_ms()
        return told_ms + int((self.monotonic() - asked_at) * 1000) + 1

    def monotonic(self) -> float:
        return self._learned.local.monotonic()
