"""An endpoint with its relay, its sender and its store, under virtual time."""

from __future__ import annotations

from typing import Any

from sqsdelay.core.message import DELAY_SECONDS, Attribute, OutgoingMessage, size_of, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying import Outcome, Relay, RelaySettings, Status
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.testing import ManualClock
from tests.faulty import FaultyQueues, FaultyStore


class Site:
    """``park_after``: above so many seconds messages go to the store; without it they hop."""

    def __init__(
        self,
        queues: FaultyQueues | None = None,
        *,
        hop_seconds: int = DEFAULT_HOP_SECONDS,
        park_after: int | None = None,
    ) -> None:
        self.queues = queues or FaultyQueues(ManualClock())
        self.clock = self.queues.clock
        self.endpoint = self.queues.create_endpoint("orders", hop_seconds=hop_seconds)
        self.store = FaultyStore(self.clock)
        self.parking = None if park_after is None else ParkingSettings(self.store, park_after)
        self.relay = self.new_relay(self.parking)
        self.sender = self.new_sender(parking=self.parking)

    def new_relay(self, parking: ParkingSettings | None = None, **settings: Any) -> Relay:
        """Another delay consumer's."""
        return Relay(self.queues, self.endpoint, RelaySettings(parking=parking, **settings))

    def new_sender(self, **settings: Any) -> QueueSender:
        """Another process's."""
        return QueueSender(self.queues, SenderSettings(**settings))

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
        """One batch of the delay queue."""
        return (relay or self.relay).process(self.received(self.endpoint.delay_queue.name))

    def statuses(self, relay: Relay | None = None) -> list[Status]:
        """The same, how each fared."""
        return [outcome.status for outcome in self.poll(relay)]

    def fates(self) -> dict[str, Status]:
        """The same, by message."""
        return {outcome.copy.message_id: outcome.status for outcome in self.poll()}

    def received(self, queue: str = "orders") -> list[ReceivedMessage]:
        """At most ten copies, which stay."""
        return self.queues.receive_batch(queue, wait_seconds=0)
