"""`sqsdelay.testing.VirtualSqs`: what users' tests stand on."""

from __future__ import annotations

import sqlite3
from datetime import timedelta

import pytest

from sqsdelay.errors import QueueMissing
from sqsdelay.parking.parking import Change
from sqsdelay.testing import InMemoryStore, ManualClock, VirtualSqs

A_SECOND = timedelta(seconds=1)
DAYS = timedelta(days=4)


@pytest.mark.parametrize("store", [False, True])
def test_messages_arrive_in_the_order_they_are_due(store: bool) -> None:
    """Through the delay queue, a FIFO endpoint's due queue and a message timer; none early."""
    sqs = VirtualSqs(store=store)
    for endpoint in ("orders", "pay.fifo"):
        sqs.create(endpoint)
    began = sqs.now
    sqs.sender.send("orders", "last", delay=DAYS, attributes={"a": "b"}, message_id="m")
    sqs.sender.send("pay.fifo", "second", delay=DAYS / 2, message_group_id="g")
    sqs.sender.send("orders", "first", delay=5)
    first, second, last = sqs.drain()
    assert [each.body for each in (first, second, last)] == ["first", "second", "last"]
    for arrival, delay in ((first, timedelta(seconds=5)), (second, DAYS / 2), (last, DAYS)):
        assert timedelta(0) <= arrival.at - began - delay < 2 * A_SECOND
    assert (last.endpoint, last.message_id) == ("orders", "m")
    assert last.attributes == {"a": {"DataType": "String", "StringValue": "b"}}
    assert sqs.drain() == []


def test_time_passes_as_far_as_told() -> None:
    """To the end of the span, and what arrives at its very end is in it."""
    sqs = VirtualSqs()
    sqs.create("orders")
    began = sqs.now
    sqs.sender.send("orders", "x", delay=900)
    assert sqs.pass_time(timedelta(seconds=899)) == []
    assert sqs.now - began == timedelta(seconds=899)
    assert [arrival.body for arrival in sqs.pass_time(A_SECOND)] == ["x"]


def test_a_store_lets_messages_be_changed() -> None:
    """Cancelled, moved and listed, as with a store in production."""
    sqs = VirtualSqs(store=True)
    sqs.create("orders")
    for message_id in ("a", "b"):
        sqs.sender.send("orders", message_id, delay=DAYS, message_id=message_id)
    assert sqs.sender.cancel("orders", "a") is Change.DONE
    assert [each.message_id for each in sqs.sender.pending("orders")] == ["b"]
    assert [arrival.body for arrival in sqs.drain()] == ["b"]


def test_a_store_in_memory_is_looked_at_after_its_user_closed_it() -> None:
    """And is closed with the last who knows it: Python 3.13 warns of a connection that is left open."""
    store = InMemoryStore(ManualClock())
    connection = store._connection
    store.close()
    assert store.pending_count() == 0
    del store
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connection.execute("SELECT 1")


def test_an_endpoint_has_to_be_created() -> None:
    """A mistyped name is found by the test, as it would be in production."""
    with pytest.raises(QueueMissing, match="orders"):
        VirtualSqs().sender.send("orders", "x", delay=DAYS)


def test_what_cannot_be_delivered_ends_the_wait() -> None:
    """It stays in the error queue; draining does not go on for ever."""
    sqs = VirtualSqs()
    sqs.create("orders")
    sqs.sender.send("orders", "x", delay=DAYS)
    sqs.queues.delete_queue("orders")
    sqs.queues.create_queue("orders", MaximumMessageSize="1")
    assert sqs.drain() == []
    assert sqs.queues.attributes("orders-delay-error")["ApproximateNumberOfMessages"] == "1"
