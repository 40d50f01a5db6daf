"""Ids that are made up here tell when their message is due."""

from __future__ import annotations

import pytest

from sqsdelay.core.checked_message import due_ms_of_id, new_message_id
from sqsdelay.core.message import DEDUPLICATION_ID, string
from sqsdelay.limits import ID, MAX_DUE_MS
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sending.settings import SenderSettings
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock


@pytest.mark.parametrize("due_ms", [0, 1, 1_800_000_000_123, MAX_DUE_MS])
def test_an_id_tells_the_due_time(due_ms: int) -> None:
    """To the millisecond, and it fits a FIFO queue's ids."""
    made = new_message_id(due_ms)
    assert due_ms_of_id(made) == due_ms
    assert ID.fullmatch(made)


def test_ids_sort_by_due_time_and_differ() -> None:
    """Two of one millisecond are two."""
    made = [new_message_id(due_ms) for due_ms in (5, 31, 32, 1023, 1024, MAX_DUE_MS)]
    assert made == sorted(made)
    assert len({new_message_id(7) for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "other",
    [
        "",
        "order-7",
        "01mcc5rm3vbaszha73rv9k5ka4",
        "U01MCC5RM3VBASZHA73RV9K5KA4",
        "u81mcc5rm3vbaszha73rv9k5ka4",
        "u01mcc5rm3vbaszha73rv9k5ka4x",
        "u01mcc5rm3vbaszha73rv9k5kau",
    ],
)
def test_other_ids_tell_none(other: str) -> None:
    """Nor do ULIDs of somebody's own, whose time is when they were made."""
    assert due_ms_of_id(other) is None


@pytest.mark.parametrize("endpoint", ["orders", "orders.fifo"])
@pytest.mark.parametrize("delay", [1_000, 90_000], ids=["delay queue", "store"])
def test_a_message_without_an_id_gets_one_for_its_due_time(endpoint: str, delay: int) -> None:
    """Once that is known, whichever way it goes."""
    clock = ManualClock()
    queues = InMemoryQueues(clock)
    queues.create_endpoint(endpoint)
    sender = QueueSender(
        queues, SenderSettings(parking=ParkingSettings(InMemoryStore(clock), 3_600))
    )
    group = "g" if endpoint.endswith(".fifo") else None
    sent = sender.send(endpoint, "x", delay=delay, message_group_id=group)
    told = due_ms_of_id(sent.message_id or "")
    assert told is not None
    assert abs(told - (clock.now_ms() + delay * 1000)) <= 1_000


def test_a_fifo_queue_deduplicates_by_that_id() -> None:
    """One message, one id: also where it waits in a store."""
    clock = ManualClock()
    queues, store = InMemoryQueues(clock), InMemoryStore(clock)
    queues.create_endpoint("orders.fifo")
    sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(store, 3_600)))
    sent = sender.send("orders.fifo", "x", delay=90_000, message_group_id="g")
    (kept,) = sender.pending("orders.fifo")
    assert kept.attributes[DEDUPLICATION_ID] == string(kept.message_id)
    assert kept.message_id == sent.message_id
