"""An endpoint with timeout managers that share its queues and a store, and the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage, size_of, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import StoreUnavailable
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sqs.timeouts import SqsTimeouts
from sqsdelay.testing import ManualClock
from sqsdelay.timeouts.manager import TimeoutManager, TimeoutSettings, TimeoutStatus
from tests.faulty import FaultyQueues, FaultyStore

ERRORS = "orders-delay-error"
TIMEOUTS = "orders-timeouts"
DISPATCHER = "orders-timeouts-dispatcher"


class CountingQueues(FaultyQueues):
    """Counts what is sent to each queue, be it taken or not."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.sends: Counter[str] = Counter()

    def send_batch(self, queue_url: str, entries: Sequence[Any]) -> list[SendReceipt | Failure]:
        self.sends[queue_url] += len(entries)
        return super().send_batch(queue_url, entries)


class World:
    """One manager, or several."""

    def __init__(self, managers: int = 1, *, store: Any = None, **settings: Any) -> None:
        self.clock = ManualClock()
        self.queues = CountingQueues(self.clock)
        for name in ("orders", ERRORS, TIMEOUTS, DISPATCHER, "billing", "well", "full"):
            self.queues.create_queue(name)
        self.store = FaultyStore(self.clock) if store is None else store(self.clock)
        self.done: list[tuple[TimeoutStatus, list[str]]] = []
        self.counted: Counter[TimeoutStatus] = Counter()
        self.transport = SqsTimeouts(self.queues, Endpoint.parse("orders"))
        self.managers = [self.another(**settings) for _ in range(managers)]
        self.manager = self.managers[0]

    def another(self, **settings: Any) -> TimeoutManager:
        """A manager that begins now."""
        critical = settings.pop("on_critical", None)
        return TimeoutManager(
            self.store,
            self.transport,
            settings=TimeoutSettings(wait_seconds=0, **settings),
            on_critical=critical,
            on_done=self._told,
            clock=self.clock,
        )

    def _told(self, status: TimeoutStatus, ids: Sequence[str]) -> None:
        self.done.append((status, list(ids)))
        self.counted[status] += len(ids)

    def delay(self, message_id: str, seconds: float, **given: Any) -> None:
        """Send a message to the timeouts queue."""
        to, body = given.get("to", "orders"), given.get("body", "hi")
        attributes = {
            "sqsdelay.MessageId": string(message_id),
            "sqsdelay.Destination": string(to),
            "sqsdelay.DueAt": string(str(self.clock.true_ms + round(seconds * 1000))),
        }
        if "group" in given:
            attributes["sqsdelay.MessageGroupId"] = string(given["group"])
        self.put(TIMEOUTS, OutgoingMessage(body, attributes, size_of(body, attributes)))

    def fails(self, turn: Callable[[], object], *down: str) -> None:
        """A turn of a task while these calls of the store fail."""
        self.store.down = set(down)
        with pytest.raises(StoreUnavailable):
            turn()
        self.store.down = set()

    def delay_many(self, to: str, count: int, seconds: float = 1) -> None:
        """Send messages to the timeouts queue."""
        for n in range(count):
            self.delay(f"{to}-{n}", seconds, to=to)

    def put(self, queue: str, entry: OutgoingMessage) -> None:
        """Send to any queue."""
        (sent,) = self.queues.send_batch(queue, [entry])
        assert not isinstance(sent, Failure)

    def run(self, seconds: int, turns: int = 5) -> None:
        """Turns of all tasks, second by second; few enough that order and backlog matter."""
        for _ in range(seconds):
            for manager in self.managers:
                for _ in range(turns):
                    manager.store_arrivals()
                    manager.announce()
                    manager.dispatch()
            self.clock.advance(1)

    def arrived(self, queue: str = "orders") -> list[ReceivedMessage]:
        """Receive and delete at most ten."""
        copies = self.queues.receive_batch(queue, wait_seconds=0)
        self.queues.delete_batch(queue, copies)
        return copies

    def arrived_ids(self, queue: str = "orders") -> list[str]:
        """The same, their ids."""
        return [c.attributes["sqsdelay.MessageId"]["StringValue"] for c in self.arrived(queue)]

    def left(self, queue: str) -> int:
        """How many messages a queue holds."""
        return len(self.queues._queues[queue].messages)
