"""An endpoint whose store is S3, in memory and under virtual time."""

from __future__ import annotations

from typing import Any, Final

from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying import Relay, RelaySettings, Status
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.stores import S3Store
from sqsdelay.testing import ManualClock
from tests.faulty import FaultyQueues
from tests.services.in_memory_s3 import InMemoryS3

ORDERS: Final = Endpoint.parse("orders")
DAY: Final = 86_400


class Site:
    """An endpoint whose store is S3, and all who serve it."""

    def __init__(self, *, lookup: bool = False, s3: InMemoryS3 | None = None) -> None:
        self.clock = ManualClock()
        self.queues = FaultyQueues(self.clock)
        self.queues.create_endpoint("orders")
        client: Any = s3 or InMemoryS3()
        self.store = S3Store(
            "parked", endpoint="orders", client=client, clock=self.clock, lookup=lookup
        )
        parking = ParkingSettings(self.store)
        self.relay = Relay(self.queues, ORDERS, RelaySettings(parking=parking))
        self.sender = QueueSender(self.queues, SenderSettings(parking=parking))
        self.plain = QueueSender(self.queues)
        outbox = SqsOutbox(self.queues, ORDERS)
        settings = DispatchSettings(number_of_retries=99)
        self.dispatcher = Dispatcher(self.store, outbox, settings=settings, clock=self.clock)
        self.due_at = utc(self.clock.true_ms + 3 * DAY * 1000)
        self.arrived: list[str] = []

    def poll(self) -> list[Status]:
        copies = self.queues.receive_batch(ORDERS.delay_queue.name, wait_seconds=0)
        return [outcome.status for outcome in self.relay.process(copies)]

    def run(self, seconds: int, *, tick: int = 60) -> list[str]:
        """Serve the endpoint; the bodies that have arrived so far, in order of their text."""
        for _ in range(0, seconds, tick):
            self.clock.advance(tick)
            while self.poll():
                pass
            while self.dispatcher.dispatch().claimed:
                pass
            copies = self.queues.receive_batch("orders", wait_seconds=0)
            self.arrived += [copy.body for copy in copies]
            self.queues.delete_batch("orders", copies)
        return sorted(self.arrived)
