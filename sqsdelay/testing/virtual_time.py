"""Endpoints in memory with all that serves them, for tests of code that sends with a delay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from sqsdelay.core.delay import due_at_ms, utc
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.message import MESSAGE_ID, WAS_DUE_AT, Attribute, text_of
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying.outcomes import RelaySettings
from sqsdelay.relaying.relay import DueRelay, Relay
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.testing.in_memory import InMemoryQueues, InMemoryStore, ManualClock

START: Final = datetime(2027, 1, 1, tzinfo=UTC)
"""When virtual time begins, unless told otherwise: every run of a test is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message at its destination.

    Attributes:
        endpoint: the endpoint's name.
        body: as sent.
        attributes: as sent, in boto3's shape.
        message_id: the sender's, or the one it made up; SQS's own of a message sent without a delay.
        at: when it arrived, virtual time.
    """

    endpoint: str
    body: str
    attributes: dict[str, Attribute] = field(default_factory=dict)
    message_id: str
    at: datetime


class _Served:
    """An endpoint and what works for it: the delay consumer, and a dispatcher if there is a store."""

    def __init__(self, queues: InMemoryQueues, endpoint: Endpoint, *, store: bool) -> None:
        self.endpoint = endpoint
        self.store = InMemoryStore(clock=queues.clock) if store else None
        parking = None if self.store is None else ParkingSettings(self.store)
        self.movers: list[Relay] = [Relay(queues, endpoint, RelaySettings(parking=parking))]
        if endpoint.fifo:
            self.movers.append(DueRelay(queues, endpoint))
        self.dispatcher = None
        if self.store is not None:
            outbox = SqsOutbox(queues, endpoint)
            self.dispatcher = Dispatcher(self.store, outbox, clock=queues.clock)

    def next_release_ms(self) -> int | None:
        """When the dispatcher has something to do next: it knows the broker's time to the second."""
        due_ms = None if self.store is None else self.store.next_due_ms()
        return None if due_ms is None else 1000 * (-(-due_ms // 1000) - MAX_MESSAGE_TIMER_SECONDS)


class VirtualSqs:
    """SQS with sqsdelay's endpoints in memory, under virtual time: a year passes in seconds.

    What runs is what runs in production: the sender, the delay consumer, the dispatcher. Only SQS and
    the clock are stand-ins. Nothing sleeps, and nothing leaves the process.

    Args:
        now: when virtual time begins.
        store: True parks messages that are due far ahead in a store in memory, so that the sender
            can cancel, move and list them; a year then passes in milliseconds.

    Attributes:
        sender: what to give to the code under test; it has the methods of `DelaySender`.
        queues: the queues behind it.
    """

    def __init__(self, *, now: datetime = START, store: bool = False) -> None:
        self._clock = ManualClock(due_at_ms(now))
        self._with_store = store
        self._served: dict[str, _Served] = {}
        self.queues = InMemoryQueues(self._clock)
        parking = ParkingSettings(self._store_of) if store else None
        self.sender = QueueSender(self.queues, SenderSettings(concurrency=1, parking=parking))

    @property
    def now(self) -> datetime:
        """Virtual time."""
        return utc(self._clock.true_ms)

    def create(self, endpoint: str) -> None:
        """Create an endpoint's queues, and let its delay consumer run.

        Raises:
            InvalidEndpoint
        """
        created = self.queues.create_endpoint(endpoint)
        self._served[created.name] = _Served(self.queues, created, store=self._with_store)

    def pass_time(self, duration: timedelta) -> list[Arrival]:
        """Let that much time pass; what arrived meanwhile, in order. `timedelta(0)`: what is there now."""
        end_ms = self._clock.true_ms + -(-duration // timedelta(milliseconds=1))
        arrived = list(self._arrivals(end_ms))
        self._clock.true_ms = end_ms
        return arrived

    def drain(self) -> list[Arrival]:
        """Let time pass until nothing waits any more; all that arrived, in order.

        What could not be delivered is in the endpoints' error queues."""
        return list(self._arrivals(None))

    def _store_of(self, endpoint: str) -> InMemoryStore:
        store = self._served[endpoint].store
        assert store is not None
        return store

    def _arrivals(self, end_ms: int | None) -> Iterator[Arrival]:
        while True:
            yield from self._settled()
            next_ms = self._next_ms()
            if next_ms is None or (end_ms is not None and next_ms > end_ms):
                return
            self._clock.true_ms = next_ms

    def _next_ms(self) -> int | None:
        """When something happens next, later than now."""
        times = [self.queues.next_visible_ms(after_ms=self._clock.true_ms)]
        times += [served.next_release_ms() for served in self._served.values()]
        later = [ms for ms in times if ms is not None and ms > self._clock.true_ms]
        return min(later, default=None)

    def _settled(self) -> Iterator[Arrival]:
        """Do all there is to do at this instant."""
        for served in self._served.values():
            for mover in served.movers:
                while copies := self._received(mover.source):
                    mover.process(copies)
            while served.dispatcher is not None and served.dispatcher.dispatch().claimed:
                pass
            yield from self._arrived(served.endpoint)

    def _arrived(self, endpoint: Endpoint) -> Iterator[Arrival]:
        while copies := self._received(endpoint.queue):
            self.queues.delete_batch(self.queues.url(endpoint.queue), copies)
            for copy in copies:
                yield Arrival(
                    endpoint=endpoint.name,
                    body=copy.body,
                    attributes={
                        name: value
                        for name, value in copy.attributes.items()
                        if name not in (MESSAGE_ID, WAS_DUE_AT)
                    },
                    message_id=text_of(copy.attributes, MESSAGE_ID) or copy.sqs_message_id,
                    at=self.now,
                )

    def _received(self, queue: QueueRef) -> list[ReceivedMessage]:
        return self.queues.receive_batch(self.queues.url(queue), wait_seconds=0)
