"""FIFO destinations: by way of a standard due queue, with the user's group and deduplication ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sqsdelay.core import outgoing
from sqsdelay.core.delay import SystemClock, utc
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.limits import MAX_MESSAGE_BYTES
from sqsdelay.core.message import (
    DEDUPLICATION_ID,
    DELAY_SECONDS,
    DUE_AT,
    ERROR,
    GROUP_ID,
    MESSAGE_ID,
    WAS_DUE_AT,
    Attribute,
    Message,
    OutgoingMessage,
    size_of,
    string,
)
from sqsdelay.core.received_message import DelayedMessage, FifoIds, ReceivedMessage, read_fifo_ids
from sqsdelay.core.stored_message import to_store
from sqsdelay.errors import ConfigurationError, InvalidMessage, MessageTooLarge, QueueUnavailable
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.relaying import DueRelay, Outcome, Relay, RelaySettings, Status
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender, Route
from sqsdelay.sqs.outbox import SqsOutbox, failures
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock
from tests.messages import a_copy

FIFO, DUE, DELAY, ERRORS = "orders.fifo", "orders-due", "orders-delay.fifo", "orders-delay-error"
ENDPOINT = Endpoint.parse(FIFO)


@pytest.fixture
def queues(clock: ManualClock) -> InMemoryQueues:
    queues = InMemoryQueues(clock)
    queues.create_endpoint(FIFO)
    return queues


def received(queues: InMemoryQueues, queue: str = FIFO) -> list[ReceivedMessage]:
    return queues.receive_batch(queue, wait_seconds=0)


def hop(queues: InMemoryQueues, settings: RelaySettings | None = None) -> list[Outcome]:
    return Relay(queues, ENDPOINT, settings).process(received(queues, DELAY))


def deliver(queues: InMemoryQueues) -> list[Outcome]:
    return DueRelay(queues, ENDPOINT).process(received(queues, DUE))


def test_a_fifo_endpoint_has_a_due_queue() -> None:
    """Four queues, in the account and region of the destination; names stay within 80 characters."""
    endpoint = Endpoint.parse("arn:aws:sqs:eu-west-1:123456789012:orders.fifo")
    assert endpoint.fifo
    assert [q.name for q in endpoint.queues] == [FIFO, DUE, DELAY, ERRORS]
    assert {(q.account_id, q.region) for q in endpoint.queues} == {("123456789012", "eu-west-1")}
    assert endpoint.hand_over_queue == endpoint.due_queue
    assert Endpoint.parse(endpoint.address) == endpoint
    longest = Endpoint.parse("q" * 68 + ".fifo")
    assert max(len(q.name) for q in longest.queues) == 80
    assert [q.name for q in Endpoint.parse("orders").queues] == ["orders", DELAY, ERRORS]


@pytest.mark.parametrize("delay", [0, None, "past"])
def test_at_once_is_a_plain_send(queues: InMemoryQueues, delay: Any) -> None:
    """Straight to the FIFO queue, with its ids and nothing of ours."""
    due_at = utc(queues.clock.true_ms - 5000) if delay == "past" else None
    result = QueueSender(queues).send(
        FIFO,
        "x",
        delay=None if due_at else delay,
        due_at=due_at,
        message_group_id="g",
        message_deduplication_id="d",
    )
    assert result.route is Route.DIRECT
    (copy,) = received(queues)
    assert (copy.group_id, copy.deduplication_id, copy.attributes) == ("g", "d", {})


def test_up_to_900_seconds_waits_on_the_due_queue(queues: InMemoryQueues) -> None:
    """A message timer there; then the FIFO queue gets it with the user's ids."""
    result = QueueSender(queues).send(
        FIFO,
        "x",
        delay=899.5,
        attributes={"a": "b"},
        message_id="m",
        message_group_id="g",
        message_deduplication_id="d",
        trace_header="Root=1-a",
    )
    assert (result.route, result.message_id) == (Route.DUE_QUEUE, "m")
    queues.clock.advance(899.9)
    assert deliver(queues) == []
    queues.clock.advance(0.1)
    (outcome,) = deliver(queues)
    assert (outcome.status, outcome.late_ms) == (Status.DELIVERED, 500)
    (copy,) = received(queues)
    assert (copy.group_id, copy.deduplication_id) == ("g", "d")
    assert re.fullmatch(
        r"Root=1-[0-9a-f]{8}-[0-9a-f]{24}", copy.trace_header or ""
    )  # a trace of its own
    assert copy.attributes == {
        "a": string("b"),
        MESSAGE_ID: string("m"),
        WAS_DUE_AT: string(str(queues.clock.true_ms - 500)),
    }


def test_a_delay_is_not_shortened_by_what_is_learned_of_the_time() -> None:
    """A ``Date`` tells the broker's time up to a second late; a better answer makes nothing early."""
    clock = ManualClock(1_800_000_000_999)
    queues = InMemoryQueues(clock)
    queues.create_endpoint(FIFO)

    def messages() -> Iterator[Message]:
        yield Message("x", delay=9.5, message_group_id="g")
        queues.broker_clock.observe(clock.true_ms)

    QueueSender(queues).send_many(FIFO, messages())
    clock.advance(9.499)
    assert received(queues, DUE) == []
    clock.advance(0.501)
    assert len(received(queues, DUE)) == 1


def test_above_900_seconds_hops_and_then_waits_on_the_due_queue(queues: InMemoryQueues) -> None:
    """Never early, its ids carried through every hop; the deduplication id is the message's own."""
    sent = QueueSender(queues).send(FIFO, "x", delay=1925, message_group_id="g" * 128)
    for _ in range(2):
        queues.clock.advance(900)
        (outcome,) = hop(queues)
    assert (outcome.status, outcome.delay_seconds) == (Status.HANDED_OVER, 125)
    queues.clock.advance(124.9)
    assert deliver(queues) == []
    queues.clock.advance(0.1)
    assert [o.status for o in deliver(queues)] == [Status.DELIVERED]
    (copy,) = received(queues)
    assert (copy.group_id, copy.deduplication_id) == ("g" * 128, sent.message_id)
    assert set(copy.attributes) == {MESSAGE_ID, WAS_DUE_AT}


def test_through_the_store_it_arrives_the_same(queues: InMemoryQueues) -> None:
    """Parked by the consumer, parked by the sender, stored by hand: ids and all."""
    store = InMemoryStore(queues.clock)
    ids = {"message_group_id": "g", "message_deduplication_id": "d"}
    QueueSender(queues).send(FIFO, "1", delay=90_000, message_id="by-consumer", **ids)  # type: ignore[arg-type]
    parking_sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(store)))
    parking_sender.send(FIFO, "2", delay=90_000, message_id="by-sender", **ids)  # type: ignore[arg-type]
    by_hand = Message("3", delay=90_000, message_id="by-hand", **ids)  # type: ignore[arg-type]
    store.store([to_store(by_hand, FIFO, now_ms=queues.clock.true_ms)])
    queues.clock.advance(900)
    assert [o.status for o in hop(queues, RelaySettings(parking=ParkingSettings(store)))] == [
        Status.PARKED
    ]
    queues.clock.advance(89_101)
    outbox = SqsOutbox(queues, ENDPOINT)
    outbox.check()
    stored = store.pending(9)
    assert len(stored) == 3
    assert failures(outbox.send(stored)) == [None] * 3
    outbox.close()
    arrived = received(queues, DUE)
    assert len(arrived) == 3
    for copy in arrived:
        entry = outgoing.delivered(copy, FifoIds("g", "d"))
        assert read_fifo_ids(copy) == FifoIds("g", "d")
        assert set(entry.attributes) == {MESSAGE_ID, WAS_DUE_AT}
    assert sorted(copy.message_id for copy in arrived) == ["by-consumer", "by-hand", "by-sender"]


def test_a_stored_message_without_a_group_is_refused(queues: InMemoryQueues) -> None:
    """When it is stored, and again when it is released."""
    with pytest.raises(InvalidMessage, match="message_group_id is missing"):
        to_store(Message("x"), FIFO, now_ms=queues.clock.true_ms)
    store = InMemoryStore(queues.clock)
    store.store([to_store(Message("x"), "orders", now_ms=queues.clock.true_ms)])
    outbox = SqsOutbox(queues, ENDPOINT)
    (failure,) = outbox.send([replace(store.pending(1)[0], destination=FIFO)])
    outbox.close()
    assert isinstance(failure, Failure)
    assert "has no group_id" in str(failure.error)
    assert not failure.transient


def test_what_is_received_together_goes_in_order_of_due_times(queues: InMemoryQueues) -> None:
    """Within one batch the order of a group is that of the due times, to the millisecond."""
    start = queues.clock.true_ms
    due = {"c": 10_300, "a": 10_100, "d": 10_900, "b": 10_200}
    for body, in_ms in due.items():
        QueueSender(queues).send(FIFO, body, due_at=utc(start + in_ms), message_group_id="g")
    queues.clock.advance(11)
    outcomes = deliver(queues)
    assert sorted(outcome.due_ms or 0 for outcome in outcomes) == [
        start + in_ms for in_ms in sorted(due.values())
    ]
    assert [copy.body for copy in received(queues)] == ["a", "b", "c", "d"]


def put_due(queues: InMemoryQueues, body: str, **more: Attribute) -> None:
    """On the due queue, by somebody else's sender."""
    attributes = {GROUP_ID: string("g"), DEDUPLICATION_ID: string(body), **more}
    queues.send_batch(DUE, [OutgoingMessage(body, attributes, 1)])


def test_what_does_not_say_when_it_was_due_goes_by_when_it_was_sent(queues: InMemoryQueues) -> None:
    """And nobody says how late it is."""
    put_due(queues, "a")
    between = queues.clock.true_ms + 20
    queues.clock.advance(0.04)
    put_due(queues, "c")
    put_due(queues, "b", **{DUE_AT: string(str(between))})
    outcomes = DueRelay(queues, ENDPOINT).process(received(queues, DUE)[::-1])
    assert [copy.body for copy in received(queues)] == ["a", "b", "c"]
    assert {o.copy.body: (o.due_ms, o.late_ms) for o in outcomes} == {
        "a": (None, None),
        "b": (between, 20),
        "c": (None, None),
    }


def test_without_the_brokers_time_a_copy_stays_on_the_due_queue(
    queues: InMemoryQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Received before by a consumer that died; SQS cannot be asked what time it is."""
    put_due(queues, "x", **{DUE_AT: string(str(queues.clock.true_ms))})
    received(queues, DUE)
    queues.clock.advance(200)

    def away(queue: QueueRef) -> None:
        raise QueueUnavailable(f"{queue.name} is away")

    monkeypatch.setattr(queues, "synchronise", away)
    (outcome,) = deliver(queues)
    assert (outcome.status, outcome.copy.body) == (Status.FAILED, "x")
    assert outcome.error == "orders-due is away"


def test_sent_one_after_the_other_with_the_same_delay_keeps_its_order(
    queues: InMemoryQueues,
) -> None:
    """As a FIFO queue would have kept it, while they are received together."""
    sender = QueueSender(queues)
    for n in range(5):
        sender.send(FIFO, f"{n}", delay=10, message_group_id="g")
        queues.clock.advance(0.01)
    queues.clock.advance(10)
    deliver(queues)
    assert [copy.body for copy in received(queues)] == ["0", "1", "2", "3", "4"]


def test_received_apart_within_a_second_they_may_change_places(queues: InMemoryQueues) -> None:
    """The due queue is a standard queue: what another receiver holds is overtaken."""
    start = queues.clock.true_ms
    for body, in_ms in (("first", 10_100), ("second", 10_200)):
        QueueSender(queues).send(FIFO, body, due_at=utc(start + in_ms), message_group_id="g")
    queues.clock.advance(11)
    first, second = received(queues, DUE)
    DueRelay(queues, ENDPOINT).process([second])
    DueRelay(queues, ENDPOINT).process([first])
    assert [copy.body for copy in received(queues)] == ["second", "first"]


def test_what_follows_a_failed_one_does_not_wait_for_it(
    queues: InMemoryQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page says: it comes after later ones of its group."""
    sender = QueueSender(queues, SenderSettings(concurrency=1))
    sender.send_many(FIFO, [Message(b, delay=60, message_group_id="g") for b in ("a", "b", "c")])
    queues.clock.advance(60)
    send_batch, refused = queues.send_batch, list[str]()

    def refuse_once(url: str, entries: Sequence[OutgoingMessage]) -> list[SendReceipt | Failure]:
        failure = Failure("InternalError", QueueUnavailable("no"), transient=True)
        bad = [e for e in entries if e.body == "b" and not refused]
        refused.extend(entry.body for entry in bad)
        sent = iter(send_batch(url, [entry for entry in entries if entry not in bad]))
        return [failure if entry in bad else next(sent) for entry in entries]

    monkeypatch.setattr(queues, "send_batch", refuse_once)
    assert [o.settled for o in deliver(queues)].count(False) == 1
    queues.clock.advance(60)
    deliver(queues)
    arrived = list[str]()
    while copies := received(queues):
        arrived += [copy.body for copy in copies]
        queues.delete_batch(FIFO, copies)
    assert arrived == ["a", "c", "b"]


def test_a_copy_delivered_twice_is_one_message(queues: InMemoryQueues) -> None:
    """The worker died before its delete: the FIFO queue deduplicates."""
    QueueSender(queues).send(FIFO, "x", delay=10, message_group_id="g")
    queues.clock.advance(10)
    DueRelay(queues, ENDPOINT).process(received(queues, DUE), delete=False)
    queues.clock.advance(181)
    assert [o.copy.receive_count for o in deliver(queues)] == [2]
    assert len(received(queues)) == 1


@pytest.mark.parametrize("queue", [DUE, DELAY])
def test_a_message_without_fifo_ids_goes_to_the_error_queue(
    queues: InMemoryQueues, queue: str
) -> None:
    """It was meant for another queue; it blocks nobody and is not lost."""
    attributes = {DELAY_SECONDS: string("1000"), GROUP_ID: string("g")}
    queues.send_batch(queue, [OutgoingMessage("x", attributes, 1, None, "m", "m")])
    queues.clock.advance(900)
    outcomes = hop(queues) if queue == DELAY else deliver(queues)
    assert [o.status for o in outcomes] == [Status.REJECTED]
    (rejected,) = received(queues, ERRORS)
    reason = json.loads(rejected.attributes[ERROR]["StringValue"])["reason"]
    assert reason.startswith("sqsdelay.MessageDeduplicationId is None: the message was not sent")


def test_a_copy_that_cannot_be_read_whole_is_rejected(queues: InMemoryQueues) -> None:
    """It goes to the error queue rather than to the FIFO queue without what could not be read."""
    QueueSender(queues).send(FIFO, "x", delay=10, message_group_id="g")
    queues.clock.advance(10)
    (copy,) = received(queues, DUE)
    spoiled = replace(copy, unreadable="message attribute 'a' has no value of its type")
    (outcome,) = DueRelay(queues, ENDPOINT).process([spoiled])
    assert (outcome.status, outcome.error) == (Status.REJECTED, spoiled.unreadable)
    assert received(queues) == []


def test_a_fifo_message_in_a_standard_endpoints_delay_queue_is_rejected(clock: ManualClock) -> None:
    """The second line of defence against endpoints of one name."""
    queues = InMemoryQueues(clock)
    queues.create_endpoint("orders")
    attributes = {DELAY_SECONDS: string("1000"), DEDUPLICATION_ID: string("d")}
    queues.send_batch(DELAY, [OutgoingMessage("x", attributes, 1, None, "m", "m")])
    clock.advance(900)
    (outcome,) = Relay(queues, Endpoint.parse("orders")).process(received(queues, DELAY))
    assert outcome.error == "the message was sent for the FIFO queue orders.fifo"


def test_a_missing_fifo_queue_is_waited_for(queues: InMemoryQueues) -> None:
    """The copy stays on the due queue, hidden with backoff."""
    QueueSender(queues).send(FIFO, "x", delay=10, message_group_id="g")
    queues.delete_queue(FIFO)
    queues.clock.advance(10)
    assert [o.status for o in deliver(queues)] == [Status.FAILED]
    queues.create_queue(FIFO)
    queues.clock.advance(5)
    assert [o.status for o in deliver(queues)] == [Status.DELIVERED]


def test_endpoints_that_would_share_a_delay_queue_are_refused(queues: InMemoryQueues) -> None:
    """orders.fifo is there, then orders appears: delayed messages go to neither by mistake."""
    QueueSender(queues).send(FIFO, "x", delay=5000, message_group_id="g")
    queues.create_queue("orders")
    for endpoint in ("orders", FIFO):
        words = r"would share the delay queue orders-delay.fifo with orders"
        with pytest.raises(ConfigurationError, match=words):
            QueueSender(queues).send(endpoint, "x", delay=5000, message_group_id="g")
    assert QueueSender(queues).send("orders", "x", delay=900).route is Route.DIRECT
    with pytest.raises(ConfigurationError, match="would share"):
        QueueSender(queues).send(FIFO, "x", delay=900, message_group_id="g")


def test_a_fifo_queue_that_is_no_endpoint_harms_nobody(clock: ManualClock) -> None:
    """A standard endpoint beside somebody's FIFO queue of the same name goes on working."""
    queues = InMemoryQueues(clock)
    queues.create_endpoint("orders")
    queues.create_queue("orders.fifo")
    assert QueueSender(queues).send("orders", "x", delay=5000).route is Route.DELAY_QUEUE


def test_a_due_queue_is_no_endpoint(queues: InMemoryQueues) -> None:
    """What were sent there would be taken for the FIFO endpoint's; other names may end so."""
    queues.create_queue("orders-due-delay.fifo")
    with pytest.raises(ConfigurationError, match=r"orders-due is the due queue of .*orders.fifo"):
        QueueSender(queues).send(DUE, "x", delay=5000)
    queues.create_endpoint("payments-due")
    assert QueueSender(queues).send("payments-due", "x", delay=5000).route is Route.DELAY_QUEUE


@pytest.mark.parametrize("owner", ["orders", FIFO])
def test_a_parking_queue_is_no_endpoint(queues: InMemoryQueues, owner: str) -> None:
    """Its dispatcher function would take what arrives there for copies to park."""
    queues.create_endpoint(owner)
    queues.create_queue("orders-parking")
    queues.create_queue("orders-parking-delay.fifo")
    told = f"orders-parking is the parking queue of the endpoint {re.escape(owner)};"
    with pytest.raises(ConfigurationError, match=told):
        QueueSender(queues).send("orders-parking", "x", delay=5000)
    queues.create_endpoint("car-parking")
    assert QueueSender(queues).send("car-parking", "x", delay=5000).route is Route.DELAY_QUEUE


def test_the_largest_message_is_what_the_due_queue_takes(queues: InMemoryQueues) -> None:
    """A delay queue's copy may leave the id out, and is smaller then."""
    message_id = "m" * 128
    ids = {GROUP_ID: string("g"), DEDUPLICATION_ID: string("d")}
    there = {MESSAGE_ID: string(message_id), DUE_AT: string("1" * 13), **ids}
    room = MAX_MESSAGE_BYTES - size_of("", there)

    def send(size: int) -> Route | None:
        return QueueSender(queues).send(
            FIFO, "x" * size, delay=5000, message_id=message_id, message_group_id="g",
            message_deduplication_id="d",
        ).route  # fmt: skip

    assert send(room) is Route.DELAY_QUEUE
    with pytest.raises(MessageTooLarge):
        send(room + 1)


def test_who_may_not_ask_for_the_twin_sends_all_the_same() -> None:
    """A policy that names the endpoint's own queues is no reason to send nothing."""

    class Denied(InMemoryQueues):
        def url(self, queue: QueueRef) -> str:
            if queue.name in (DUE, FIFO):
                raise QueueUnavailable("access denied")
            return super().url(queue)

    queues = Denied(ManualClock(), local=SystemClock())
    queues.create_endpoint("orders")
    assert QueueSender(queues).send("orders", "x", delay=5000).route is Route.DELAY_QUEUE


def test_what_the_ids_were_is_shown_to_forty_characters() -> None:
    """Or that there were none, and how that may have come about."""
    (copy,) = [a_copy()]
    reason = "the message was not sent for a FIFO queue (was it sent for a standard endpoint of "
    assert getattr(read_fifo_ids(copy), "reason", None) == (
        f"sqsdelay.MessageGroupId is None: {reason}the same name?)"
    )
    spaced = replace(copy, attributes={GROUP_ID: string("a " * 21)})
    assert getattr(read_fifo_ids(spaced), "reason", None) == (
        f"sqsdelay.MessageGroupId is {'a ' * 20!r}: {reason}the same name?)"
    )


def test_the_last_leg_keeps_trace_and_kind() -> None:
    """To the due queue of a FIFO endpoint with the ids in attributes, else as any message."""
    ids = {GROUP_ID: string("g"), DEDUPLICATION_ID: string("d")}
    copy = a_copy(ids, trace_header="Root=1;Lineage=1:a")
    message = DelayedMessage("m", 1_800_000_000_000)
    on_due_queue = outgoing.handed_over(copy, message, ENDPOINT, delay_seconds=5)
    assert (on_due_queue.trace_header, on_due_queue.group_id) == ("Root=1", None)
    assert ids.items() <= on_due_queue.attributes.items()
    standard = outgoing.handed_over(copy, message, Endpoint.parse("orders"), delay_seconds=5)
    assert standard.group_id == "g"
    assert re.fullmatch(r"Root=1-[0-9a-f]{8}-[0-9a-f]{24}", standard.trace_header or "")
    assert not ids.keys() & standard.attributes.keys()
