"""A ledger that keeps what it was given, and fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sqsdelay.ledger.events import Event


class InMemoryLedger:
    """The `Ledger` protocol in memory.

    Attributes:
        events: what was recorded, in order.
        fail: raised instead of recording, unless it is None.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.fail: Exception | None = None
        self._lock = threading.Lock()

    def record(self, events: Sequence[Event]) -> None:
        with self._lock:
            if self.fail is not None:
                raise self.fail
            self.events += events
