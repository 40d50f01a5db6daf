"""An endpoint with its relay, its sender and its store, under virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqsdelay.core.delay import utc
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS
from sqsdelay.core.message import DELAY_SECONDS, Attribute, OutgoingMessage, size_of, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.ledger.events import Event
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, ParkingSettings
from sqsdelay.relaying import Outcome, Relay, RelaySettings, Status
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.stores import S3Store
from sqsdelay.testing import InMemoryLedger, ManualClock
from tests.faulty import FaultyQueues, FaultyStore
from tests.services.in_memory_s3 import InMemoryS3

DAY: Final = 86_400


class Site:
    """``park_after``: above so many seconds messages go to the store; without it they hop."""

    def __init__(
        self,
        queues: FaultyQueues | None = None,
        *,
        name: str = "orders",
        hop_seconds: int = DEFAULT_HOP_SECONDS,
        park_after: int | None = None,
        store: Callable[[ManualClock], Any] = FaultyStore,
    ) -> None:
        self.queues = queues or FaultyQueues(ManualClock())
        self.clock = self.queues.clock
        self.endpoint = self.queues.create_endpoint(name, hop_seconds=hop_seconds)
        self.store: Any = store(self.clock)
        self.ledger = InMemoryLedger()
        self.parking = None if park_after is None else ParkingSettings(self.store, park_after)
        self.relay = self.new_relay(self.parking)
        self.sender = self.new_sender(parking=self.parking)

    def new_relay(self, parking: ParkingSettings | None = None, **settings: Any) -> Relay:
        """Another delay consumer's."""
        return Relay(self.queues, self.endpoint, self.settings(parking=parking, **settings))

    def settings(self, **given: Any) -> RelaySettings:
        """A delay consumer's."""
        return RelaySettings(**{"ledger": self.ledger} | given)

    def new_sender(self, **settings: Any) -> QueueSender:
        """Another process's."""
        return QueueSender(self.queues, SenderSettings(**{"ledger": self.ledger} | settings))

    def new_dispatcher(self, **settings: Any) -> Dispatcher:
        """Another process's, which sends to SQS."""
        return Dispatcher(
            self.store,
            SqsOutbox(self.queues, self.endpoint),
            settings=DispatchSettings(**settings),
            ledger=self.ledger,
            clock=self.clock,
        )

    def put(
        self, delay: dict[str, Attribute] | int | str, message_id: str = "m-1", body: str = "x"
    ) -> None:
        """What some sender, ours or not, puts in the delay queue: its seconds, or all attributes."""
        attributes = delay if isinstance(delay, dict) else {DELAY_SECONDS: string(str(delay))}
        entry = OutgoingMessage(
            body, attributes, size_of(body, attributes), None, message_id, message_id
        )
        self.queues.send_batch(self.endpoint.delay_queue.name, [entry])

    def poll(self, relay: Relay | None = None) -> list[Outcome]:
        """One batch of its queue."""
        relay = relay or self.relay
        return relay.process(self.received(relay.source.name))

    def statuses(self, relay: Relay | None = None) -> list[Status]:
        """The same, how each fared."""
        return [outcome.status for outcome in self.poll(relay)]

    def fates(self) -> dict[str, Status]:
        """The same, by message."""
        return {outcome.copy.message_id: outcome.status for outcome in self.poll()}

    def received(self, queue: str = "orders") -> list[ReceivedMessage]:
        """At most ten copies, which stay."""
        return self.queues.receive_batch(queue, wait_seconds=0)

    def left(self, queue: str, after: float = 200) -> list[ReceivedMessage]:
        """All that is there then: what nobody has settled is back."""
        self.clock.advance(after)
        found: list[ReceivedMessage] = []
        while copies := self.received(queue):
            found += copies
        return found

    def told(self) -> list[Event]:
        """What was recorded since the last look."""
        events, self.ledger.events = self.ledger.events, []
        return events


class S3Site(Site):
    """One whose store is S3, in memory."""

    def __init__(self, *, lookup: bool = False, s3: InMemoryS3 | None = None) -> None:
        self.s3 = s3 or InMemoryS3()
        client: Any = self.s3
        given: dict[str, Any] = {"endpoint": "orders", "client": client, "lookup": lookup}
        super().__init__(
            park_after=DEFAULT_PARK_AFTER_SECONDS,
            store=lambda clock: S3Store("parked", clock=clock, **given),
        )
        self.dispatcher = self.new_dispatcher(number_of_retries=99)
        self.due_at = utc(self.clock.true_ms + 3 * DAY * 1000)
        self.arrived: list[str] = []

    def run(self, seconds: int, *, tick: int = 60) -> list[str]:
        """Serve the endpoint; the bodies that have arrived so far, in order of their text."""
        for _ in range(0, seconds, tick):
            self.clock.advance(tick)
            while self.poll():
                pass
            while self.dispatcher.dispatch().claimed:
                pass
            copies = self.received()
            self.arrived += [copy.body for copy in copies]
            self.queues.delete_batch("orders", copies)
        return sorted(self.arrived)
