"""The clock of a store's database, for those whose broker tells no time."""

from __future__ import annotations

import logging
from typing import Protocol, runtime_checkable

from sqsdelay.core.clock import BrokerClock, Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.errors import StoreError

logger = logging.getLogger(__name__)


@runtime_checkable
class TellsTime(Protocol):
    """A store on a server, which has a clock of its own."""

    def now_ms(self) -> int:
        """The server's now, epoch milliseconds.

        Raises:
            StoreUnavailable
        """
        ...


class StoreClock:
    """The clock all users of one store share: its server's, or where it is a file the machine's.

    The server is asked every five minutes; between, the monotonic clock tells what has passed. While
    it cannot be asked the local clock stands in.

    Args:
        store: one that `TellsTime`; any other has no clock but the machine's.
        local: the machine's clock.
    """

    def __init__(self, store: object, local: Clock | None = None) -> None:
        self._server = store if isinstance(store, TellsTime) else None
        self._learned = BrokerClock(local or SystemClock())

    def now_ms(self) -> int:
        """The store's now, epoch milliseconds, never ahead of it: nothing due by it is early."""
        if self._server is None:
            return self._learned.local.now_ms()
        try:
            self._learn(self._server)
        except StoreError as error:
            logger.warning(
                "using the local clock, because the store cannot be reached: %s", one_line(error)
            )
        return self._learned.now_ms()

    def latest_ms(self) -> int:
        """The most the store's clock may read now, epoch milliseconds: what a delay counts from.

        Raises:
            StoreUnavailable, StoreMissing: the server cannot be asked.
        """
        if self._server is None:
            return self._learned.local.now_ms()
        asked_at = self.monotonic()
        told_ms = self._server.now_ms()
        return told_ms + int((self.monotonic() - asked_at) * 1000) + 1

    def monotonic(self) -> float:
        return self._learned.local.monotonic()

    def _learn(self, server: TellsTime) -> None:
        if not self._learned.synchronised:
            self._learned.observe(server.now_ms())
