"""Parking: what is far away goes into the store, once, and comes back as a hand-over would send it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from sqsdelay.core.delay import HandOver, Park, Requeue, decide
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DUE_AT, MESSAGE_ID, WAS_DUE_AT
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import (
    ConfigurationError,
    InvalidMessage,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from sqsdelay.parking.parking import Change, Parking, ParkingSettings, Schedule, parking_settings
from sqsdelay.relaying.outcomes import Status
from sqsdelay.sqs.outbox import SqsOutbox, failures
from sqsdelay.testing import InMemoryStore, ManualClock
from tests.unit.relay_site import Site

DELAY = "orders-delay.fifo"
DAY = 86_400


@pytest.fixture
def site() -> Site:
    return Site(park_after=3600)


def test_a_store_that_refuses_a_late_cancellation_stops_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Left while the message is parked, for an id by which an S3 store without look-up finds nothing."""
    keep = site.store.store

    def cancelled_meanwhile(messages: Sequence[StoredMessage], **given: Any) -> Any:
        done = keep(messages, **given)
        site.store.amend([Amendment(message_id="order-7", at_ms=site.clock.true_ms)])
        return done

    def refuse(message_ids: Sequence[str]) -> Any:
        raise ConfigurationError(f"{message_ids[0]} does not tell where it lies")

    monkeypatch.setattr(site.store, "store", cancelled_meanwhile)
    monkeypatch.setattr(site.store, "cancel", refuse)
    site.new_sender().send("orders", "far", delay=10 * DAY, message_id="order-7")
    site.clock.advance(900)
    assert site.statuses() == [Status.PARKED]
    told = "amendment of parked order-7 not applied: order-7 does not tell where it lies"
    assert caplog.messages == [told]


@pytest.mark.parametrize("delay", [1000, DAY])
def test_another_version_is_refused_by_the_sender(site: Site, delay: int) -> None:
    """Also after it has sent: its message might be taken for one that was cancelled."""
    site.sender.send("orders", "x", delay=1000)

    def refused(*_: object, **__: object) -> Any:
        raise SchemaMismatch("table orders")

    site.store.amendments = site.store.store = refused
    for sender in (site.sender, site.new_sender(parking=site.parking)):
        with pytest.raises(SchemaMismatch):
            sender.send("orders", "x", delay=delay, message_id="m-1")
    site.clock.advance(900)
    assert len(site.received(DELAY)) == 1


def test_an_id_used_again_for_another_message_is_refused_by_the_sender(site: Site) -> None:
    """The store keeps one message an id: reporting the second as sent would lose it."""
    for _ in range(2):
        site.sender.send("orders", "first", delay=10 * DAY, message_id="customer-7")
    told = "with a different body, attributes or message group; use a different id for each message"
    with pytest.raises(InvalidMessage, match=f"'customer-7' is in the store {told}"):
        site.sender.send("orders", "second", delay=2 * DAY, message_id="customer-7")
    assert [message.body for message in site.store.pending(10)] == [b"first"]


@pytest.mark.parametrize(
    ("body", "days", "reason"),
    [
        ("second", 2, "conflict: message_id 'customer-7' is in the store with a different body"),
        ("first", 3, "conflict: message_id 'customer-7' is in the store and due at 2027-01-"),
        ("first", 2, "conflict: message_id 'customer-7' is in the store and due at 2027-01-"),
    ],
)
def test_an_id_used_again_for_another_message_is_a_conflict(
    site: Site, body: str, days: int, reason: str
) -> None:
    """The consumer parks the first; the second is not counted as parked, nor lost: it says why."""
    site.new_sender().send("orders", "first", delay=2 * DAY, message_id="customer-7")
    site.clock.advance(900)
    assert site.statuses() == [Status.PARKED]
    site.new_sender().send("orders", body, delay=days * DAY, message_id="customer-7")
    site.clock.advance(900)
    (outcome,) = site.poll()
    assert (outcome.status, (outcome.error or "").startswith(reason)) == (Status.REJECTED, True)
    assert len(site.received("orders-delay-error")) == 1
    assert [message.body for message in site.store.pending(10)] == [b"first"]


def test_amendments_that_cannot_be_read_are_told_apart_from_none(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what was not looked at, and why."""
    site.store.down = {"amendments"}
    assert Parking(site.store, after_seconds=3600).amendments(["a", "b"]) == {"a": None, "b": None}
    told = "amendments of 2 messages not read: amendments: the store is down"
    assert caplog.messages == [told]


@pytest.mark.parametrize("after", [0, -5, 60])
def test_park_after_without_a_store_is_refused(after: int) -> None:
    """A setting that would do nothing is a mistake."""
    told = f"park_after_seconds={after} has no effect without a store"
    with pytest.raises(ConfigurationError, match=told):
        parking_settings(None, after)
    store = InMemoryStore(ManualClock())
    assert parking_settings(store, 60) == ParkingSettings(store, 60)


@pytest.mark.parametrize(
    ("remaining", "decision"),
    [(900, HandOver(900)), (901, Requeue()), (3600, Requeue()), (3601, Park())],
)
def test_what_remains_decides(remaining: int, decision: object) -> None:
    """More than park_after is parked, not as much as it; hand-over goes before."""
    ms = remaining * 1000
    assert decide(ms, 0, hop_seconds=900, park_after_seconds=3600) == decision
    near = decide(min(ms, 900_000), 0, hop_seconds=900, park_after_seconds=0)
    assert isinstance(near, HandOver)


def test_a_parked_message_arrives_as_a_relayed_one(site: Site) -> None:
    """Same id, attributes, group, trace header and due time, whichever way it came."""

    def send(message_id: str) -> None:
        site.new_sender().send(
            "orders",
            "grüße",
            delay=5000.5,
            attributes={"text": "x", "raw": b"\x00\xff"},
            message_id=message_id,
            message_group_id="tenant-7",
            trace_header="Root=1-a;Lineage=b:1",
        )

    send("parked")
    site.clock.advance(900)
    (outcome,) = site.poll()
    assert (outcome.status, outcome.due_ms) == (Status.PARKED, site.clock.true_ms + 4_100_500)
    assert site.received(DELAY) == []
    send("relayed")
    hopping = site.new_relay()
    for _ in range(5):
        site.clock.advance(900)
        site.poll(hopping)
    outbox = SqsOutbox(site.queues, Endpoint.parse("orders"))
    assert failures(outbox.send(site.store.pending(10))) == [None]
    outbox.close()
    site.clock.advance(600)
    copies = {c.attributes[MESSAGE_ID]["StringValue"]: c for c in site.received()}
    assert set(copies) == {"parked", "relayed"}
    for copy in copies.values():
        copy.attributes.pop(MESSAGE_ID)
        assert DUE_AT not in copy.attributes
    one, other = copies["parked"], copies["relayed"]
    assert int(other.attributes.pop(WAS_DUE_AT)["StringValue"]) == 900_000 + int(
        one.attributes.pop(WAS_DUE_AT)["StringValue"]
    )
    assert (one.body, one.attributes) == (other.body, other.attributes)
    assert one.group_id == other.group_id
    for header in (one.trace_header, other.trace_header):
        assert re.fullmatch(r"Root=1-[0-9a-f]{8}-[0-9a-f]{24}", header or "")  # a trace of its own


def test_a_batch_is_parked_with_one_call_and_deleted_after(site: Site) -> None:
    """Ten NServiceBus messages: no send, one delete."""
    for n in range(10):
        site.put(DAY, f"m-{n}")
    site.clock.advance(900)
    site.queues.calls.clear()
    assert site.statuses() == [Status.PARKED] * 10
    assert site.queues.calls == ["receive", "delete"]
    assert {m.due_ms for m in site.store.pending(20)} == {site.clock.true_ms - 900_000 + DAY * 1000}


def test_parked_twice_is_one_message(site: Site) -> None:
    """The consumer died between storing and deleting; the next one finds the message stored."""
    site.put(DAY)
    site.clock.advance(900)
    copies = site.received(DELAY)
    assert site.relay.process(copies, delete=False)[0].status is Status.PARKED
    now_ms = site.clock.true_ms
    Schedule(site.store, endpoint="orders").reschedule("m-1", now_ms + 7_200_000, now_ms=now_ms)
    site.clock.advance(181)
    assert site.statuses(site.new_relay(site.parking)) == [Status.PARKED]
    assert site.queues.next_visible_ms() is None
    assert [m.due_ms for m in site.store.pending(10)] == [site.clock.true_ms - 181_000 + 7_200_000]


def test_while_the_store_is_away_messages_hop_on(site: Site) -> None:
    """A hop loses nothing; they are parked when the store is back. What is near may have been cancelled: it
    stays until that can be read."""
    site.put(DAY, "far")
    site.put(1000, "near")
    site.put(1000, "gone")
    site.store.amend([Amendment(message_id="gone", at_ms=site.clock.true_ms)])
    site.store.down = {"store", "amendments"}
    site.clock.advance(900)
    assert site.fates() == {"far": Status.REQUEUED, "near": Status.FAILED, "gone": Status.FAILED}
    site.store.down = set()
    site.clock.advance(900)
    assert site.fates() == {
        "far": Status.PARKED,
        "near": Status.HANDED_OVER,
        "gone": Status.CANCELLED,
    }


def test_one_amendment_that_nobody_can_read_holds_up_its_own_message_only(site: Site) -> None:
    """Malformed, or of another version: those received with it are handed over."""
    for name in ("mangled", "beside"):
        site.put(1000, name)
    ask = site.store.amendments

    def amendments(message_ids: Sequence[str]) -> Any:
        if "mangled" in message_ids:
            raise StoreError("not an amendment of sqsdelay")
        return ask(message_ids)

    site.store.amendments = amendments
    site.clock.advance(900)
    assert site.fates() == {"mangled": Status.FAILED, "beside": Status.HANDED_OVER}


def test_what_may_have_been_cancelled_while_it_was_parked_is_taken_back(site: Site) -> None:
    """The amendment was left meanwhile, and cannot be read just then: the copy stays, and is cancelled."""
    site.put(DAY, "gone")
    keep = site.store.store

    def meanwhile(messages: Sequence[StoredMessage], **given: Any) -> Any:
        site.store.amend([Amendment(message_id="gone", at_ms=site.clock.true_ms)])
        site.store.down, site.store.failures = {"amendments"}, 1
        return keep(messages, **given)

    site.store.store = meanwhile
    site.clock.advance(900)
    for status in (Status.FAILED, Status.CANCELLED):
        assert site.statuses() == [status]
        assert site.store.pending(9) == []
        site.clock.advance(300)


@pytest.mark.parametrize("answer", ["lost", "of a second attempt"])
def test_nothing_is_lost_with_the_answer_to_what_is_taken_back(site: Site, answer: str) -> None:
    """It may be out of the store: its copy stays, and is parked anew."""
    site.put(DAY, "kept")
    keep, cancel = site.store.store, site.store.cancel

    def meanwhile(messages: Sequence[StoredMessage], **given: Any) -> Any:
        site.store.down, site.store.failures = {"amendments"}, 1
        return keep(messages, **given)

    def unanswered(message_ids: Sequence[str]) -> Any:
        cancel(message_ids)
        if answer == "lost":
            raise StoreUnavailable("no answer")
        return cancel(message_ids)

    site.store.store, site.store.cancel = meanwhile, unanswered
    site.clock.advance(900)
    assert site.statuses() == [Status.FAILED]
    site.store.store = keep
    site.clock.advance(300)
    assert site.statuses() == [Status.PARKED]
    assert [m.message_id for m in site.store.pending(9)] == ["kept"]


def test_a_message_too_large_for_the_store_hops_on_alone(site: Site) -> None:
    """Its neighbours are parked."""
    site.store.largest = 10
    site.put(DAY, "large", "x" * 11)
    site.put(DAY, "small")
    site.clock.advance(900)
    assert site.fates() == {"large": Status.REQUEUED, "small": Status.PARKED}
    assert [m.message_id for m in site.store.pending(10)] == ["small"]


@pytest.mark.parametrize("seconds", [1000, 2000, DAY])
def test_an_amendment_cancels_at_the_next_hop(site: Site, seconds: int) -> None:
    """At a hand-over, at a hop and at parking alike; others are not touched, one question a batch."""
    site.put(seconds, "gone")
    site.put(seconds, "stays")
    site.store.amend([Amendment(message_id="gone", at_ms=site.clock.true_ms)])
    site.clock.advance(900)
    by_id = {o.copy.message_id: o for o in site.poll()}
    assert by_id["gone"].status is Status.CANCELLED
    assert by_id["stays"].status is not Status.CANCELLED
    site.clock.advance(3 * 900)
    site.poll()
    site.clock.advance(900)
    assert "gone" not in {c.attributes[MESSAGE_ID]["StringValue"] for c in site.received()}
    assert [m.message_id for m in site.store.pending(10)] == (["stays"] if seconds == DAY else [])


def test_an_amendment_moves_a_message_both_ways(site: Site) -> None:
    """Earlier: handed over for its new due time. Later: hops on with it, or is parked."""
    start = site.clock.true_ms
    site.put(3000, "sooner")
    site.put(1000, "later")
    site.put(1000, "parked")
    moved = {"sooner": 1200, "later": 2500, "parked": DAY}
    site.store.amend(
        [Amendment(message_id=i, at_ms=start, due_ms=start + s * 1000) for i, s in moved.items()]
    )
    site.clock.advance(900)
    by_id = {o.copy.message_id: o for o in site.poll()}
    assert {i: o.status for i, o in by_id.items()} == {
        "sooner": Status.HANDED_OVER,
        "later": Status.REQUEUED,
        "parked": Status.PARKED,
    }
    assert by_id["sooner"].delay_seconds == 300
    assert [m.due_ms for m in site.store.pending(9)] == [start + DAY * 1000]
    site.clock.advance(900)
    (outcome,) = site.poll()
    assert (outcome.status, outcome.delay_seconds) == (Status.HANDED_OVER, 700)


def test_an_amendment_left_while_a_message_is_being_parked_counts(site: Site) -> None:
    """The canceller looked into the store just before the message came there."""
    keep = site.store.store

    def late(messages: Sequence[StoredMessage], **given: Any) -> Any:
        now_ms = site.clock.true_ms
        site.store.amend([Amendment(message_id="gone", at_ms=now_ms)])
        site.store.amend([Amendment(message_id="moved", at_ms=now_ms, due_ms=now_ms + 7)])
        return keep(messages, **given)

    site.store.store = late
    site.put(DAY, "gone")
    site.put(DAY, "moved")
    site.clock.advance(900)
    assert site.fates() == {"gone": Status.CANCELLED, "moved": Status.PARKED}
    moved = ("moved", site.clock.true_ms + 7)
    assert [(m.message_id, m.due_ms) for m in site.store.pending(9)] == [moved]


def test_the_last_of_two_moves_stands(site: Site) -> None:
    """The second is confirmed by the store while the delay consumer applies the first."""
    first, last = site.clock.true_ms + DAY * 1000, site.clock.true_ms + 2 * DAY * 1000
    confirmed: list[object] = []
    schedule, move = Schedule(site.store, endpoint="orders"), site.store.reschedule

    def moved(message_id: str, due_ms: int) -> Any:
        if due_ms == first and not confirmed:
            confirmed.append(schedule.reschedule("m-1", last, now_ms=site.clock.true_ms))
        return move(message_id, due_ms)

    site.store.reschedule = moved
    site.put(3 * DAY)
    site.store.amend([Amendment(message_id="m-1", at_ms=site.clock.true_ms, due_ms=first)])
    site.clock.advance(900)
    assert (site.statuses(), confirmed) == ([Status.PARKED], [Change.DONE])
    assert [m.due_ms for m in site.store.pending(9)] == [last]


def test_a_queue_without_its_delay_is_not_spun_when_the_store_is_away() -> None:
    """Not parked and not requeued: hidden, until someone mends it."""
    site = Site(hop_seconds=0, park_after=3600)
    site.store.down = {"store", "amendments"}
    site.put(DAY)
    site.clock.advance(1)
    (outcome,) = site.poll()
    assert outcome.status is Status.FAILED
    assert "held a message for 1000 ms instead of 900 s" in (outcome.error or "")


def test_a_message_being_released_is_not_taken_for_parked(site: Site) -> None:
    """The store has had this id and cannot show it: to delete the copy could be to lose it."""
    site.store.store = lambda messages, **_: [False] * len(messages)
    site.put(90_000)
    site.clock.advance(900)
    assert site.statuses() == [Status.REQUEUED]
    with pytest.raises(InvalidMessage, match="was in the store and is being released"):
        site.sender.send("orders", "x", delay=90_000, message_id="m-2")
