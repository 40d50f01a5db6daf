"""The error queue's operator: nothing is removed by looking, nothing is lost by sending on."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from sqsdelay.console.source import Failed
from sqsdelay.core import message as wire
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_MESSAGE_BYTES
from sqsdelay.core.message import Message, OutgoingMessage, size_of, string
from sqsdelay.core.outgoing import identity
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import StoredMessage, to_store
from sqsdelay.errors import QueueMissing
from sqsdelay.operating.error_queue import HOLD_SECONDS, ErrorQueue, Retry, RetryStatus
from sqsdelay.relaying import DueRelay, Relay, RelaySettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.faulty import FaultyQueues

ORDERS, FIFO = Endpoint.parse("orders"), Endpoint.parse("orders.fifo")
DELAY, ERRORS, DUE = "orders-delay.fifo", "orders-delay-error", "orders-due"


@pytest.fixture
def fifo_queues(clock: ManualClock) -> FaultyQueues:
    queues = FaultyQueues(clock)
    queues.create_endpoint("orders.fifo")
    return queues


def relay(queues: InMemoryQueues, endpoint: Endpoint = ORDERS) -> None:
    """One batch of the delay queue, with a relay that rejects what SQS refuses once."""
    copies = queues.receive_batch(DELAY, wait_seconds=0)
    Relay(queues, endpoint, RelaySettings(max_receives=1)).process(copies)


def received(queues: InMemoryQueues, queue: str = "orders") -> list[ReceivedMessage]:
    return queues.receive_batch(queue, wait_seconds=0)


def refused(queues: FaultyQueues, *, endpoint: Endpoint = ORDERS, **message: Any) -> None:
    """A message that waited 900 s in the delay queue; then SQS refused it, to whichever queue."""
    QueueSender(queues).send_many(endpoint.name, [Message(**{"body": "hello"} | message)])
    queues.clock.advance(900)
    queues.refuse("orders", DELAY, DUE)
    relay(queues, endpoint)
    queues.refuse()


def put(queues: InMemoryQueues, message_id: str, seconds: str = "soon") -> None:
    """What the relay cannot read, in the delay queue."""
    attributes = {wire.DELAY_SECONDS: string(seconds)}
    queues.send_batch(DELAY, [OutgoingMessage("x", attributes, 1, None, message_id, message_id)])


def retried(queues: InMemoryQueues, endpoint: Endpoint = ORDERS, **arguments: Any) -> list[Retry]:
    return list(ErrorQueue(queues, endpoint).retry(**arguments))


def test_looking_leaves_everything_where_it_is(queues: FaultyQueues) -> None:
    """Everyone who looks sees all of it; what grows is the receive count."""
    for n in range(25):
        put(queues, f"m-{n}")
    queues.clock.advance(900)
    for _ in range(3):
        relay(queues)
    for looked in (1, 2):
        found = ErrorQueue(queues, ORDERS).look(100)
        assert {r.message_id for r in found} == {f"m-{n}" for n in range(25)}
        assert {r.copy.receive_count for r in found} == {looked}
    assert "is 'soon', not a whole number" in (found[0].reason or "")
    assert len(ErrorQueue(queues, ORDERS).look(12)) == 12
    assert len(received(queues, ERRORS)) == 10


def test_looking_hides_messages_from_others_and_for_a_while_only(queues: FaultyQueues) -> None:
    """A process that dies while it looks hides them for two minutes, and loses nothing."""
    put(queues, "m-1")
    queues.clock.advance(900)
    relay(queues)
    dying = ErrorQueue(queues, ORDERS).retry(dry_run=True)
    next(dying)
    queues.clock.advance(HOLD_SECONDS - 1)
    assert received(queues, ERRORS) == []
    queues.clock.advance(1)
    assert len(received(queues, ERRORS)) == 1


def test_a_message_goes_back_to_the_delay_queue_and_is_on_time(queues: FaultyQueues) -> None:
    """As if it had never been away: id, attributes and due time, to the millisecond."""
    start_ms = queues.clock.true_ms
    attributes = {"user": "x"}
    refused(queues, delay=9000.5, attributes=attributes, message_id="m-1")
    queues.clock.advance(1000)
    (done,) = retried(queues)
    due_ms = start_ms + 9_000_500
    assert (done.status, done.queue, done.due_ms) == (RetryStatus.SENT, DELAY, due_ms)
    assert ErrorQueue(queues, ORDERS).look(1) == []
    while not (copies := received(queues)):
        queues.clock.advance(0.5)
        relay(queues)
    (copy,) = copies
    assert 0 <= queues.clock.true_ms - due_ms < 1000
    assert copy.attributes == {"user": string("x"), **identity("m-1", due_ms)}


@pytest.mark.parametrize(("since", "timer"), [(0, 100), (99.5, 1), (5000, 0)])
def test_what_is_due_within_a_message_timer_goes_to_the_destination(
    queues: FaultyQueues, since: float, timer: int
) -> None:
    """Another hop would make it late; what is overdue arrives at once. Never early."""
    due_ms = queues.clock.true_ms + 1_000_000
    refused(queues, delay=1000, message_id="m-1", message_group_id="tenant")
    queues.clock.advance(since)
    (done,) = retried(queues, message_ids=["m-1"])
    assert (done.status, done.queue, done.due_ms) == (RetryStatus.SENT, "orders", due_ms)
    if timer:
        assert received(queues) == []
        queues.clock.advance(timer)
    (copy,) = received(queues)
    assert queues.clock.true_ms >= due_ms
    assert (copy.group_id, copy.attributes) == ("tenant", identity("m-1", due_ms))


def test_only_what_was_asked_for_is_sent_on(queues: FaultyQueues) -> None:
    """The others stay, visible at once."""
    for name in ("a", "b", "c"):
        refused(queues, delay=1000, message_id=name)
    done = retried(queues, message_ids=["b", "unknown"])
    assert [(d.rejection.message_id, d.status) for d in done] == [("b", RetryStatus.SENT)]
    assert [r.message_id for r in ErrorQueue(queues, ORDERS).look(9)] == ["a", "c"]


def test_a_dry_run_says_what_would_be_and_sends_nothing(queues: FaultyQueues) -> None:
    """Then the retry does just that."""
    refused(queues, delay=1000, message_id="near")
    refused(queues, delay=9000, message_id="far")
    queues.calls.clear()
    would = retried(queues, dry_run=True)
    assert "send" not in queues.calls
    assert {d.status for d in would} == {RetryStatus.WOULD_SEND}
    did = retried(queues)
    told = [{(d.rejection.message_id, d.queue, d.due_ms) for d in run} for run in (would, did)]
    assert told[0] == told[1]
    assert {queue for _, queue, _ in told[0]} == {"orders", DELAY}


def test_what_does_not_say_when_it_is_due_is_left_unless_told(queues: FaultyQueues) -> None:
    """It would be rejected again; the operator may know when, and others keep their own time."""
    put(queues, "poison")
    refused(queues, delay=1000, message_id="good")
    own_ms = queues.clock.true_ms + 100_000
    left = {d.rejection.message_id: d for d in retried(queues, dry_run=True)}["poison"]
    assert left.status is RetryStatus.LEFT
    assert "is 'soon', not a whole number of seconds; give it with --due-at" in (left.error or "")
    due_ms = queues.clock.true_ms + 50_000
    done = {d.rejection.message_id: d for d in retried(queues, due_ms=due_ms)}
    assert {name: d.due_ms for name, d in done.items()} == {"poison": due_ms, "good": own_ms}
    queues.clock.advance(100)
    assert {c.attributes[wire.MESSAGE_ID]["StringValue"] for c in received(queues)} == set(done)


@pytest.mark.parametrize("gone", ["orders", DELAY])
def test_it_is_deleted_only_after_its_next_home_has_it(queues: FaultyQueues, gone: str) -> None:
    """A queue that refuses or is missing leaves it in the error queue, which says why."""
    refused(queues, delay=1000 if gone == "orders" else 9000, message_id="m-1")
    queues.refuse(gone)
    (done,) = retried(queues)
    assert (done.status, done.error) == (RetryStatus.LEFT, "refused")
    queues.delete_queue(gone)
    (done,) = retried(queues)
    assert done.status is RetryStatus.LEFT
    assert f"queue {gone} does not exist" in (done.error or "")
    assert len(ErrorQueue(queues, ORDERS).look(9)) == 1


def test_who_stops_reading_leaves_nothing_sent_and_not_deleted(queues: FaultyQueues) -> None:
    """A terminal that goes away between two lines must not make duplicates."""
    for body in ("bad", "good"):
        refused(queues, delay=1000, message_id=body, body=body)
    queues.refuse("bad")
    retrying = ErrorQueue(queues, ORDERS).retry()
    first = next(retrying)
    assert isinstance(retrying, Generator)
    retrying.close()
    assert (first.rejection.message_id, first.status) == ("bad", RetryStatus.LEFT)
    assert [r.message_id for r in ErrorQueue(queues, ORDERS).look(9)] == ["bad"]


@pytest.mark.parametrize(
    ("messages", "pauses"),
    [(30, dict.fromkeys(range(1, 31), HOLD_SECONDS / 9)), (60, {50: HOLD_SECONDS})],
    ids=["a retry longer than a hold", "a break of two minutes"],
)
def test_however_many_come_again_the_rest_is_reached(
    queues: FaultyQueues, messages: int, pauses: dict[int, float]
) -> None:
    """What a retry left before is visible again, ahead of what nobody has seen; the retry goes on."""
    for n in range(messages):
        put(queues, f"m-{n:02}")
    queues.clock.advance(900)
    for _ in range(messages // 10):
        relay(queues)
    left = []
    for done in ErrorQueue(queues, ORDERS).retry():
        left.append(done.rejection.message_id)
        queues.clock.advance(pauses.get(len(left), 0))
    assert sorted(left) == [f"m-{n:02}" for n in range(messages)]


@pytest.mark.parametrize(
    "done", [lambda queue: sum(1 for _ in queue.retry()), lambda queue: queue.look(50, Failed.of)]
)
def test_what_is_left_is_not_kept(clock: ManualClock, done: Callable[[ErrorQueue], Any]) -> None:
    """An error queue may hold a hundred thousand messages of 1 MiB, and the console shows a thousand:
    whoever retries keeps none of them, and a list 64 KiB of each."""

    class Large(FaultyQueues):
        def receive_batch(self, *arguments: Any, **options: Any) -> list[ReceivedMessage]:
            copies = super().receive_batch(*arguments, **options)
            return [replace(copy, body="b" * (MAX_MESSAGE_BYTES - 1024)) for copy in copies]

    large = Large(clock)
    large.create_endpoint("orders")
    for n in range(50):
        put(large, f"m-{n:02}")
    clock.advance(900)
    for _ in range(5):
        relay(large)
    tracemalloc.start()
    try:
        found = done(ErrorQueue(large, ORDERS))
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 50 in (found, len(found) if isinstance(found, list) else 0)
    assert most < 35 * MAX_MESSAGE_BYTES
    assert kept < 50 * 80 * 1024


def test_a_delete_that_fails_is_said(queues: FaultyQueues) -> None:
    """It is in two places then; on the delay queue a second retry is the same message."""
    refused(queues, delay=9000, message_id="m-1")
    queues.deletes_fail = True
    (done,) = retried(queues)
    assert (done.status, done.queue, done.error) == (RetryStatus.NOT_DELETED, DELAY, "away")
    queues.deletes_fail = False
    assert [d.status for d in retried(queues)] == [RetryStatus.SENT]
    queues.clock.advance(900)
    assert len(received(queues, DELAY)) == 1


def test_a_full_message_is_sent_on_too(queues: FaultyQueues) -> None:
    """1 MiB leaves no room for the reason, and ten attributes none for another attribute."""
    due_ms = queues.clock.true_ms + 1_000_000
    wired = size_of("", {wire.DELAY_SECONDS: string("1000"), wire.DUE_AT: string(str(due_ms))})
    full = "b" * (MAX_MESSAGE_BYTES - wired)
    refused(queues, delay=1000, body=full, message_id="full")
    many = {f"a{n}": "x" for n in range(8)}
    refused(queues, delay=1000, attributes=many, message_id="many")
    done = retried(queues)
    assert {d.rejection.message_id: d.due_ms for d in done} == {
        "full": due_ms, "many": due_ms + 900_000,
    }  # fmt: skip
    queues.clock.advance(1000)
    by_size = sorted(received(queues), key=lambda c: len(c.body))
    assert by_size[0].attributes.keys() == many.keys() | {wire.MESSAGE_ID, wire.WAS_DUE_AT}
    assert (by_size[1].body, by_size[1].attributes[wire.WAS_DUE_AT]) == (full, string(str(due_ms)))


@pytest.mark.parametrize("delay", [1000, 9000])
def test_a_fifo_endpoints_message_keeps_its_ids(fifo_queues: FaultyQueues, delay: int) -> None:
    """From the delay queue's rejection to the FIFO queue, by way of the due queue."""
    due_ms = fifo_queues.clock.true_ms + delay * 1000
    ids = {"message_group_id": "g", "message_deduplication_id": "d"}
    refused(fifo_queues, endpoint=FIFO, delay=delay, message_id="m-1", **ids)
    (done,) = retried(fifo_queues, FIFO)
    assert (done.status, done.queue) == (RetryStatus.SENT, DUE if delay == 1000 else DELAY)
    while not (copies := received(fifo_queues, "orders.fifo")):
        fifo_queues.clock.advance(10)
        relay(fifo_queues, FIFO)
        DueRelay(fifo_queues, FIFO).process(received(fifo_queues, DUE))
    (copy,) = copies
    assert fifo_queues.clock.true_ms >= due_ms
    assert (copy.group_id, copy.deduplication_id) == ("g", "d")
    assert copy.attributes == identity("m-1", due_ms)


def test_a_message_of_the_due_queue_goes_back_there(fifo_queues: FaultyQueues) -> None:
    """It carries its due time and no delay any more."""
    due_ms = fifo_queues.clock.true_ms + 10_000
    ids: Any = {"message_group_id": "g", "message_id": "m-1"}
    QueueSender(fifo_queues).send("orders.fifo", "x", delay=10, **ids)
    fifo_queues.clock.advance(10)
    fifo_queues.refuse("orders.fifo")
    due_relay = DueRelay(fifo_queues, FIFO, RelaySettings(max_receives=1))
    due_relay.process(received(fifo_queues, DUE))
    fifo_queues.refuse()
    (done,) = retried(fifo_queues, FIFO)
    assert (done.status, done.queue, done.due_ms) == (RetryStatus.SENT, DUE, due_ms)
    due_relay.process(received(fifo_queues, DUE))
    (copy,) = received(fifo_queues, "orders.fifo")
    assert (copy.group_id, copy.deduplication_id) == ("g", "m-1")


def test_a_message_of_another_endpoint_is_left(fifo_queues: FaultyQueues) -> None:
    """orders and orders.fifo have one error queue: each sends on what is its own."""
    put(fifo_queues, "m-1", "1000")
    fifo_queues.clock.advance(900)
    relay(fifo_queues, FIFO)
    (done,) = retried(fifo_queues, FIFO, due_ms=0)
    assert done.status is RetryStatus.LEFT
    assert "was it sent for a standard endpoint of the same name?" in (done.error or "")
    refused(fifo_queues, endpoint=FIFO, delay=1000, message_group_id="g", message_id="m-2")
    fifo_queues.create_queue("orders")
    lefts = {d.rejection.message_id: d.error for d in retried(fifo_queues, dry_run=True)}
    assert lefts["m-2"] == "the message was sent for the FIFO queue orders.fifo"


@pytest.mark.parametrize("destination", ["orders", "orders.fifo"])
def test_a_stores_message_is_released_again(
    queues: FaultyQueues, fifo_queues: FaultyQueues, destination: str
) -> None:
    """What the dispatcher rejected arrives with its id, group and due time."""
    used = fifo_queues if destination == "orders.fifo" else queues
    endpoint = Endpoint.parse(destination)
    message = Message("x", delay=600, message_id="m-1", message_group_id="g")
    outbox = SqsOutbox(used, endpoint)
    outbox.reject([(to_store(message, destination, now_ms=queues.clock.true_ms), "refused")])
    (done,) = retried(used, endpoint)
    assert (done.status, done.due_ms) == (RetryStatus.SENT, queues.clock.true_ms + 600_000)
    queues.clock.advance(600)
    if endpoint.fifo:
        DueRelay(used, endpoint).process(received(used, DUE))
    (copy,) = received(used, destination)
    assert (copy.body, copy.group_id) == ("x", "g")
    assert copy.attributes == identity("m-1", queues.clock.true_ms)
    outbox.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"body": b"\xff"}, "SQS cannot carry its body (base64); handle it by hand"),
        ({"destination": "invoices"}, "its destination is invoices, not orders"),
        ({"destination": "nowhere"}, "queue nowhere does not exist"),
        ({"destination": "no queue!"}, "endpoint 'no queue!' is not a queue name"),
    ],
)
def test_a_stores_message_that_cannot_arrive_is_left(
    queues: FaultyQueues, changes: dict[str, Any], why: str
) -> None:
    """Nothing goes to a queue the operator did not name, and no stand-in for a body goes out."""
    queues.create_queue("invoices")
    fields: dict[str, Any] = {
        "message_id": "m", "destination": "orders", "due_ms": queues.clock.true_ms, "body": b"x",
    }  # fmt: skip
    outbox = SqsOutbox(queues, ORDERS)
    outbox.reject([(StoredMessage(**fields | changes), "refused")])
    outbox.close()
    (done,) = retried(queues, due_ms=queues.clock.true_ms)
    assert done.status is RetryStatus.LEFT
    assert why in (done.error or "")


def test_what_is_not_whole_is_left(queues: FaultyQueues) -> None:
    """An attribute that could not be read was left out: it must not arrive without it."""
    QueueSender(queues).send("orders", "x", delay=1000)
    queues.clock.advance(900)
    (copy,) = received(queues, DELAY)
    Relay(queues, ORDERS).process([replace(copy, unreadable="attribute 'a'")])
    (done,) = retried(queues, due_ms=0)
    assert (done.status, done.error) == (RetryStatus.LEFT, "attribute 'a'; handle it by hand")


def test_many_are_sent_on_in_batches(queues: FaultyQueues) -> None:
    """Ten a request, until nothing new comes."""
    for n in range(25):
        put(queues, f"m-{n}")
    queues.clock.advance(900)
    for _ in range(3):
        relay(queues)
    queues.calls.clear()
    assert [d.status for d in retried(queues, due_ms=0)] == [RetryStatus.SENT] * 25
    assert queues.calls.count("send") == 3
    assert ErrorQueue(queues, ORDERS).look(1) == []


def test_a_missing_error_queue_is_named(queues: FaultyQueues) -> None:
    """A wrong endpoint is an error, not an empty answer."""
    with pytest.raises(QueueMissing, match="nowhere-delay-error does not exist"):
        ErrorQueue(queues, Endpoint.parse("nowhere")).look(1)
