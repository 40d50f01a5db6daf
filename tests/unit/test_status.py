"""What an endpoint's status counts, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import Message, OutgoingMessage
from sqsdelay.core.readable import age
from sqsdelay.core.stored_message import to_store
from sqsdelay.errors import QueueMissing
from sqsdelay.operating.status import OVERDUE_MS, Role, StoreStatus, endpoint_status, store_status
from sqsdelay.relaying.relay import Relay
from sqsdelay.sending.sender import QueueSender
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock


class Ages:
    """Ages by queue name."""

    def __init__(self, ages: dict[str, int]) -> None:
        self._ages = ages

    def oldest_seconds(self, queues: Sequence[QueueRef]) -> Mapping[QueueRef, int]:
        return {q: self._ages[q.name] for q in queues if q.name in self._ages}


def test_every_message_is_counted_where_it_is(clock: ManualClock) -> None:
    """Pending waits for its due time, wherever; in flight is in the delay consumer's hands."""
    queues = InMemoryQueues(clock)
    endpoint = queues.create_endpoint("orders")
    sender = QueueSender(queues)
    sender.send_many("orders", [Message("x", delay=5000)] * 3)
    clock.advance(900)
    copies = queues.receive_batch("orders-delay.fifo", wait_seconds=0, limit=2)
    Relay(queues, endpoint).process(copies[:1])
    sender.send_many("orders", [Message("x"), Message("x", delay=60)])
    sender.send("orders", "x", delay=1000)
    queues.send_batch("orders-delay-error", [])
    found = endpoint_status(queues, endpoint, Ages({"orders-delay.fifo": 901, "orders": 5000}))
    rows = [(q.role, q.visible, q.in_flight, q.delayed, q.oldest_seconds) for q in found.queues]
    destination, error = (Role.DESTINATION, 1, 0, 1, 5000), (Role.ERROR, 0, 0, 0, None)
    assert rows == [(Role.DELAY, 1, 1, 2, 901), destination, error]
    assert (found.pending, found.in_flight, found.oldest_seconds, found.errors) == (4, 1, 901, 0)


def test_what_gathers_in_a_parking_queue_is_pending(clock: ManualClock) -> None:
    """Where there is one: an S3 store's is not yet parked, a Scheduler store's has fired."""
    queues = InMemoryQueues(clock)
    endpoint = queues.create_endpoint("orders")
    queues.create_queue("orders-parking")
    for _ in range(3):
        queues.send_batch("orders-parking", [OutgoingMessage("x", {}, 1)])
    queues.receive_batch("orders-parking", wait_seconds=0, limit=1)
    found = endpoint_status(queues, endpoint, Ages({"orders-parking": 1_000}))
    parking = found.queue(Role.PARKING)
    assert (parking.visible, parking.in_flight, parking.oldest_seconds) == (2, 1, 1_000)
    # Who empties it is no delay consumer, and what has fired may well be half an hour old.
    assert (found.pending, found.in_flight, found.oldest_seconds) == (3, 0, None)


def test_a_fifo_endpoints_due_queue_counts_too() -> None:
    """Its messages wait there for the last leg; the older queue tells the age."""
    queues = InMemoryQueues(ManualClock())
    endpoint = queues.create_endpoint("orders.fifo")
    QueueSender(queues).send("orders.fifo", "x", delay=60, message_group_id="g")
    ages = Ages({"orders-delay.fifo": 7, "orders-due": 30})
    found = endpoint_status(queues, endpoint, ages)
    assert [q.role for q in found.queues] == [Role.DELAY, Role.DUE, Role.DESTINATION, Role.ERROR]
    assert (found.pending, found.oldest_seconds) == (1, 30)
    assert endpoint_status(queues, endpoint).oldest_seconds is None


@pytest.mark.parametrize("gone", ["orders", "orders-delay.fifo", "orders-delay-error"])
def test_a_missing_queue_is_named_with_the_remedy(gone: str) -> None:
    """Half an endpoint is none."""
    queues = InMemoryQueues(ManualClock())
    endpoint = queues.create_endpoint("orders")
    queues.delete_queue(gone)
    with pytest.raises(QueueMissing, match=f"queue {gone} does not exist.*endpoint create orders"):
        endpoint_status(queues, endpoint)
    with pytest.raises(QueueMissing, match="endpoint create nowhere"):
        endpoint_status(queues, Endpoint.parse("nowhere"))


def test_a_store_tells_how_many_are_parked_and_the_next(clock: ManualClock) -> None:
    """Exactly."""
    store = InMemoryStore(clock)
    assert store_status(store, now_ms=clock.true_ms) == StoreStatus(parked=0, next_due_ms=None)
    messages = [Message("x", delay=hours * 3600) for hours in (9, 8)]
    store.store([to_store(message, "orders", now_ms=clock.true_ms) for message in messages])
    eight_ms = clock.true_ms + 8 * 3_600_000
    told = store_status(store, now_ms=clock.true_ms)
    assert told == StoreStatus(parked=2, next_due_ms=eight_ms)
    assert not told.overdue
    assert not store_status(store, now_ms=eight_ms + OVERDUE_MS).overdue
    late = store_status(store, now_ms=eight_ms + OVERDUE_MS + 1)
    assert (late.overdue, late.late_ms) == (True, OVERDUE_MS + 1)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0, "0 s"), (59, "59 s"), (901, "15 min 1 s"), (90_061, "1 d 1 h"), (3600, "1 h")],
)  # fmt: skip
def test_ages_are_readable(seconds: int | None, shown: str) -> None:
    """Two units are enough."""
    assert age(seconds) == shown
