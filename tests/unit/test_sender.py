"""Sending: the route, the limits, the batches, and a result for every message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from sqsdelay import errors
from sqsdelay.core import message as wire
from sqsdelay.core import outgoing
from sqsdelay.core.delay import DATE_RESOLUTION_MS, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message, OutgoingMessage, checked, size_of, string
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage, read_delay
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender, Route, with_header
from sqsdelay.testing import InMemoryLedger, InMemoryQueues, InMemoryStore, ManualClock
from tests.faulty import AWAY, FaultyQueues

DELAY = "orders-delay.fifo"
FULL_DUE = datetime(2036, 12, 1, tzinfo=UTC)
BAD = errors.InvalidMessage


def received(queues: InMemoryQueues, queue: str) -> list[ReceivedMessage]:
    return queues.receive_batch(queue, wait_seconds=0)


@pytest.mark.parametrize("receiver_enabled", [False, True], ids=["receiver off", "receiver on"])
@pytest.mark.parametrize("sender_enabled", [False, True], ids=["sender off", "sender on"])
@pytest.mark.parametrize("delay", [900, 901], ids=["up to 900 s", "above 900 s"])
def test_the_eight_scenarios(delay: int, sender_enabled: bool, receiver_enabled: bool) -> None:
    """Up to 900 s always works; above, both sides must have the feature, else a typed error says so."""
    clock = ManualClock()
    queues = InMemoryQueues(clock)
    queues.create_queue("orders")
    if receiver_enabled:
        queues.create_endpoint("orders")
    sender = QueueSender(queues, SenderSettings(unrestricted=sender_enabled))
    if delay <= 900:
        assert sender.send("orders", "x", delay=delay).route is Route.DIRECT
    elif not sender_enabled:
        told = r"delay of 901.0 s exceeds the 900 s .* unrestricted=False"
        with pytest.raises(errors.DelayTooLong, match=told):
            sender.send("orders", "x", delay=delay)
    elif not receiver_enabled:
        told = r"queue orders-delay.fifo does not exist.*sqsdelay endpoint create orders"
        with pytest.raises(errors.DelayQueueMissing, match=told):
            sender.send("orders", "x", delay=delay)
    else:
        assert sender.send("orders", "x", delay=delay).route is Route.DELAY_QUEUE


def test_a_missing_delay_queue_is_to_be_created_with_the_senders_hop() -> None:
    """With another one the sender would refuse what was created."""
    queues = InMemoryQueues(ManualClock())
    queues.create_queue("orders")
    sender = QueueSender(queues, SenderSettings(hop_seconds=2))
    with pytest.raises(errors.DelayQueueMissing, match=r"sqsdelay endpoint create orders --hop 2$"):
        sender.send("orders", "x", delay=60)


def test_what_is_not_a_message_is_told_as_its_result(queues: InMemoryQueues) -> None:
    """In a trace too; the others are sent."""
    given: list[Any] = [Message("a"), "b", {"body": "c"}]
    sent, text, mapping = QueueSender(queues).send_many("orders", given)
    assert (sent.error, len(received(queues, "orders"))) == (None, 1)
    assert str(text.error) == "a str is not a Message; give Message(body, …)"
    assert isinstance(mapping.error, errors.InvalidMessage)
    traced: object = with_header(given[1], "Root=1")
    assert traced == "b"


def test_up_to_900_seconds_is_plain_sqs(queues: InMemoryQueues) -> None:
    """The message is untouched: a message timer and nothing else."""
    result = QueueSender(queues).send("orders", "x", delay=899.5, attributes={"a": "b"})
    assert (result.route, result.due) == (Route.DIRECT, utc(queues.clock.true_ms + 899_500))
    queues.clock.advance(899.9)
    assert received(queues, "orders") == []
    queues.clock.advance(0.1)
    (copy,) = received(queues, "orders")
    assert copy.attributes == {"a": string("b")}
    assert result.message_id == copy.sqs_message_id


def test_a_given_message_id_travels_on_a_direct_message_too(queues: InMemoryQueues) -> None:
    """Who names an id wants receivers to see it, whatever the delay."""
    assert QueueSender(queues).send("orders", "x", delay=5, message_id="m-1").message_id == "m-1"
    queues.clock.advance(5)
    (copy,) = received(queues, "orders")
    assert copy.attributes == {wire.MESSAGE_ID: string("m-1")}


def test_above_900_seconds_goes_through_the_delay_queue(queues: InMemoryQueues) -> None:
    """The wire format: whole seconds, the id as group and deduplication id, the user's attributes."""
    result = QueueSender(queues).send(
        "orders", "x", delay=timedelta(hours=1), attributes={"a": "b"}, message_group_id="tenant"
    )
    queues.clock.advance(900)
    (copy,) = received(queues, DELAY)
    assert copy.attributes == {
        "a": string("b"),
        wire.DELAY_SECONDS: string("3600"),
        wire.GROUP_ID: string("tenant"),
        wire.MESSAGE_ID: string(result.message_id or ""),
    }
    assert copy.group_id == copy.message_id == result.message_id
    assert re.fullmatch(r"send\.[0-9a-f]{64}", copy.deduplication_id or "")
    assert result.due == utc(queues.clock.true_ms - 900_000 + 3_600_000)


def test_an_absolute_due_time_is_on_the_wire(queues: InMemoryQueues) -> None:
    """Set once, by the sender, who alone knows it."""
    due_at = utc(queues.clock.true_ms + 5_000_123)
    assert QueueSender(queues).send("orders", "x", due_at=due_at).due == due_at
    queues.clock.advance(900)
    (copy,) = received(queues, DELAY)
    assert copy.attributes[wire.DUE_AT] == string(str(queues.clock.true_ms - 900_000 + 5_000_123))
    assert copy.attributes[wire.DELAY_SECONDS] == string("5001")


@pytest.mark.parametrize("year", [1970, 2026])
def test_a_due_time_in_the_past_is_sent_at_once(queues: InMemoryQueues, year: int) -> None:
    """It is not an error, and the queue's own default delay does not apply."""
    QueueSender(queues).send("orders", "x", due_at=datetime(year, 1, 1, tzinfo=UTC))
    assert len(received(queues, "orders")) == 1


@pytest.mark.parametrize("error_minutes", [-10, 10])
def test_a_due_time_holds_on_a_wrong_local_clock(error_minutes: int) -> None:
    """It is the broker's clock that counts, asked anew each five minutes while the messages come."""
    clock = ManualClock(error_ms=error_minutes * 60_000)
    queues, store = InMemoryQueues(ManualClock(clock.true_ms), local=clock), InMemoryStore(clock)
    queues.create_endpoint("orders")
    due_ms = clock.true_ms + 1_000_000

    def slowly() -> Iterator[Message]:
        for given in ({"due_at": utc(due_ms)}, {"due_at": utc(due_ms)}, {"delay": 9_000}):
            for each in (clock, queues.clock):
                each.advance(301)
            yield Message("x", **given)

    QueueSender(queues, SenderSettings(parking=ParkingSettings(store))).send_many(
        "orders", slowly()
    )
    queues.clock.advance(96.999)
    assert received(queues, "orders") == []
    queues.clock.advance(0.001)
    assert len(received(queues, "orders")) == 2
    assert 0 <= store.pending(1)[0].due_ms - due_ms - 8_903_000 <= DATE_RESOLUTION_MS
    assert queues.calls.count("synchronise") == 3


def test_without_any_time_nothing_is_sent(clock: ManualClock) -> None:
    """Nobody may ask for the queue's URL, and no answer is dated."""
    queues = InMemoryQueues(clock, local=ManualClock(clock.true_ms, error_ms=-3_600_000))
    queues.create_endpoint("orders")
    denied = Mock(side_effect=errors.QueueUnavailable("AccessDenied"))
    queues.synchronise = denied  # type: ignore[method-assign]
    with pytest.raises(errors.QueueUnavailable, match=r"^AccessDenied$"):
        QueueSender(queues).send("orders", "x", due_at=utc(clock.true_ms + 60_000))
    assert queues.calls == []


def test_no_delay_leaves_the_queues_own_delay_in_force(clock: ManualClock) -> None:
    """A plain send is a plain send."""
    queues = InMemoryQueues(clock)
    queues.create_queue("orders", DelaySeconds="7")
    QueueSender(queues).send("orders", "x")
    clock.advance(6)
    assert received(queues, "orders") == []
    clock.advance(1)
    assert len(received(queues, "orders")) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"delay": -1}, errors.InvalidDelay, "negative"),
        ({"delay": 5, "due_at": FULL_DUE}, errors.InvalidDelay, "give only one"),
        ({"due_at": datetime(2027, 1, 1)}, errors.InvalidDelay, "time zone"),  # noqa: DTZ001
        ({"due_at": datetime.max.replace(tzinfo=UTC)}, errors.InvalidDelay, "after the limit"),
        ({"delay": 253_402_300_799}, errors.InvalidDelay, "after the limit"),
        ({"body": ""}, BAD, "empty"),
        ({"body": "\x00"}, BAD, "U\\+0000"),
        ({"message_id": "a b"}, BAD, "message_id='a b' is not valid"),
        ({"message_group_id": ""}, BAD, "message_group_id='' is not valid"),
        ({"message_deduplication_id": "d"}, BAD, "_deduplication_id is for FIFO queues"),
        ({"endpoint": "orders.fifo"}, BAD, "message_group_id is missing; FIFO queues"),
        (
            {"endpoint": "o.fifo", "message_group_id": "g", "message_deduplication_id": "a b"},
            BAD,
            "message_deduplication_id='a b' is not valid",
        ),
        ({"endpoint": "elsewhere"}, errors.QueueMissing, "elsewhere does not exist"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    queues: InMemoryQueues, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Typed errors that say what is wrong; the queue service gets nothing."""
    given = {"endpoint": "orders", "body": "x", **arguments}
    with pytest.raises(error, match=message):
        QueueSender(queues).send(**given)
    assert "send" not in queues.calls


@pytest.mark.parametrize("when", [{"delay": 1000}, {"delay": 1000.5}, {"due_at": FULL_DUE}])
@pytest.mark.parametrize(("group", "yours"), [(None, 8), ("tenant", 7)])
def test_attributes_count_with_all_that_the_way_adds(
    queues: InMemoryQueues, when: dict[str, Any], group: str | None, yours: int
) -> None:
    """Whatever the delay's kind, the same number fits; one more is refused now, not dropped later."""
    sender = QueueSender(queues)
    fit = {f"a{n}": "x" for n in range(yours)}
    sender.send("orders", "x", attributes=fit, message_group_id=group, **when)
    with pytest.raises(errors.TooManyAttributes, match="11 message attributes"):
        sender.send("orders", "x", attributes={**fit, "z": "x"}, message_group_id=group, **when)


def test_a_direct_message_may_use_all_ten_attributes(queues: InMemoryQueues) -> None:
    """It is plain SQS, unless it carries an id."""
    ten = {f"a{n}": "x" for n in range(10)}
    QueueSender(queues).send("orders", "x", delay=900, attributes=ten)
    with pytest.raises(errors.TooManyAttributes, match=r"11 message attributes \(1 of them"):
        QueueSender(queues).send("orders", "x", delay=900, attributes=ten, message_id="m-1")


@pytest.mark.parametrize("when", [{"delay": 2000}, {"delay": 2000.5}, {"due_at": FULL_DUE}])
@pytest.mark.parametrize("id_chars", [7, 128])
def test_the_largest_message_arrives_with_all_that_was_promised(
    queues: InMemoryQueues, when: dict[str, Any], id_chars: int
) -> None:
    """To the byte: what the sender takes keeps its due time at every hop, and its id at the end."""
    low, high = 1_048_000, 1_048_576
    while low < high:
        size = (low + high + 1) // 2
        message_id = str(size).zfill(id_chars)
        try:
            QueueSender(queues).send("orders", "b" * size, message_id=message_id, **when)
            low = size
        except errors.MessageTooLarge:
            high = size - 1
    queues.clock.advance(900)
    copies = received(queues, DELAY)
    assert max(len(copy.body) for copy in copies) == low
    sizes = []
    for copy in copies:
        message = read_delay(copy)
        assert isinstance(message, DelayedMessage)
        hop = outgoing.requeued(copy, message, 1_100)
        arrived = outgoing.handed_over(copy, message, Endpoint.parse("orders"), delay_seconds=0)
        assert wire.DUE_AT in hop.attributes
        assert {wire.MESSAGE_ID, wire.WAS_DUE_AT} <= set(arrived.attributes)
        sizes += [size_of(copy.body, copy.attributes), hop.size, arrived.size]
    assert max(sizes) == 1_048_576


def test_many_messages_go_in_full_batches(queues: InMemoryQueues) -> None:
    """25 direct and 15 delayed messages, mixed, are 3 + 2 calls; results are in order."""
    messages = [Message(f"{n}", delay=1000 if n % 8 >= 5 else 0) for n in range(40)]
    results = QueueSender(queues).send_many("orders", messages)
    assert queues.calls.count("send") == 5
    assert [result.route for result in results] == [
        Route.DELAY_QUEUE if n % 8 >= 5 else Route.DIRECT for n in range(40)
    ]
    assert len({result.message_id for result in results}) == 40


def test_a_batch_stays_within_one_mebibyte(queues: InMemoryQueues) -> None:
    """Ten messages of 400 kB are five calls of two."""
    results = QueueSender(queues).send_many("orders", [Message("b" * 400_000)] * 10)
    assert all(result.error is None for result in results)
    assert queues.calls.count("send") == 5


def test_one_bad_message_never_loses_the_others(queues: InMemoryQueues) -> None:
    """Its result carries the error; the others are sent."""
    bad = Message("\x00"), Message("b", delay=-1, message_id="m-2")
    results = QueueSender(queues).send_many("orders", [Message("a"), *bad, Message("c")])
    kinds = [type(result.error) for result in results]
    assert kinds == [type(None), errors.InvalidMessage, errors.InvalidDelay, type(None)]
    assert results[2].message_id == "m-2"
    assert {copy.body for copy in received(queues, "orders")} == {"a", "c"}


def test_no_messages_are_no_calls(queues: InMemoryQueues) -> None:
    """An empty list is an empty result."""
    assert QueueSender(queues).send_many("orders", []) == []
    assert queues.calls == []


def test_an_outage_is_asked_about_once_per_call(clock: ManualClock) -> None:
    """Thousands of messages do not wait for thousands of time-outs, one after the other."""
    queues = InMemoryQueues(clock)
    asked: list[str] = []
    queues.url = lambda queue: asked.append(queue.name) or _unreachable()  # type: ignore[method-assign,func-returns-value]
    messages = [Message("x", delay=5), Message("y", delay=5000)] * 50
    results = QueueSender(queues).send_many("orders", messages)
    assert {type(result.error) for result in results} == {errors.QueueUnavailable}
    assert len({id(result.error) for result in results}) == 100, "one of its own each"
    assert asked == ["orders", "orders-due", "orders-delay.fifo"]
    silent = InMemoryQueues(clock)
    silent.create_endpoint("orders")
    silent.synchronise = lambda queue: asked.append(queue.name)  # type: ignore[method-assign]
    due_at = utc(clock.true_ms + 60_000)
    QueueSender(silent).send_many("orders", [Message("x", due_at=due_at)] * 50)
    assert asked[3:] == ["orders"]  # though its answer did not tell the time


def _unreachable() -> str:
    raise errors.QueueUnavailable("no route to host")


class Slow(InMemoryQueues):
    """Every batch takes a second."""

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        self.clock.advance(1)
        return super().send_batch(queue_url, entries)


@pytest.mark.parametrize(
    ("endpoint", "queue"), [("orders", "orders"), ("orders.fifo", "orders-due")]
)
def test_time_spent_on_earlier_batches_does_not_make_later_ones_late(
    clock: ManualClock, endpoint: str, queue: str
) -> None:
    """The timer of an absolute due time is set when its batch is sent, not when the call began."""
    queues = Slow(clock)
    fifo = queues.create_endpoint(endpoint).fifo
    due_ms = clock.true_ms + 60_000
    sender = QueueSender(queues, SenderSettings(concurrency=1))
    group = "g" if fifo else None
    message = Message("x", due_at=utc(due_ms), message_group_id=group)
    sender.send_many(endpoint, [message] * 300)
    late = [m.visible_ms - due_ms for m in queues._queues[queue].messages.values()]
    assert min(late) >= 0
    assert max(late) <= 2000


@pytest.mark.parametrize("endpoint", ["orders", "orders.fifo"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("delay", [None, 0, 1, 2, 900, 901, 8100, 8101])
def test_the_route_that_is_expected_is_the_one_it_takes(
    clock: ManualClock, endpoint: str, stored: bool, delay: int | None
) -> None:
    """What is expected to go the same way shares requests; and a preview tells the truth."""
    queues = InMemoryQueues(clock)
    fifo = queues.create_endpoint(endpoint).fifo
    parking = ParkingSettings(InMemoryStore(clock)) if stored else None
    sender = QueueSender(queues, SenderSettings(parking=parking))
    group = "g" if fifo else None
    message = Message("x", delay=delay, message_id="m", message_group_id=group)
    (_, expected), most = sender._together(Endpoint.parse(endpoint), checked(message, fifo=fifo))
    previewed = sender.preview(endpoint, message)
    (sent,) = sender.send_many(endpoint, [message])
    assert previewed == replace(sent, sqs_message_id=None)
    assert expected is previewed.route
    assert most == (500 if expected is Route.STORE else 10)


def test_an_entry_the_service_failed_is_an_error_in_its_place(clock: ManualClock) -> None:
    """send_many reports it, send raises it, and the ledger has what was sent, in a request of three."""
    queues, ledger = FaultyQueues(clock), InMemoryLedger()
    queues.failing = {"fail": AWAY}
    queues.create_endpoint("orders")
    sender = QueueSender(queues, SenderSettings(concurrency=1, ledger=ledger))
    results = sender.send_many("orders", [Message("a"), Message("fail"), Message("b")])
    assert [str(result.error) for result in results] == ["None", "away", "None"]
    assert (results[1].sqs_message_id, results[1].due) == (None, results[0].due)
    told = [(event.message_id, event.batch) for event in ledger.events]
    assert told == [(results[0].message_id, 3), (results[2].message_id, 3)]
    with pytest.raises(errors.QueueUnavailable, match="away"):
        sender.send("orders", "fail")


def test_a_hop_without_a_delay_queue_is_refused() -> None:
    """At once, not at the first send."""
    with pytest.raises(errors.ConfigurationError, match="without a delay queue there is no hop"):
        SenderSettings(hop_seconds=5, unrestricted=False)


def test_a_sender_refuses_a_hop_shorter_than_the_queues(clock: ManualClock) -> None:
    """Else a message of 5 s would wait out a hop of 900."""
    queues = InMemoryQueues(clock)
    queues.create_endpoint("orders", hop_seconds=60)
    shorter, equal = (QueueSender(queues, SenderSettings(hop_seconds=n)) for n in (2, 60))
    told = r"hop_seconds=2 is .* holds messages for 60 s; use 60"
    with pytest.raises(errors.ConfigurationError, match=told):
        shorter.send("orders", "x", delay=5)
    assert equal.send("orders", "x", delay=61).route is Route.DELAY_QUEUE
