"""Parking: what is far away goes into the store, once, and comes back as a hand-over would send it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from sqsdelay.core.delay import HandOver, Park, Requeue, decide
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import (
    DELAY_SECONDS,
    DUE_AT,
    MESSAGE_ID,
    WAS_DUE_AT,
    OutgoingMessage,
    string,
)
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import (
    ConfigurationError,
    InvalidMessage,
    StoreError,
    StoreUnavailable,
)
from sqsdelay.parking.parking import (
    Change,
    Parking,
    ParkingSettings,
    Schedule,
    parking_settings,
)
from sqsdelay.relaying.mover import Outcome, RelaySettings, Status
from sqsdelay.relaying.relay import Relay
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox, failures
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock
from tests.faulty import FaultyStore

DELAY = "orders-delay.fifo"
DAY = 86_400


@pytest.fixture
def store(clock: ManualClock) -> FaultyStore:
    return FaultyStore(clock)


@pytest.fixture
def relay(queues: InMemoryQueues, store: FaultyStore) -> Relay:
    return Relay(
        queues, Endpoint.parse("orders"), RelaySettings(parking=ParkingSettings(store, 3600))
    )


def poll(queues: InMemoryQueues, relay: Relay) -> list[Outcome]:
    return relay.process(queues.receive_batch(DELAY, wait_seconds=0))


def test_a_store_that_refuses_a_late_cancellation_stops_nothing(
    queues: InMemoryQueues,
    store: FaultyStore,
    relay: Relay,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Left while the message is parked, for an id by which an S3 store without look-up finds nothing."""
    keep = store.store

    def cancelled_meanwhile(messages: Sequence[StoredMessage], **given: Any) -> list[bool]:
        done = keep(messages, **given)
        store.amend([Amendment(message_id="order-7", at_ms=clock.true_ms)])
        return done

    def refuse(message_ids: Sequence[str]) -> list[bool]:
        raise ConfigurationError(f"{message_ids[0]} does not tell where it lies")

    monkeypatch.setattr(store, "store", cancelled_meanwhile)
    monkeypatch.setattr(store, "cancel", refuse)
    QueueSender(queues).send("orders", "far", delay=10 * DAY, message_id="order-7")
    clock.advance(900)
    assert [outcome.status for outcome in poll(queues, relay)] == [Status.PARKED]
    told = "amendment of parked order-7 not applied: order-7 does not tell where it lies"
    assert caplog.messages == [told]


def test_an_id_used_again_for_another_message_is_refused_by_the_sender(
    queues: InMemoryQueues, store: FaultyStore
) -> None:
    """The store keeps one message an id: reporting the second as sent would lose it."""
    sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(store, 3600)))
    sender.send("orders", "first", delay=10 * DAY, message_id="customer-7")
    sender.send("orders", "first", delay=10 * DAY, message_id="customer-7")
    told = "with a different body, attributes or message group; use a different id for each message"
    with pytest.raises(InvalidMessage, match=f"'customer-7' is in the store {told}"):
        sender.send("orders", "second", delay=2 * DAY, message_id="customer-7")
    assert [message.body for message in store.pending(10)] == [b"first"]


@pytest.mark.parametrize(
    ("body", "days", "reason"),
    [
        ("second", 2, "conflict: message_id 'customer-7' is in the store with a different body"),
        ("first", 3, "conflict: message_id 'customer-7' is in the store and due at 2027-01-"),
        ("first", 2, "conflict: message_id 'customer-7' is in the store and due at 2027-01-"),
    ],
)
def test_an_id_used_again_for_another_message_is_a_conflict(
    queues: InMemoryQueues,
    store: FaultyStore,
    relay: Relay,
    clock: ManualClock,
    body: str,
    days: int,
    reason: str,
) -> None:
    """The consumer parks the first; the second is not counted as parked, nor lost: it says why."""
    QueueSender(queues).send("orders", "first", delay=2 * DAY, message_id="customer-7")
    clock.advance(900)
    assert [outcome.status for outcome in poll(queues, relay)] == [Status.PARKED]
    QueueSender(queues).send("orders", body, delay=days * DAY, message_id="customer-7")
    clock.advance(900)
    (outcome,) = poll(queues, relay)
    assert (outcome.status, (outcome.error or "").startswith(reason)) == (Status.REJECTED, True)
    assert len(queues.receive_batch("orders-delay-error", wait_seconds=0)) == 1
    assert [message.body for message in store.pending(10)] == [b"first"]


def test_amendments_that_cannot_be_read_are_told_apart_from_none(
    store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what was not looked at, and why."""
    store.down = {"amendments"}
    assert Parking(store, after_seconds=3600).amendments(["a", "b"]) == {"a": None, "b": None}
    told = "amendments of 2 messages not read: amendments: the store is down"
    assert caplog.messages == [told]


@pytest.mark.parametrize("after", [0, -5, 60])
def test_park_after_without_a_store_is_refused(after: int) -> None:
    """A setting that would do nothing is a mistake."""
    with pytest.raises(
        ConfigurationError, match=f"park_after_seconds={after} has no effect without a store"
    ):
        parking_settings(None, after)
    store = InMemoryStore(ManualClock())
    assert parking_settings(store, 60) == ParkingSettings(store, 60)


@pytest.mark.parametrize(
    ("remaining", "decision"),
    [
        (900, HandOver(900)),
        (901, Requeue(901)),
        (3600, Requeue(3600)),
        (3601, Park(3601)),
    ],
)
def test_what_remains_decides(remaining: int, decision: object) -> None:
    """More than park_after is parked, not as much as it; hand-over goes before."""
    ms = remaining * 1000
    assert decide(ms, 0, hop_seconds=900, park_after_seconds=3600) == decision
    near = decide(min(ms, 900_000), 0, hop_seconds=900, park_after_seconds=0)
    assert isinstance(near, HandOver)


def test_a_parked_message_arrives_as_a_relayed_one(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay
) -> None:
    """Same id, attributes, group, trace header and due time, whichever way it came."""

    def send(message_id: str) -> None:
        QueueSender(queues).send(
            "orders",
            "grüße",
            delay=5000.5,
            attributes={"text": "x", "raw": b"\x00\xff"},
            message_id=message_id,
            message_group_id="tenant-7",
            trace_header="Root=1-a;Lineage=b:1",
        )

    send("parked")
    clock.advance(900)
    (outcome,) = poll(queues, relay)
    assert (outcome.status, outcome.due_ms) == (Status.PARKED, clock.true_ms + 4_100_500)
    assert queues.receive_batch(DELAY, wait_seconds=0) == []
    send("relayed")
    hopping = Relay(queues, Endpoint.parse("orders"))
    for _ in range(5):
        clock.advance(900)
        poll(queues, hopping)
    outbox = SqsOutbox(queues, Endpoint.parse("orders"))
    assert failures(outbox.send(store.pending(10))) == [None]
    outbox.close()
    clock.advance(600)
    copies = {c.attributes[MESSAGE_ID]["StringValue"]: c for c in received(queues)}
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


def received(queues: InMemoryQueues) -> list[ReceivedMessage]:
    return queues.receive_batch("orders", wait_seconds=0)


def put(queues: InMemoryQueues, seconds: int, message_id: str = "m-1", body: str = "x") -> None:
    attributes = {DELAY_SECONDS: string(str(seconds))}
    entry = OutgoingMessage(body, attributes, len(body), None, message_id, message_id)
    queues.send_batch(DELAY, [entry])


def test_a_batch_is_parked_with_one_call_and_deleted_after(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay
) -> None:
    """Ten NServiceBus messages: no send, one delete."""
    for n in range(10):
        put(queues, DAY, f"m-{n}")
    clock.advance(900)
    queues.calls.clear()
    assert [o.status for o in poll(queues, relay)] == [Status.PARKED] * 10
    assert queues.calls == ["receive", "delete"]
    assert {m.due_ms for m in store.pending(20)} == {clock.true_ms - 900_000 + DAY * 1000}


def test_parked_twice_is_one_message(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay
) -> None:
    """The consumer died between storing and deleting; the next one finds the message stored."""
    put(queues, DAY)
    clock.advance(900)
    copies = queues.receive_batch(DELAY, wait_seconds=0)
    assert relay.process(copies, delete=False)[0].status is Status.PARKED
    Schedule(store).reschedule("m-1", clock.true_ms + 7_200_000, now_ms=clock.true_ms)
    clock.advance(181)
    other = Relay(
        queues, Endpoint.parse("orders"), RelaySettings(parking=ParkingSettings(store, 3600))
    )
    assert poll(queues, other)[0].status is Status.PARKED
    assert queues.next_visible_ms() is None
    assert [m.due_ms for m in store.pending(10)] == [clock.true_ms - 181_000 + 7_200_000]


def test_while_the_store_is_away_messages_hop_on(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay
) -> None:
    """A hop loses nothing; they are parked when the store is back. What is near may have been cancelled: it
    stays until that can be read."""
    put(queues, DAY, "far")
    put(queues, 1000, "near")
    put(queues, 1000, "gone")
    store.amend([Amendment(message_id="gone", at_ms=clock.true_ms)])
    store.down = {"store", "amendments"}
    clock.advance(900)
    statuses = {o.copy.message_id: o.status for o in poll(queues, relay)}
    assert statuses == {"far": Status.REQUEUED, "near": Status.FAILED, "gone": Status.FAILED}
    store.down = set()
    clock.advance(900)
    statuses = {o.copy.message_id: o.status for o in poll(queues, relay)}
    assert statuses == {
        "far": Status.PARKED,
        "near": Status.HANDED_OVER,
        "gone": Status.CANCELLED,
    }


def test_one_amendment_that_nobody_can_read_holds_up_its_own_message_only(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay
) -> None:
    """Malformed, or of another version: those received with it are handed over."""
    for name in ("mangled", "beside"):
        put(queues, 1000, name)
    ask = store.amendments

    def amendments(message_ids: Sequence[str]) -> dict[str, Amendment]:
        if "mangled" in message_ids:
            raise StoreError("not an amendment of sqsdelay")
        return ask(message_ids)

    store.amendments = amendments  # type: ignore[method-assign]
    clock.advance(900)
    statuses = {o.copy.message_id: o.status for o in poll(queues, relay)}
    assert statuses == {"mangled": Status.FAILED, "beside": Status.HANDED_OVER}


def test_what_may_have_been_cancelled_while_it_was_parked_is_taken_back(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay
) -> None:
    """The amendment was left meanwhile, and cannot be read just then: the copy stays, and is cancelled."""
    put(queues, DAY, "gone")
    keep = store.store

    def meanwhile(messages: Sequence[StoredMessage], **given: Any) -> list[bool]:
        store.amend([Amendment(message_id="gone", at_ms=clock.true_ms)])
        store.down, store.failures = {"amendments"}, 1
        return keep(messages, **given)

    store.store = meanwhile  # type: ignore[method-assign]
    clock.advance(900)
    for status in (Status.FAILED, Status.CANCELLED):
        assert [o.status for o in poll(queues, relay)] == [status]
        assert store.pending(9) == []
        clock.advance(300)


@pytest.mark.parametrize("answer", ["lost", "of a second attempt"])
def test_nothing_is_lost_with_the_answer_to_what_is_taken_back(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay, answer: str
) -> None:
    """It may be out of the store: its copy stays, and is parked anew."""
    put(queues, DAY, "kept")
    keep, cancel = store.store, store.cancel

    def meanwhile(messages: Sequence[StoredMessage], **given: Any) -> list[bool]:
        store.down, store.failures = {"amendments"}, 1
        return keep(messages, **given)

    def unanswered(message_ids: Sequence[str]) -> list[bool]:
        cancel(message_ids)
        if answer == "lost":
            raise StoreUnavailable("no answer")
        return cancel(message_ids)

    store.store, store.cancel = meanwhile, unanswered  # type: ignore[method-assign]
    clock.advance(900)
    assert [o.status for o in poll(queues, relay)] == [Status.FAILED]
    store.store = keep  # type: ignore[method-assign]
    clock.advance(300)
    assert [o.status for o in poll(queues, relay)] == [Status.PARKED]
    assert [m.message_id for m in store.pending(9)] == ["kept"]


def test_a_message_too_large_for_the_store_hops_on_alone(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay
) -> None:
    """Its neighbours are parked."""
    store.largest = 10
    put(queues, DAY, "large", "x" * 11)
    put(queues, DAY, "small")
    clock.advance(900)
    statuses = {o.copy.message_id: o.status for o in poll(queues, relay)}
    assert statuses == {"large": Status.REQUEUED, "small": Status.PARKED}
    assert [m.message_id for m in store.pending(10)] == ["small"]


@pytest.mark.parametrize("seconds", [1000, 2000, DAY])
def test_an_amendment_cancels_at_the_next_hop(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay, seconds: int
) -> None:
    """At a hand-over, at a hop and at parking alike; others are not touched, one question a batch."""
    put(queues, seconds, "gone")
    put(queues, seconds, "stays")
    store.amend([Amendment(message_id="gone", at_ms=clock.true_ms)])
    clock.advance(900)
    by_id = {o.copy.message_id: o for o in poll(queues, relay)}
    assert by_id["gone"].status is Status.CANCELLED
    assert by_id["stays"].status is not Status.CANCELLED
    clock.advance(3 * 900)
    poll(queues, relay)
    clock.advance(900)
    assert "gone" not in {c.attributes[MESSAGE_ID]["StringValue"] for c in received(queues)}
    assert [m.message_id for m in store.pending(10)] == (["stays"] if seconds == DAY else [])


def test_an_amendment_moves_a_message_both_ways(
    clock: ManualClock, queues: InMemoryQueues, store: FaultyStore, relay: Relay
) -> None:
    """Earlier: handed over for its new due time. Later: hops on with it, or is parked."""
    start = clock.true_ms
    put(queues, 3000, "sooner")
    put(queues, 1000, "later")
    put(queues, 1000, "parked")
    moved = {"sooner": 1200, "later": 2500, "parked": DAY}
    store.amend(
        [Amendment(message_id=i, at_ms=start, due_ms=start + s * 1000) for i, s in moved.items()]
    )
    clock.advance(900)
    by_id = {o.copy.message_id: o for o in poll(queues, relay)}
    assert {i: o.status for i, o in by_id.items()} == {
        "sooner": Status.HANDED_OVER,
        "later": Status.REQUEUED,
        "parked": Status.PARKED,
    }
    assert by_id["sooner"].delay_seconds == 300
    assert [m.due_ms for m in store.pending(9)] == [start + DAY * 1000]
    clock.advance(900)
    (outcome,) = poll(queues, relay)
    assert (outcome.status, outcome.delay_seconds) == (Status.HANDED_OVER, 700)


def test_an_amendment_left_while_a_message_is_being_parked_counts(
    clock: ManualClock, queues: InMemoryQueues
) -> None:
    """The canceller looked into the store just before the message came there."""

    class Late(InMemoryStore):
        def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> Any:
            now_ms = clock.true_ms
            self.amend([Amendment(message_id="gone", at_ms=now_ms)])
            self.amend([Amendment(message_id="moved", at_ms=now_ms, due_ms=now_ms + 7)])
            return super().store(messages, transaction=transaction)

    store = Late(clock)
    relay = Relay(queues, Endpoint.parse("orders"), RelaySettings(parking=ParkingSettings(store)))
    put(queues, DAY, "gone")
    put(queues, DAY, "moved")
    clock.advance(900)
    statuses = {o.copy.message_id: o.status for o in poll(queues, relay)}
    assert statuses == {"gone": Status.CANCELLED, "moved": Status.PARKED}
    assert [(m.message_id, m.due_ms) for m in store.pending(9)] == [("moved", clock.true_ms + 7)]


def test_the_last_of_two_moves_stands(clock: ManualClock, queues: InMemoryQueues) -> None:
    """The second is confirmed by the store while the delay consumer applies the first."""
    first, last = clock.true_ms + DAY * 1000, clock.true_ms + 2 * DAY * 1000
    confirmed: list[object] = []

    class Moved(InMemoryStore):
        def reschedule(self, message_id: str, due_ms: int) -> bool:
            if due_ms == first and not confirmed:
                confirmed.append(schedule.reschedule("m-1", last, now_ms=clock.true_ms))
            return super().reschedule(message_id, due_ms)

    store = Moved(clock)
    schedule = Schedule(store)
    put(queues, 3 * DAY)
    store.amend([Amendment(message_id="m-1", at_ms=clock.true_ms, due_ms=first)])
    clock.advance(900)
    settings = RelaySettings(parking=ParkingSettings(store))
    (outcome,) = poll(queues, Relay(queues, Endpoint.parse("orders"), settings))
    assert (outcome.status, confirmed) == (Status.PARKED, [Change.DONE])
    assert [m.due_ms for m in store.pending(9)] == [last]


def test_a_queue_without_its_delay_is_not_spun_when_the_store_is_away(
    clock: ManualClock, store: FaultyStore
) -> None:
    """Not parked and not requeued: hidden, until someone mends it."""
    queues = InMemoryQueues(clock)
    queues.create_queue(DELAY, DelaySeconds="0", VisibilityTimeout="180")
    store.down = {"store", "amendments"}
    put(queues, DAY)
    clock.advance(1)
    relay = Relay(queues, Endpoint.parse("orders"), RelaySettings(parking=ParkingSettings(store)))
    (outcome,) = poll(queues, relay)
    assert outcome.status is Status.FAILED
    assert "held a message for 1000 ms instead of 900 s" in (outcome.error or "")


def test_a_negative_park_after_is_refused(queues: InMemoryQueues, store: FaultyStore) -> None:
    """At once, with the range."""
    with pytest.raises(ConfigurationError, match="park_after_seconds=-1; use 0 or more"):
        Relay(queues, Endpoint.parse("orders"), RelaySettings(parking=ParkingSettings(store, -1)))


def test_a_message_being_released_is_not_taken_for_parked(
    queues: InMemoryQueues, store: FaultyStore, relay: Relay
) -> None:
    """The store has had this id and cannot show it: to delete the copy could be to lose it."""

    class Releasing(InMemoryStore):
        def store(
            self, messages: Sequence[StoredMessage], *, transaction: Any = None
        ) -> list[bool]:
            return [False] * len(messages)

    releasing = Releasing(queues.clock)
    put(queues, 90_000)
    queues.clock.advance(900)
    (outcome,) = poll(
        queues,
        Relay(queues, Endpoint.parse("orders"), RelaySettings(parking=ParkingSettings(releasing))),
    )
    assert outcome.status is Status.REQUEUED
    with pytest.raises(InvalidMessage, match="was in the store and is being released"):
        QueueSender(queues, SenderSettings(parking=ParkingSettings(releasing))).send(
            "orders", "x", delay=90_000, message_id="m-2"
        )
