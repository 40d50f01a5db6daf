"""Copies to be parked wait for others where the store takes groups; none is deleted before it is stored."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import OutgoingMessage, string
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying import DueRelay, Relay, RelaySettings, Status
from sqsdelay.relaying.parker import GATHERED_SECONDS, Gathering
from sqsdelay.relaying.visibility import Visibility
from sqsdelay.stores import S3Store
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.services.in_memory_s3 import InMemoryS3

DELAY = "orders-delay.fifo"
DAY = 86_400


class Site:
    """A relay that parks in S3, and what one receiver gathers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queues = InMemoryQueues(self.clock)
        self.queues.create_endpoint("orders")
        self.s3 = InMemoryS3()
        client: Any = self.s3
        self.store = S3Store("parked", endpoint="orders", client=client, clock=self.clock)
        relay = Relay(
            self.queues,
            Endpoint.parse("orders"),
            RelaySettings(parking=ParkingSettings(self.store)),
        )
        self.visibility = Visibility(self.queues, self.clock)
        self.gathering = Gathering(relay, self.visibility)
        self.gathering.most = 25

    def put(self, count: int, seconds: int) -> None:
        for n in range(count):
            name = f"m{seconds}-{n}"
            attributes = {"NServiceBus.AmazonSQS.DelaySeconds": string(str(seconds))}
            entry = OutgoingMessage("x", attributes, 9, group_id=name, deduplication_id=name)
            self.queues.send_batch(DELAY, [entry])

    def left_in_queue(self) -> int:
        """What nobody has settled: it is back when nobody hides it any more."""
        self.clock.advance(200)
        found = 0
        while copies := self.queues.receive_batch(DELAY, wait_seconds=0):
            found += len(copies)
        return found

    def receive(self) -> int:
        """One receive; how many of its copies are not kept."""
        batch = self.visibility.receive(QueueRef(DELAY), wait_seconds=0)
        return len(self.gathering.keep(batch).copies) if batch.copies else 0


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_group_is_one_object_and_then_its_copies_are_deleted(site: Site) -> None:
    """Once there are enough; the PUT comes first."""
    site.put(30, 90 * DAY)
    site.clock.advance(900)
    for _ in range(2):
        site.receive()
        assert site.gathering.park(only_if_full=True) == []
    site.receive()
    outcomes = site.gathering.park(only_if_full=True)
    assert [o.status for o in outcomes] == [Status.PARKED] * 30
    assert site.s3.requests["PutObject"] == 1
    assert site.store.pending_count() == 30
    assert site.visibility.last_touched() is None
    assert site.left_in_queue() == 0


def test_a_group_waits_no_longer_than_ten_seconds(site: Site) -> None:
    """However small it is."""
    site.put(3, 90 * DAY)
    site.clock.advance(900)
    site.receive()
    site.clock.advance(GATHERED_SECONDS - 1)
    assert (site.gathering.park(only_if_full=True), site.gathering.seconds_left()) == ([], 1)
    site.clock.advance(1)
    assert len(site.gathering.park(only_if_full=True)) == 3
    assert site.gathering.seconds_left() is None


def test_what_is_near_is_worked_on_at_once(site: Site) -> None:
    """A message that is to be handed over does not wait for those that are parked."""
    site.put(4, 90 * DAY)
    site.put(5, 1000)
    site.clock.advance(900)
    assert site.receive() == 5
    due_relay = DueRelay(site.queues, Endpoint.parse("orders.fifo"))
    assert Gathering(due_relay, site.visibility).most is None
    assert len(site.gathering.park()) == 4


def test_a_worker_killed_or_stopped_before_the_put_loses_nothing(site: Site) -> None:
    """Its copies are in their queue until the store has confirmed them, and come back. One that goes on parks
    none of them: S3 would have them twice."""
    site.put(4, 90 * DAY)
    site.clock.advance(900)
    site.receive()
    assert site.left_in_queue() == 4
    assert site.gathering.park() == []
    assert (site.store.pending_count(), site.visibility.last_touched()) == (0, None)


def test_an_outage_of_the_store_lets_copies_hop_on(site: Site) -> None:
    """As without gathering."""
    site.put(4, 90 * DAY)
    site.clock.advance(900)
    site.receive()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.s3, "put_object", _unavailable)
        outcomes = site.gathering.park()
    assert [o.status for o in outcomes] == [Status.REQUEUED] * 4


def _unavailable(**_: Any) -> None:
    raise EndpointConnectionError(endpoint_url="s3")
