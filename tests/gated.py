"""Queues in memory whose sends can be held, and that remember how full each request was."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sqsdelay.core.message import OutgoingMessage
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.testing import ManualClock
from tests.faulty import FaultyQueues
from tests.patience import PATIENCE_SECONDS


class GatedQueues(FaultyQueues):
    """``requests``: the bodies of each request, as they came. ``held``: names of queues whose sends
    wait until they are let go; ``arrived`` is released as each of them comes."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.requests: list[list[str]] = []
        self.arrived = threading.Semaphore(0)
        self.bug: BaseException | None = None
        self._held: dict[str, threading.Event] = {}

    def hold(self, queue: str) -> None:
        """Let no send to it end."""
        self._held[queue] = threading.Event()

    def let_go(self, queue: str) -> None:
        """Let them end."""
        self._held[queue].set()

    def await_arrival(self) -> None:
        """Wait until a held send has come."""
        assert self.arrived.acquire(timeout=PATIENCE_SECONDS)

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        self.requests.append([entry.body for entry in entries])
        gate = self._held.get(queue_url)
        if gate is not None:
            self.arrived.release()
            assert gate.wait(PATIENCE_SECONDS)
        if self.bug is not None:
            raise self.bug
        return super().send_batch(queue_url, entries)
