"""The outbox to RabbitMQ on a real broker: what the outbox to SQS promises, in AMQP's terms."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.message import Attribute, string
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.errors import ConfigurationError, InvalidEndpoint, MessageTooLarge, QueueMissing
from sqsdelay.rabbitmq import RabbitMqOutbox
from sqsdelay.testing import InMemoryStore, ManualClock
from tests.acceptance.rabbitmq.broker import Broker
from tests.patience import wait_for
from tests.services.network import DeafProxy, closed_port

ERRORS = "orders-delay-error"
PAST_MS = 1_700_000_000_000
ONE_SECOND_AHEAD = DispatchSettings(release_ahead_seconds=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(PAST_MS)


@pytest.fixture
def outbox(broker: Broker, clock: ManualClock) -> Iterator[RabbitMqOutbox]:
    broker.queue("orders")
    with closing(RabbitMqOutbox(broker.url, "orders", clock=clock)) as outbox:
        outbox.check()
        yield outbox


def message(clock: ManualClock, in_ms: int = 0, **changes: Any) -> StoredMessage:
    fields = {"message_id": "m-1", "destination": "orders", "due_ms": clock.true_ms + in_ms}
    return StoredMessage(**({"body": "grüße".encode(), **fields, **changes}))


def rejected(broker: Broker) -> tuple[dict[str, Any], Any, bytes]:
    """What the one message of the error queue says about itself, its properties, its body."""
    ((_, properties, body),) = broker.drain(ERRORS)
    return json.loads(properties.headers["sqsdelay.Error"]), properties, body


def test_a_receiver_gets_the_message_and_its_id(
    broker: Broker, outbox: RabbitMqOutbox, clock: ManualClock
) -> None:
    """Bytes as stored, attributes as headers, the id to deduplicate on as a property; persistent."""
    attributes: dict[str, Attribute] = {
        "Raw": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
        "Size": {"DataType": "Number", "StringValue": "1.50"},
        "Tenant": string("grün"),
    }
    more: dict[str, Any] = {"group_id": "g", "trace_header": "Root=1", "body": b"\x00\xff"}
    stored = message(clock, attributes=attributes, **more)
    assert outbox.send([stored]) == [None]
    ((_, properties, body),) = broker.drain("orders")
    assert (body, properties.message_id, properties.delivery_mode) == (b"\x00\xff", "m-1", 2)
    # The broker's own, of a quorum queue; from RabbitMQ 4 on, once redelivered.
    properties.headers.pop("x-delivery-count", None)
    assert properties.headers == {
        "Raw": b"\x00\xff",
        "Size": "1.50",
        "Tenant": "grün",
        "sqsdelay.MessageGroupId": "g",
        "AWSTraceHeader": "Root=1",
        "sqsdelay.WasDueAt": str(stored.due_ms),
    }


def test_a_message_is_never_sent_early(
    broker: Broker, outbox: RabbitMqOutbox, clock: ManualClock
) -> None:
    """There is no timer to hold the rest, so one that is not due yet waits on in its store."""
    (failure,) = outbox.send([message(clock, 1)])
    assert failure is not None
    assert failure.outage
    assert "due in 1 ms" in str(failure.error)
    assert broker.count("orders") == 0
    with pytest.raises(ConfigurationError, match="timers allow 0 to 0"):
        Dispatcher(InMemoryStore(clock), outbox, settings=ONE_SECOND_AHEAD)


def test_each_message_has_its_own_outcome(
    broker: Broker, outbox: RabbitMqOutbox, clock: ManualClock
) -> None:
    """In order, and none ends the channel for the others: what would is found before it is sent."""
    broker.queue("eu.Grüße")
    failures = outbox.send(
        [
            message(clock, message_id="a"),
            message(clock, message_id="b", destination="nowhere"),
            message(clock, message_id="c", destination="n" * 200),
            message(clock, message_id="d", attributes={"CC": string("orders")}),
            message(clock, message_id="e", attributes={"n" * 256: string("x")}),
            message(clock, message_id="f", attributes={"a": string("x" * 131_072)}),
            message(clock, message_id="ü" * 128),
            message(clock, message_id="h", body=b"x" * (16 * 1024 * 1024 + 1)),
            message(clock, message_id="i", destination="eu.Grüße"),
        ]
    )
    assert [None if f is None else (f.code, f.transient) for f in failures] == [
        None,
        ("QueueMissing", True),
        ("InvalidEndpoint", False),
        ("InvalidMessage", False),
        ("InvalidMessage", False),
        ("MessageTooLarge", False),
        ("InvalidMessage", False),
        ("MessageTooLarge", False),
        None,
    ]
    assert [broker.count("orders"), broker.count("eu.Grüße")] == [1, 1]


def test_the_error_queue_gets_the_reason(
    broker: Broker, outbox: RabbitMqOutbox, clock: ManualClock
) -> None:
    """The message as it was, and in a header what, where to, when and why."""
    own: dict[str, Attribute] = {"Raw": {"DataType": "Binary", "BinaryValue": b"\xff"}}
    stored = message(clock, 5, failures=2, body=b"\xff", attributes=own)
    assert outbox.reject([(stored, "broken\x00 pipe")]) == [None]
    about, properties, body = rejected(broker)
    assert about == {
        "reason": "broken\x00 pipe",
        "messageId": "m-1",
        "destination": "orders",
        "dueMs": clock.true_ms + 5,
        "failures": 2,
    }
    assert (body, properties.message_id, properties.headers["Raw"]) == (b"\xff", "m-1", b"\xff")


@pytest.mark.parametrize("name", ["CC", "BCC", "x-death", "n" * 256])
def test_what_amqp_cannot_hold_is_rejected_whole(
    broker: Broker, outbox: RabbitMqOutbox, clock: ManualClock, name: str
) -> None:
    """As JSON, and saying so: no attribute and no byte is lost, and no copy goes astray."""
    attributes: dict[str, Attribute] = {name: {"DataType": "Binary", "BinaryValue": b"orders"}}
    stored = message(clock, message_id="ü" * 250, body=b"\xff", attributes=attributes)
    assert outbox.reject([(stored, "why")]) == [None]
    about, _, body = rejected(broker)
    assert about == {"bodyEncoding": "json"}
    told = json.loads(body)
    assert (told["reason"], told["messageId"]) == ("why", "ü" * 250)
    assert base64.b64decode(told["body"]) == b"\xff"
    assert base64.b64decode(told["attributes"][name]["base64"]) == b"orders"
    assert broker.count("orders") == 0


def test_a_body_too_large_for_the_broker_stays_in_the_store(
    broker: Broker, clock: ManualClock
) -> None:
    """Neither queue can take it; it does not end the channel for those that can be sent."""
    broker.queue("orders")
    store = InMemoryStore(clock)
    store.store([message(clock, message_id="large", body=b"x" * 11), message(clock)])
    with closing(RabbitMqOutbox(broker.url, "orders", clock=clock, max_message_bytes=10)) as outbox:
        outbox.check()
        (failure,) = outbox.reject([(message(clock, body=b"x" * 11), "why")])
        assert failure is not None
        assert isinstance(failure.error, MessageTooLarge)
        done = Dispatcher(store, outbox, clock=clock).dispatch()
    assert [m.message_id for m in done.released] == ["m-1"]
    assert [m.message_id for m in store.pending(2)] == ["large"]


def test_without_its_error_queue_a_message_stays_in_the_store(
    broker: Broker, outbox: RabbitMqOutbox, clock: ManualClock
) -> None:
    """What can be neither delivered nor rejected is counted, and waits."""
    broker.delete_queue(ERRORS)
    store = InMemoryStore(clock)
    store.store([message(clock, destination="nowhere")])
    done = Dispatcher(store, outbox, clock=clock).dispatch()
    assert isinstance(done.outage, QueueMissing)
    assert [m.failures for m in store.pending(1)] == [1]


def test_the_queues_are_looked_for_at_the_start(broker: Broker) -> None:
    """A missing endpoint is an error; a missing error queue is declared; one that is there stays."""
    with closing(RabbitMqOutbox(broker.url, "orders")) as outbox:
        with pytest.raises(QueueMissing, match="orders"):
            outbox.check()
        broker.queue("orders")
        with ThreadPoolExecutor(4) as threads:
            for checked in [threads.submit(outbox.check) for _ in range(4)]:
                checked.result()
    with broker.channel() as on:
        # Declared again as it should be: anything else would be refused.
        kept = {"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1}
        on.queue_declare(ERRORS, durable=True, arguments=kept)
        on.queue_delete(ERRORS)
        on.queue_declare(ERRORS, durable=True)
    with closing(RabbitMqOutbox(broker.url, "orders")) as outbox:
        outbox.check()


def test_bad_settings_are_found_at_once(broker: Broker) -> None:
    """Before anything is connected to."""
    with pytest.raises(ConfigurationError, match="amqp://"):
        RabbitMqOutbox("http://host", "orders")
    with pytest.raises(InvalidEndpoint, match="199"):
        RabbitMqOutbox(broker.url, "n" * 200)


@pytest.mark.parametrize("what", ["unreachable", "denied", "silent", "full"])
def test_an_outage_is_not_the_messages_fault(broker: Broker, what: str) -> None:
    """Messages are held and keep their failure count; none goes to the error queue."""
    clock = SystemClock()
    store = InMemoryStore(clock)
    store.store([message(ManualClock(PAST_MS))])
    arguments = {"x-max-length": 0, "x-overflow": "reject-publish"} if what == "full" else {}
    broker.queue("orders", arguments)
    with DeafProxy(broker.port) as proxy, closed_port() as closed:
        url = {
            "unreachable": broker.url.replace(f":{broker.port}", f":{closed}"),
            "denied": broker.url.replace("guest:guest", "guest:wrong"),
            "silent": broker.through(proxy),
            "full": broker.url,
        }[what]
        with closing(
            RabbitMqOutbox(url, "orders", connect_seconds=0.5, confirm_seconds=0.5)
        ) as outbox:
            if what == "silent":
                # A busy broker takes longer than this outbox waits.
                wait_for(lambda: outbox.send([message(ManualClock(PAST_MS))]) == [None])
                proxy.swallowing.set()
            done = Dispatcher(store, outbox, clock=clock).dispatch()
            proxy.swallowing.clear()
    assert [m.message_id for m in done.held] == ["m-1"]
    assert [m.failures for m in store.pending(1)] == [0]
    assert done.outage is not None
