"""Copies in hand stay hidden while a worker works on them, and come back soon when it is gone. Those to be
parked wait for others where the store takes groups; none is deleted before it is stored."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import pytest
from botocore.exceptions import EndpointConnectionError

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEDUPLICATION_INTERVAL_SECONDS, DELAY_QUEUE_VISIBILITY_SECONDS
from sqsdelay.errors import SchemaMismatch
from sqsdelay.relaying import DueRelay, Status, gathering
from sqsdelay.relaying.gathering import GATHERED_SECONDS, InHand, Intake
from tests.patience import PATIENCE_SECONDS
from tests.unit.relay_site import DAY, S3Site

DELAY = "orders-delay.fifo"


class Site(S3Site):
    """A relay that parks in S3, and what a worker takes in for it."""

    def __init__(self) -> None:
        super().__init__()
        self.intake = Intake(self.queues, self.relay, self.clock)
        self.intake.most = 25

    def fill(self, count: int, seconds: int = 90 * DAY) -> None:
        """Visible now."""
        for n in range(count):
            self.put(seconds, f"m{seconds}-{n}")
        self.clock.advance(900)

    def visible(self) -> int:
        return len(self.queues.receive_batch(DELAY, wait_seconds=0, visibility_seconds=0))

    def receive(self) -> list[Status]:
        """One receive; how those of its copies fared that are not gathered."""
        batch = self.intake.receive(wait_seconds=0)
        return [outcome.status for outcome in self.intake.settle(batch, gather=True)]

    def hides(self) -> int:
        return self.queues.calls.count("hide")


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_dead_workers_copies_come_back_after_its_own_visibility(site: Site) -> None:
    """30 seconds, whatever the queue's 180 are: those are for Lambda."""
    site.fill(3)
    batch = site.intake.receive(wait_seconds=0)
    assert len(batch.copies) == 3
    site.clock.advance(29.9)
    assert (site.visible(), site.intake.held(batch)) == (0, True)
    site.clock.advance(0.1)
    assert (site.visible(), site.intake.held(batch)) == (3, False)


@pytest.mark.parametrize("gathered", [False, True])
def test_what_is_worked_on_stays_hidden_up_to_three_minutes(site: Site, gathered: bool) -> None:
    """And no longer: a second attempt must deduplicate against the first, within five minutes. The same holds
    for what is left of a batch."""
    site.fill(3)
    batch = site.intake.receive(wait_seconds=0)
    if gathered:
        site.intake.settle(batch, gather=True)
    held_for = 0.0
    while site.intake.held(batch):
        assert site.visible() == 0
        site.intake.extend()
        site.clock.advance(site.intake.beat_seconds)
        held_for += site.intake.beat_seconds
    assert 170 < held_for <= DELAY_QUEUE_VISIBILITY_SECONDS + site.intake.beat_seconds
    assert site.visible() == 3
    assert held_for < DEDUPLICATION_INTERVAL_SECONDS


def test_a_quick_batch_costs_no_request(site: Site) -> None:
    """Batches take milliseconds: only one that takes a third of the visibility is extended."""
    site.fill(3)
    batch = site.intake.receive(wait_seconds=0)
    for seconds, hides in ((5, 0), (5, 1)):
        site.clock.advance(seconds)
        site.intake.extend()
        assert site.hides() == hides
    site.intake.settle(batch)
    site.clock.advance(10)
    site.intake.extend()
    assert site.hides() == 1


def test_what_was_lost_is_not_taken_back(site: Site) -> None:
    """After a stop of the process others have the copies; to hide them again would be theft."""
    site.fill(3)
    batch = site.intake.receive(wait_seconds=0)
    site.clock.advance(30)
    site.intake.extend()
    assert (site.intake.held(batch), site.hides()) == (False, 0)


def test_what_nobody_will_work_on_is_released(site: Site) -> None:
    """A long poll that returns after the stop: others get its copies at once."""
    site.fill(3)
    site.intake.release(site.intake.receive(wait_seconds=0))
    assert (site.intake.last_touched(), site.visible()) == (None, 3)


def test_what_cannot_be_settled_is_not_kept_hidden(site: Site) -> None:
    """It comes back when its time is up."""
    site.fill(3)
    site.intake.relay.process = Mock(side_effect=SchemaMismatch("v2"))  # type: ignore[method-assign]
    with pytest.raises(SchemaMismatch):
        site.intake.settle(site.intake.receive(wait_seconds=0))
    assert site.intake.last_touched() is None


def test_what_cannot_be_hidden_any_longer_is_in_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Others get it when its time is up, and this one knows."""
    site.fill(1)
    batch = site.intake.receive(wait_seconds=0)
    site.clock.advance(10)
    site.queues.hides_fail = True
    site.intake.extend()
    assert caplog.messages == ["copies in hand are hidden no longer and come back elsewhere: away"]
    site.clock.advance(20)
    assert not site.intake.held(batch)


@pytest.mark.parametrize(("most", "most_bytes"), [(25, 2**20), (10_000, 21)])
def test_a_group_is_one_object_and_then_its_copies_are_deleted(
    site: Site, monkeypatch: pytest.MonkeyPatch, most: int, most_bytes: int
) -> None:
    """Once there are enough, or they take enough memory; the PUT comes first."""
    monkeypatch.setattr(gathering, "MAX_BYTES", most_bytes)
    site.intake.most = most
    site.fill(30)
    for _ in range(2):
        site.receive()
        assert site.intake.park(only_if_full=True) == []
    site.receive()
    outcomes = site.intake.park(only_if_full=True)
    assert [o.status for o in outcomes] == [Status.PARKED] * 30
    assert site.s3.requests["PutObject"] == 1
    assert site.store.pending_count() == 30
    assert (site.intake.last_touched(), len(site.left(DELAY))) == (None, 0)


def test_a_group_waits_no_longer_than_ten_seconds(site: Site) -> None:
    """However small it is."""
    site.fill(3)
    site.receive()
    site.clock.advance(GATHERED_SECONDS - 1)
    assert (site.intake.park(only_if_full=True), site.intake.seconds_left()) == ([], 1)
    site.clock.advance(1)
    assert len(site.intake.park(only_if_full=True)) == 3
    assert site.intake.seconds_left() is None


def test_what_is_near_is_worked_on_at_once(site: Site) -> None:
    """A message that is to be handed over does not wait for those that are parked. A batch of such messages
    is over then: nothing of it is extended."""
    site.fill(4)
    site.fill(5, 1800)
    assert site.receive() == [Status.HANDED_OVER] * 5
    assert len(site.intake.park()) == 4
    site.fill(2, 1800)
    assert site.receive() == [Status.HANDED_OVER] * 2
    site.clock.advance(10)
    site.intake.extend()
    assert site.hides() == 0
    due_relay = DueRelay(site.queues, Endpoint.parse("orders.fifo"), site.settings())
    assert Intake(site.queues, due_relay, site.clock).most is None


def test_a_worker_killed_or_stopped_before_the_put_loses_nothing(site: Site) -> None:
    """Its copies are in their queue until the store has confirmed them, and come back. One that goes on parks
    none of them: S3 would have them twice."""
    site.fill(4)
    site.receive()
    assert len(site.left(DELAY)) == 4
    assert site.intake.park() == []
    assert (site.store.pending_count(), site.intake.last_touched()) == (0, None)


def test_what_another_receiver_parks_stays_in_hand(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept hidden until the store has it, although who received it has done with it."""
    parking, stored = threading.Event(), threading.Event()

    def process(copies: object, *, held: object) -> list[Any]:
        parking.set()
        stored.wait(PATIENCE_SECONDS)
        return []

    class Taken(InHand):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "gathered" and value:
                other.start()
                parking.wait(PATIENCE_SECONDS)

    other = threading.Thread(target=site.intake.park)
    monkeypatch.setattr(gathering, "InHand", Taken)
    monkeypatch.setattr(site.intake.relay, "process", process)
    site.fill(3)
    site.receive()
    assert site.intake.last_touched() is not None
    stored.set()
    other.join(PATIENCE_SECONDS)
    assert site.intake.last_touched() is None


def test_an_outage_of_the_store_lets_copies_hop_on(site: Site) -> None:
    """As without gathering."""
    site.fill(4)
    site.receive()
    away = EndpointConnectionError(endpoint_url="s3")
    site.s3.put_object = Mock(side_effect=away)  # type: ignore[method-assign]
    assert [o.status for o in site.intake.park()] == [Status.REQUEUED] * 4
