"""The outbox to SQS: queues with SQS's semantics, under virtual time."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import Attribute
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import QueueMissing, QueueUnavailable
from sqsdelay.ports.queues import Failure, Released
from sqsdelay.sqs.outbox import SqsOutbox, failures
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock
from tests.faulty import AWAY, FaultyQueues


@pytest.fixture
def outbox(queues: InMemoryQueues) -> Iterator[SqsOutbox]:
    outbox = SqsOutbox(queues, Endpoint.parse("orders"))
    yield outbox
    outbox.close()


def message(clock: ManualClock, in_ms: int, **changes: object) -> StoredMessage:
    fields = {
        "message_id": "m-1",
        "destination": "orders",
        "due_ms": clock.true_ms + in_ms,
        "body": "grüße".encode(),
    }
    return StoredMessage(**(fields | changes))  # type: ignore[arg-type]


def received(queues: InMemoryQueues, name: str = "orders") -> list[ReceivedMessage]:
    return queues.receive_batch(name, wait_seconds=0)


def errors(queues: InMemoryQueues) -> dict[str, object]:
    (copy,) = received(queues, "orders-delay-error")
    about = json.loads(copy.attributes["sqsdelay.Error"]["StringValue"])
    return {"body": copy.body, **about}


@pytest.mark.parametrize("in_ms", [-60_000, 0, 1, 999, 1000, 1001, 899_001, 900_000])
def test_a_timer_holds_the_rest_and_is_never_early(
    queues: InMemoryQueues, outbox: SqsOutbox, in_ms: int
) -> None:
    """What remains, in whole seconds rounded up."""
    due_ms = queues.clock.true_ms + max(0, in_ms)
    (sent,) = outbox.send([message(queues.clock, in_ms)])
    assert sent == Released(max(0, -(-in_ms // 1000)), batch=1)
    visible_ms = queues.next_visible_ms()
    assert visible_ms is not None
    assert 0 <= visible_ms - due_ms < 1000


class Untold(InMemoryQueues):
    """Queues that take messages and do not tell the time."""

    def synchronise(self, queue: QueueRef) -> None:
        raise QueueUnavailable("throttled")


def test_without_the_brokers_time_nothing_is_sent(clock: ManualClock) -> None:
    """A timer set by a local clock ten minutes ahead would end ten minutes early."""
    queues = Untold(clock, local=ManualClock(clock.true_ms, error_ms=600_000))
    queues.create_endpoint("orders")
    with closing(SqsOutbox(queues, Endpoint.parse("orders"))) as outbox:
        (failure,) = outbox.send([message(clock, 500_000)])
    assert isinstance(failure, Failure)
    assert failure.outage
    assert isinstance(failure.error, QueueUnavailable)
    assert queues.next_visible_ms() is None


def test_an_empty_body_can_be_rejected(outbox: SqsOutbox, queues: InMemoryQueues) -> None:
    """SQS takes none; the error queue says that there was none."""
    assert outbox.reject([(message(queues.clock, 0, body=b""), "empty")]) == [None]
    assert errors(queues)["bodyEncoding"] == "empty"


def test_a_wrong_local_clock_plays_no_part(clock: ManualClock) -> None:
    """The broker's clock decides, an hour's error of the machine's own notwithstanding."""
    local = ManualClock(clock.true_ms, error_ms=3_600_000)
    queues = InMemoryQueues(clock, local=local)
    queues.create_endpoint("orders")
    outbox = SqsOutbox(queues, Endpoint.parse("orders"))
    store = InMemoryStore(local)
    store.store([message(clock, 300_000), message(clock, 2_000_000, message_id="later")])
    done = Dispatcher(store, outbox, clock=local).dispatch()
    outbox.close()
    assert [m.message_id for m in done.released] == ["m-1"]
    assert queues.next_visible_ms() == clock.true_ms + 300_000


def test_a_due_time_beyond_the_timers_is_not_clamped(
    queues: InMemoryQueues, outbox: SqsOutbox
) -> None:
    """The estimate of the broker's clock moved: released later, never early."""
    (failure,) = outbox.send([message(queues.clock, 900_001)])
    assert isinstance(failure, Failure)
    assert failure.outage
    assert isinstance(failure.error, QueueUnavailable)
    assert "901 s, and a message timer is limited to 900 s" in str(failure.error)
    assert queues.next_visible_ms() is None


def test_a_receiver_gets_the_message_and_its_id(queues: InMemoryQueues, outbox: SqsOutbox) -> None:
    """Body, attributes and group as stored, the id to deduplicate on and the due time, as relayed."""
    attributes: dict[str, Attribute] = {
        "Raw": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"}
    }
    stored = message(queues.clock, 0, attributes=attributes, group_id="g", trace_header="Root=1")
    assert failures(outbox.send([stored])) == [None]
    (copy,) = received(queues)
    assert (copy.body, copy.group_id) == ("grüße", "g")
    assert re.fullmatch(
        r"Root=1-[0-9a-f]{8}-[0-9a-f]{24}", copy.trace_header or ""
    )  # a trace of its own
    identity: Attribute = {"DataType": "String", "StringValue": "m-1"}
    due: Attribute = {"DataType": "String", "StringValue": str(stored.due_ms)}
    assert copy.attributes == {
        **attributes,
        "sqsdelay.MessageId": identity,
        "sqsdelay.WasDueAt": due,
    }


@pytest.mark.parametrize(("own", "added"), [(9, {"sqsdelay.MessageId"}), (10, set())])
def test_ten_attributes_are_the_most(
    queues: InMemoryQueues, outbox: SqsOutbox, own: int, added: set[str]
) -> None:
    """What was stored with all of SQS's attributes arrives without ours rather than not at all."""
    attributes: dict[str, Attribute] = {
        f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(own)
    }
    assert failures(outbox.send([message(queues.clock, 0, attributes=attributes)])) == [None]
    (copy,) = received(queues)
    assert set(copy.attributes) == set(attributes) | added


def test_more_than_sqs_takes_is_rejected(queues: InMemoryQueues, outbox: SqsOutbox) -> None:
    """Known before it is sent, and told with value and limit."""
    (failure,) = outbox.send([message(queues.clock, 0, body=b"x" * 1_048_577)])
    assert isinstance(failure, Failure)
    assert not failure.transient
    assert "1048577 bytes" in str(failure.error)


def test_each_message_has_its_own_outcome(queues: InMemoryQueues, outbox: SqsOutbox) -> None:
    """In order: sent, a missing queue, a name that is none, a body that is no text, sent."""
    queues.create_queue("others")
    outcomes = outbox.send(
        [
            message(queues.clock, 0, message_id="a"),
            message(queues.clock, 0, message_id="b", destination="nowhere"),
            message(queues.clock, 0, message_id="c", destination="no queue!"),
            message(queues.clock, 0, message_id="d", body=b"\xff"),
            message(queues.clock, 0, message_id="e", destination="others"),
        ]
    )
    told = [None if f is None else (f.code, f.transient) for f in failures(outcomes)]
    assert told == [
        None,
        ("QueueMissing", True),
        ("InvalidEndpoint", False),
        ("InvalidMessage", False),
        None,
    ]
    assert len(received(queues)) == len(received(queues, "others")) == 1


def test_batches_are_full(queues: InMemoryQueues, outbox: SqsOutbox) -> None:
    """25 messages to one queue take 3 calls, and each message knows how many shared its own."""
    queues.calls.clear()
    outcomes = outbox.send([message(queues.clock, 0, message_id=f"m{n}") for n in range(25)])
    assert outcomes == [Released(0, batch=10)] * 20 + [Released(0, batch=5)] * 5
    assert queues.calls.count("send") == 3


def test_the_error_queue_gets_the_reason(queues: InMemoryQueues, outbox: SqsOutbox) -> None:
    """What, where to, when, and why; characters SQS refuses do not keep it from arriving."""
    assert outbox.reject([(message(queues.clock, 5, failures=2), "broken\x00 pipe")]) == [None]
    assert errors(queues) == {
        "body": "grüße",
        "reason": "broken? pipe",
        "messageId": "m-1",
        "destination": "orders",
        "dueMs": queues.clock.true_ms + 5,
        "failures": 2,
    }


@pytest.mark.parametrize("body", [b"\xff\xfe", b"bell \x07", "\ufffd".encode() + b"\x80"])
def test_a_body_that_is_no_text_is_rejected_whole(
    queues: InMemoryQueues, outbox: SqsOutbox, body: bytes
) -> None:
    """As base64, and saying so: no byte is lost."""
    assert outbox.reject([(message(queues.clock, 0, body=body), "no text")]) == [None]
    about = errors(queues)
    assert about["bodyEncoding"] == "base64"
    assert base64.b64decode(str(about["body"])) == body


def test_ten_attributes_leave_no_room_for_a_reason(
    queues: InMemoryQueues, outbox: SqsOutbox
) -> None:
    """Then the message is rejected without it rather than not at all."""
    ten: dict[str, Attribute] = {
        f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(10)
    }
    assert outbox.reject([(message(queues.clock, 0, attributes=ten), "too many")]) == [None]
    (copy,) = received(queues, "orders-delay-error")
    assert copy.attributes == ten


def test_a_missing_error_queue_is_found_at_the_start(clock: ManualClock) -> None:
    """Not when the first message needs it."""
    queues = InMemoryQueues(clock)
    queues.create_queue("orders")
    outbox = SqsOutbox(queues, Endpoint.parse("orders"))
    with pytest.raises(QueueMissing, match="orders-delay-error"):
        outbox.check()
    outbox.close()


def test_throttling_is_an_outage(clock: ManualClock) -> None:
    """Messages are held and keep their failure count; none goes to the error queue."""
    queues = FaultyQueues(clock)
    queues.failing = {"orders": AWAY}
    queues.create_endpoint("orders")
    outbox = SqsOutbox(queues, Endpoint.parse("orders"))
    store = InMemoryStore(clock)
    store.store([message(clock, 0)])
    done = Dispatcher(store, outbox, clock=clock).dispatch()
    outbox.close()
    assert [m.message_id for m in done.held] == ["m-1"]
    assert [m.failures for m in store.pending(1)] == [0]
