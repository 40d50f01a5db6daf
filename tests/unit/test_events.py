"""What sender, delay consumer and dispatcher record, and that a failing ledger costs them nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sqsdelay.core.delay import DATE_RESOLUTION_MS
from sqsdelay.core.message import MESSAGE_ID, Message, OutgoingMessage, Route, size_of, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import StoreUnavailable
from sqsdelay.ledger.events import Event, EventKind, Source
from sqsdelay.ledger.files import record_received
from sqsdelay.parking.parking import Change, ParkingSettings
from sqsdelay.relaying import DueRelay
from sqsdelay.testing import InMemoryOutbox
from tests.messages import a_message
from tests.unit.relay_site import DAY, Site


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_message_sent_directly(site: Site) -> None:
    """Its message timer, its size, and SQS's id for it."""
    site.clock.advance(1)
    site.new_sender().send("orders", "text", delay=90, message_id="m")
    assert site.told() == [
        Event(
            kind=EventKind.SENT,
            at_ms=site.clock.true_ms,
            endpoint="orders",
            message_id="m",
            source=Source.SENDER,
            due_ms=site.clock.true_ms + 90_000,
            size=size_of("text", {MESSAGE_ID: string("m")}),
            batch=1,
            route=Route.DIRECT,
            timer_seconds=90,
            sqs_message_id="sqs-1",
        )
    ]


def test_a_plain_message_has_sqss_own_id(site: Site) -> None:
    """The receiver records the same, since the message carries no other."""
    site.new_sender().send("orders", "text")
    (sent,) = site.told()
    assert (sent.message_id, sent.timer_seconds) == ("sqs-1", None)
    (copy,) = site.received("orders")
    record_received(site.ledger, "orders", [as_boto3(copy)])
    (received,) = site.told()
    assert (received.message_id, received.sqs_message_id) == ("sqs-1", "sqs-1")


def as_boto3(copy: ReceivedMessage) -> dict[str, Any]:
    return {
        "MessageId": copy.sqs_message_id,
        "ReceiptHandle": copy.receipt_handle,
        "Body": copy.body,
        "Attributes": {"ApproximateFirstReceiveTimestamp": str(copy.first_receive_ms)},
        "MessageAttributes": copy.attributes,
    }


def test_many_messages_share_their_requests(site: Site) -> None:
    """So that requests can be counted: the shares of 12 messages in two requests add up to two."""
    site.new_sender(concurrency=1).send_many("orders", [Message("x", delay=5000)] * 12)
    events = site.told()
    assert Counter(event.batch for event in events) == {10: 10, 2: 2}
    assert {event.route for event in events} == {Route.DELAY_QUEUE}
    assert len({event.message_id for event in events}) == 12


def test_what_was_not_sent_is_not_recorded(site: Site) -> None:
    """Neither what is refused beforehand, nor what SQS refuses."""
    site.queues.refuse("odd")
    messages = [Message("odd", message_id="a"), Message("", message_id="b"), Message("x", delay=60)]
    results = site.new_sender().send_many("orders", messages)
    assert [result.error is None for result in results] == [False, False, True]
    (sent,) = site.told()
    assert (sent.message_id, sent.timer_seconds) == (results[2].message_id, 60)


def test_a_message_sent_into_the_store(site: Site) -> None:
    """No request of a queue's has a share in it."""
    sender = site.new_sender(parking=ParkingSettings(site.store))
    sender.send("orders", "é", delay=DAY, message_id="m", attributes={"a": 1})
    (sent,) = site.told()
    assert (sent.route, sent.batch, sent.sqs_message_id) == (Route.STORE, None, None)
    assert sent.size == size_of("é", {"a": {"DataType": "Number", "StringValue": "1"}})
    sender.cancel("orders", "m")
    assert [(e.kind, e.endpoint) for e in site.told()] == [(EventKind.CANCELLED, "orders")]


def test_hops_and_hand_over_carry_the_exact_due_time(site: Site) -> None:
    """The sender's is an estimate; what the broker's SentTimestamp makes of it stands from there on."""
    site.new_sender().send("orders", "x", delay=1925, message_id="m")
    due_ms = site.told()[0].due_ms
    assert due_ms is not None
    relay = site.new_relay()
    for _ in range(2):
        site.clock.advance(900)
        site.poll(relay)
    hop, handed_over = site.told()
    assert hop == Event(
        kind=EventKind.HOP,
        at_ms=site.clock.true_ms - 900_000,
        endpoint="orders",
        message_id="m",
        source=Source.CONSUMER,
        due_ms=due_ms,
        size=hop.size,
        batch=1,
        receive_batch=1,
    )
    assert handed_over.kind is EventKind.HANDED_OVER
    assert (handed_over.due_ms, handed_over.timer_seconds, handed_over.late_ms) == (due_ms, 125, 0)


def test_the_shares_of_a_mixed_batch_add_up_to_its_requests(site: Site) -> None:
    """One receive, a send each to two queues, one delete: four requests for ten messages."""
    messages = [Message("x", delay=1000)] * 4 + [Message("x", delay=5000)] * 6
    site.new_sender().send_many("orders", messages)
    site.told()
    site.clock.advance(900)
    site.poll(site.new_relay())
    events = site.told()
    assert Counter(event.kind for event in events) == {EventKind.HANDED_OVER: 4, EventKind.HOP: 6}
    sends = sum(1 / (event.batch or 0) for event in events)
    receives = sum(1 / (event.receive_batch or 0) for event in events)
    assert (round(sends, 9), round(receives, 9)) == (2, 1)


def test_parked_and_cancelled_by_an_amendment(site: Site) -> None:
    """Neither is sent anywhere; both were received and deleted."""
    sender = site.new_sender()
    for message_id in ("far", "unwanted"):
        sender.send("orders", "x", delay=DAY, message_id=message_id)
    changer = site.new_sender(parking=ParkingSettings(site.store))
    site.told()
    assert changer.cancel("orders", "unwanted") is Change.REQUESTED
    assert site.told() == []
    site.clock.advance(900)
    site.poll(site.new_relay(ParkingSettings(site.store)))
    told = {
        event.message_id: (event.kind, event.batch, event.receive_batch) for event in site.told()
    }
    assert told == {"far": (EventKind.PARKED, None, 2), "unwanted": (EventKind.CANCELLED, None, 2)}


def test_cancelled_and_moved_in_the_store(site: Site) -> None:
    """A wish that came too late, or found nothing, is no event."""
    sender = site.new_sender(parking=ParkingSettings(site.store))
    for message_id in ("a", "b"):
        sender.send("orders", "x", delay=DAY, message_id=message_id)
    site.told()
    assert sender.cancel("orders", "a") is Change.DONE
    assert sender.reschedule("orders", "b", delay=2 * DAY) is Change.DONE
    assert sender.cancel("orders", "never-sent") is Change.REQUESTED
    cancelled, moved = site.told()
    latest_ms = site.clock.true_ms + DATE_RESOLUTION_MS
    told = [(event.kind, event.message_id, event.due_ms) for event in (cancelled, moved)]
    moved_ms = latest_ms + 2 * DAY * 1000
    assert told == [(EventKind.CANCELLED, "a", None), (EventKind.RESCHEDULED, "b", moved_ms)]
    assert {cancelled.endpoint, moved.endpoint} == {"orders"}
    assert {cancelled.source, moved.source} == {Source.SENDER}
    assert {cancelled.at_ms, moved.at_ms} == {latest_ms + 1}
    # Amendments cover all that was sent by then, and nothing of the next second; each its own millisecond.
    assert sender.cancel("orders", "never-sent") is Change.REQUESTED
    left = site.store.amendments(["a", "b", "never-sent"])
    assert [left[i].at_ms - latest_ms for i in ("a", "b", "never-sent")] == [1, 1, 2]


def test_a_message_moved_by_its_amendment_shows_the_new_due_time(site: Site) -> None:
    """No event of its own says so: it would also be told of a message that is gone."""
    site.new_sender().send("orders", "x", delay=5000, message_id="m")
    changer = site.new_sender(parking=ParkingSettings(site.store))
    assert changer.reschedule("orders", "m", delay=8000) is Change.REQUESTED
    site.told()
    new_ms = site.clock.true_ms + DATE_RESOLUTION_MS + 8_000_000
    site.clock.advance(900)
    site.poll(site.new_relay(ParkingSettings(site.store)))
    (hop,) = site.told()
    assert (hop.kind, hop.due_ms) == (EventKind.HOP, new_ms)


def test_rejected_with_its_reason(site: Site) -> None:
    """What does not say when it is due goes to the error queue."""
    poison = OutgoingMessage("x", {}, 1, group_id="p", deduplication_id="p")
    site.queues.send_batch("orders-delay.fifo", [poison])
    site.clock.advance(900)
    site.poll(site.new_relay())
    (rejected,) = site.told()
    assert (rejected.kind, rejected.message_id, rejected.due_ms) == (EventKind.REJECTED, "p", None)
    assert rejected.reason == "message attribute NServiceBus.AmazonSQS.DelaySeconds is missing"


def test_what_sqs_keeps_refusing_is_rejected_once(site: Site) -> None:
    """No event while it comes back; the last receive's is the only one."""
    site.new_sender().send("orders", "odd", delay=1000, message_id="m")
    site.told()
    site.queues.refuse("odd")
    site.clock.advance(900)
    relay = site.new_relay(max_receives=2)
    site.poll(relay)
    assert site.told() == []
    site.clock.advance(5)
    site.poll(relay)
    (rejected,) = site.told()
    assert (rejected.kind, rejected.due_ms) == (EventKind.REJECTED, None)
    assert rejected.reason == "InvalidMessageContents: refused"


def test_a_copy_that_was_not_deleted_is_recorded_once(site: Site) -> None:
    """It comes back, is known, and is not sent a second time."""
    site.new_sender().send("orders", "x", delay=1000, message_id="m")
    site.told()
    site.clock.advance(900)
    relay = site.new_relay()
    site.queues.deletes_fail = True
    site.poll(relay)
    site.clock.advance(300)
    site.queues.deletes_fail = False
    site.poll(relay)
    assert [event.kind for event in site.told()] == [EventKind.HANDED_OVER]
    assert site.received("orders-delay.fifo") == []


def test_a_fifo_endpoints_last_step_is_the_hand_over() -> None:
    """Into the due queue it hops; out of it, to the FIFO queue, it is handed over."""
    site = Site(name="payments.fifo")
    site.sender.send("payments.fifo", "x", delay=1000, message_id="long", message_group_id="g")
    site.clock.advance(900)
    site.poll()
    site.sender.send("payments.fifo", "x", delay=100, message_id="short", message_group_id="g")
    site.clock.advance(100.25)
    site.poll(DueRelay(site.queues, site.endpoint, site.settings()))
    long, short = (
        [event for event in site.ledger.events if event.message_id == m] for m in ("long", "short")
    )
    assert [event.kind for event in long] == [EventKind.SENT, EventKind.HOP, EventKind.HANDED_OVER]
    assert [event.timer_seconds for event in long] == [None, 100, None]
    assert [event.late_ms for event in long] == [None, None, 250]
    assert [event.route for event in short] == [Route.DUE_QUEUE, None]
    assert [event.timer_seconds for event in short] == [100, None]
    assert {event.endpoint for event in long + short} == {"payments.fifo"}


def parked(site: Site, message_id: str, in_ms: int, **fields: Any) -> StoredMessage:
    message = a_message(message_id, site.clock.true_ms + in_ms)
    return replace(message, **fields)


def test_released_ahead_of_its_due_time_with_a_message_timer(site: Site) -> None:
    """Lateness is when the destination shows it, and the batch is the request's."""
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
    site.store.store([parked(site, "soon", 59_400), parked(site, "late", -2_000)])
    site.queues.create_queue("orders")
    site.new_dispatcher().dispatch()
    late, soon = sorted(site.told(), key=lambda event: event.message_id)
    assert (soon.kind, soon.source) == (EventKind.RELEASED, Source.DISPATCHER)
    assert (soon.timer_seconds, soon.late_ms, soon.batch) == (60, 600, 2)
    assert (late.timer_seconds, late.late_ms, late.batch) == (0, 2_000, 2)
    assert soon.endpoint == "orders"
    site.store.store([parked(site, "by-url", 0, destination=url)])
    site.new_dispatcher().dispatch()
    (by_url,) = site.told()
    assert by_url.endpoint == "orders"


def test_an_outbox_that_does_not_tell_its_timer(site: Site) -> None:
    """Ahead of the due time lateness is not known; past it, it is what has passed."""
    site.store.store(
        [
            parked(site, "ahead", 30_000),
            parked(site, "late", -40, destination="a.b#"),
            parked(site, "punctual", 0),
        ]
    )
    outbox = InMemoryOutbox(site.clock, max_ahead_seconds=60)
    Dispatcher(site.store, outbox, ledger=site.ledger, clock=site.clock).dispatch()
    events = {event.message_id: event for event in site.told()}
    assert (events["ahead"].late_ms, events["punctual"].late_ms) == (None, 0)
    assert events["late"] == Event(
        kind=EventKind.RELEASED,
        at_ms=site.clock.true_ms,
        endpoint="a.b#",
        message_id="late",
        source=Source.DISPATCHER,
        due_ms=site.clock.true_ms - 40,
        late_ms=40,
    )


def test_rejected_from_the_store(site: Site) -> None:
    """With the reason the error queue gets; a message that is tried again is no event yet."""
    site.store.store([parked(site, "lost", -1, body=b"\xff"), parked(site, "good", 0)])
    site.new_dispatcher().dispatch()
    events = {event.message_id: event for event in site.told()}
    assert events["good"].kind is EventKind.RELEASED
    reason = events["lost"].reason
    assert (reason or "").startswith("InvalidMessage: the stored body of lost is not")
    assert events["lost"] == Event(
        kind=EventKind.REJECTED,
        at_ms=site.clock.true_ms,
        endpoint="orders",
        message_id="lost",
        source=Source.DISPATCHER,
        due_ms=site.clock.true_ms - 1,
        reason=reason,
    )
    site.store.store([parked(site, "nowhere", 0, destination="nowhere")])
    site.new_dispatcher(number_of_retries=1).dispatch()
    assert site.told() == []


def test_a_release_that_was_not_removed_is_recorded_once(site: Site) -> None:
    """Sent, and recorded, before the store went away; then it is only removed."""
    site.store.down, site.store.failures = {"remove"}, 1
    site.store.store([parked(site, "m", 0)])
    dispatcher = site.new_dispatcher()
    with pytest.raises(StoreUnavailable):
        dispatcher.dispatch()
    site.clock.advance(61)
    dispatcher.dispatch()
    assert site.store.pending_count() == 0
    assert [event.kind for event in site.told()] == [EventKind.RELEASED]


def test_a_failing_ledger_loses_nothing_and_duplicates_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Disk full from the sender to the destination: every message arrives once all the same."""
    site.ledger.fail = OSError(28, "No space left on device")
    sender = site.new_sender(parking=ParkingSettings(site.store))
    relay = site.new_relay(ParkingSettings(site.store))
    results = sender.send_many(
        "orders", [Message("x", delay=delay) for delay in (0, 1000, 20_000, 2 * DAY)]
    )
    assert [result.error for result in results] == [None] * 4
    for _ in range(200):
        site.clock.advance(900)
        site.poll(relay)
        site.new_dispatcher().dispatch()
    site.clock.advance(900)
    assert len(site.received("orders")) == 4
    assert site.received("orders-delay.fifo") == []
    assert site.store.pending_count() == 0
    assert site.received("orders-delay-error") == []
    assert site.ledger.events == []
    assert "events are missing in the ledger, it failed: [Errno 28]" in caplog.text
