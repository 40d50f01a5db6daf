"""Copies in hand stay hidden while a worker works on them, and come back soon when it is gone."""

from __future__ import annotations

import pytest

from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.errors import ConfigurationError
from sqsdelay.limits import DEDUPLICATION_INTERVAL_SECONDS, DELAY_QUEUE_VISIBILITY_SECONDS
from sqsdelay.relaying.visibility import Visibility
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.faulty import FaultyQueues

DELAY = "orders-delay.fifo"


@pytest.fixture
def queues(clock: ManualClock) -> InMemoryQueues:
    queues = InMemoryQueues(clock)
    queues.create_endpoint("orders")
    for n in range(3):
        entry = OutgoingMessage("x", {}, 1, None, f"g-{n}", f"d-{n}")
        queues.send_batch(DELAY, [entry])
    clock.advance(900)
    return queues


def visible(queues: InMemoryQueues) -> int:
    return len(queues.receive_batch(DELAY, wait_seconds=0, visibility_seconds=0))


def test_a_dead_workers_copies_come_back_after_its_own_visibility(queues: InMemoryQueues) -> None:
    """30 seconds, whatever the queue's 180 are: those are for Lambda."""
    batch = Visibility(queues, queues.clock).receive(QueueRef(DELAY), wait_seconds=0)
    assert len(batch.copies) == 3
    queues.clock.advance(29.9)
    assert (visible(queues), batch.held()) == (0, True)
    queues.clock.advance(0.1)
    assert (visible(queues), batch.held()) == (3, False)


def test_what_is_worked_on_stays_hidden_up_to_three_minutes(queues: InMemoryQueues) -> None:
    """And no longer: a second attempt must deduplicate against the first, within five minutes."""
    visibility = Visibility(queues, queues.clock)
    batch = visibility.receive(QueueRef(DELAY), wait_seconds=0)
    held_for = 0.0
    while batch.held():
        assert visible(queues) == 0
        visibility.extend()
        queues.clock.advance(visibility.beat_seconds)
        held_for += visibility.beat_seconds
    assert 170 < held_for <= DELAY_QUEUE_VISIBILITY_SECONDS + visibility.beat_seconds
    assert visible(queues) == 3
    assert held_for < DEDUPLICATION_INTERVAL_SECONDS


def test_a_quick_batch_costs_no_request(queues: InMemoryQueues) -> None:
    """Batches take milliseconds: only one that takes a third of the visibility is extended."""
    visibility = Visibility(queues, queues.clock)
    batch = visibility.receive(QueueRef(DELAY), wait_seconds=0)
    queues.clock.advance(5)
    visibility.extend()
    assert queues.calls.count("hide") == 0
    queues.clock.advance(5)
    visibility.extend()
    assert queues.calls.count("hide") == 1
    visibility.done(batch)
    queues.clock.advance(10)
    visibility.extend()
    assert queues.calls.count("hide") == 1


def test_the_parts_of_a_batch_stay_hidden_as_the_whole_would(queues: InMemoryQueues) -> None:
    """What is gathered and what is worked on at once: each is extended, for 180 s in all."""
    visibility = Visibility(queues, queues.clock)
    batch = visibility.receive(QueueRef(DELAY), wait_seconds=0)
    received_at = queues.clock.monotonic()
    assert visibility.last_touched() == received_at
    queues.clock.advance(15)
    first, rest = visibility.divide(batch, batch.copies[:1])
    assert [len(part.copies) for part in (first, rest)] == [1, 2]
    assert visibility.last_touched() == received_at
    visibility.extend()
    assert queues.calls.count("hide") == 2
    queues.clock.advance(20)
    assert (visible(queues), first.held(), rest.held(), batch.held()) == (0, True, True, False)
    while queues.clock.monotonic() < received_at + 200:
        visibility.extend()
        queues.clock.advance(5)
    assert visible(queues) == 3


def test_what_was_lost_is_not_taken_back(queues: InMemoryQueues) -> None:
    """After a stop of the process others have the copies; to hide them again would be theft."""
    visibility = Visibility(queues, queues.clock)
    batch = visibility.receive(QueueRef(DELAY), wait_seconds=0)
    queues.clock.advance(30)
    visibility.extend()
    assert not batch.held()
    assert queues.calls.count("hide") == 0


def test_what_nobody_will_work_on_is_released(queues: InMemoryQueues) -> None:
    """A long poll that returns after the stop: others get its copies at once."""
    visibility = Visibility(queues, queues.clock)
    visibility.release(visibility.receive(QueueRef(DELAY), wait_seconds=0))
    assert visibility.last_touched() is None
    assert visible(queues) == 3


def test_what_cannot_be_hidden_any_longer_is_in_the_log(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Others get it when its time is up, and this one knows."""
    queues = FaultyQueues(clock)
    queues.create_queue("q")
    queues.send_batch("q", [OutgoingMessage("x", {}, 1)])
    visibility = Visibility(queues, clock)
    batch = visibility.receive(QueueRef("q"), wait_seconds=0)
    clock.advance(10)
    queues.hides_fail = True
    visibility.extend()
    assert caplog.messages == [
        "copies in hand come back to other consumers, their visibility is not extended: away"
    ]
    clock.advance(20)
    assert not batch.held()


@pytest.mark.parametrize("seconds", [0, 181])
def test_out_of_range(queues: InMemoryQueues, seconds: int) -> None:
    """Longer than 180 s would outlive the deduplication of a second attempt."""
    told = "use 1 to 180: a copy that comes back later is no longer deduplicated against its first attempt"
    with pytest.raises(ConfigurationError, match=f"visibility_seconds={seconds}; {told}"):
        Visibility(queues, queues.clock, seconds=seconds)
    for fits in (1, 180):
        assert Visibility(queues, queues.clock, seconds=fits).beat_seconds == fits / 3
