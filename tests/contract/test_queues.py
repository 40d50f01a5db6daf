"""One suite over every `Queues`: in memory, boto3 on moto (virtual time), boto3 on a local AWS."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import time_machine
from botocore.config import Config
from moto import mock_aws

from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import OutgoingMessage, string
from sqsdelay.errors import QueueMissing, QueueUnavailable
from sqsdelay.ports.queues import Failure, Queues, SendReceipt
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.testing import InMemoryQueues, ManualClock
from sqsdelay.testing.local_aws import LocalAws
from tests.functional.counted_requests import TravellingClock
from tests.services.endpoints import create_endpoint

HOP = 2


@dataclass
class Broker:
    """A broker under test, with an endpoint of a short hop and a way to let time pass."""

    name: str
    queues: Queues
    endpoint: Endpoint
    advance: Callable[[float], object]

    @property
    def queue(self) -> str:
        return self.queues.url(self.endpoint.queue)

    @property
    def delay_queue(self) -> str:
        return self.queues.url(self.endpoint.delay_queue)

    def receive(self, url: str) -> list[Any]:
        return list(self.queues.receive_batch(url, wait_seconds=0))


@pytest.fixture(params=["memory", "moto", "local-aws"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    endpoint = Endpoint.parse(f"orders-{uuid.uuid4().hex[:8]}")
    if request.param == "memory":
        clock = ManualClock()
        memory = InMemoryQueues(clock)
        memory.create_endpoint(endpoint.name, hop_seconds=HOP)
        yield Broker("memory", memory, endpoint, clock.advance)
    elif request.param == "moto":
        with mock_aws(), time_machine.travel(1_800_000_000, tick=False) as travel:
            client = boto3.client("sqs")
            create_endpoint(client, endpoint, hop_seconds=HOP)
            queues = SqsQueues(client, clock=TravellingClock())
            yield Broker("moto", queues, endpoint, travel.shift)
    else:
        aws: LocalAws = request.getfixturevalue("local_aws")
        create_endpoint(aws.client("sqs"), endpoint, hop_seconds=HOP)
        yield Broker("local-aws", SqsQueues(aws.client("sqs")), endpoint, time.sleep)


def fifo(body: str, *, group: str = "g", deduplication: str = "d") -> OutgoingMessage:
    return OutgoingMessage(body, {}, len(body), None, group, deduplication)


def standard(body: str, delay_seconds: int | None = None) -> OutgoingMessage:
    return OutgoingMessage(body, {}, len(body), delay_seconds)


def test_a_message_arrives_with_all_it_was_sent_with(broker: Broker) -> None:
    """Body and attributes of every type, and the broker's own stamps."""
    attributes: Any = {
        "s": string("☀ text"),
        "n": {"DataType": "Number.int", "StringValue": "7"},
        "b": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
    }
    (receipt,) = broker.queues.send_batch(broker.queue, [OutgoingMessage("☀", attributes, 99)])
    assert isinstance(receipt, SendReceipt)
    (copy,) = broker.receive(broker.queue)
    assert (copy.body, copy.attributes) == ("☀", attributes)
    assert copy.sqs_message_id == receipt.sqs_message_id
    assert copy.receive_count == 1
    assert copy.first_receive_ms >= copy.sent_ms


def test_a_message_timer_holds_a_message_on_a_standard_queue(broker: Broker) -> None:
    """Invisible before its time, visible after."""
    broker.queues.send_batch(broker.queue, [standard("later", 1), standard("now", 0)])
    assert [copy.body for copy in broker.receive(broker.queue)] == ["now"]
    broker.advance(1.1)
    assert [copy.body for copy in broker.receive(broker.queue)] == ["later"]


def test_the_delay_queue_holds_every_message_for_a_hop(broker: Broker) -> None:
    """The queue's own delay applies, and groups do not block each other."""
    broker.queues.send_batch(
        broker.delay_queue, [fifo(f"{n}", group=f"g{n}", deduplication=f"d{n}") for n in range(10)]
    )
    broker.advance(HOP - 1)
    assert broker.receive(broker.delay_queue) == []
    broker.advance(1.1)
    copies = broker.receive(broker.delay_queue)
    assert sorted(copy.body for copy in copies) == [f"{n}" for n in range(10)]
    assert all(copy.first_receive_ms - copy.sent_ms >= HOP * 1000 for copy in copies)


def test_the_same_deduplication_id_is_one_message(broker: Broker) -> None:
    """Within five minutes a second copy is accepted and swallowed."""
    broker.queues.send_batch(broker.delay_queue, [fifo("first")])
    broker.queues.send_batch(broker.delay_queue, [fifo("second")])
    broker.advance(HOP + 0.1)
    assert [copy.body for copy in broker.receive(broker.delay_queue)] == ["first"]


def test_deduplication_survives_a_delete(broker: Broker) -> None:
    """A copy requeued again after the first was already deleted is still the same message.

    moto forgets a deduplication id once its message is deleted, which SQS does not; there this
    test only sees that both sends are accepted, and proves nothing.
    """
    broker.queues.send_batch(broker.delay_queue, [fifo("first")])
    broker.advance(HOP + 0.1)
    (copy,) = broker.receive(broker.delay_queue)
    assert broker.queues.delete_batch(broker.delay_queue, [copy]) == [None]
    (again,) = broker.queues.send_batch(broker.delay_queue, [fifo("second")])
    assert isinstance(again, SendReceipt)
    broker.advance(HOP + 0.1)
    copies = broker.receive(broker.delay_queue)
    assert [copy.body for copy in copies] == (["second"] if broker.name == "moto" else [])


def test_a_received_copy_is_hidden_until_told_otherwise(broker: Broker) -> None:
    """Hiding a copy for a second makes it come back then, counted as a redelivery."""
    broker.queues.send_batch(broker.queue, [standard("x")])
    (copy,) = broker.receive(broker.queue)
    assert broker.receive(broker.queue) == []
    assert broker.queues.hide_batch(broker.queue, [(copy, 1)]) == [None]
    broker.advance(1.1)
    (again,) = broker.receive(broker.queue)
    assert (again.receive_count, again.first_receive_ms) == (2, copy.first_receive_ms)


def test_a_deleted_copy_is_gone(broker: Broker) -> None:
    """Delete answers per entry."""
    broker.queues.send_batch(broker.queue, [standard("a"), standard("b")])
    copies = broker.receive(broker.queue)
    assert broker.queues.delete_batch(broker.queue, copies) == [None] * len(copies)


def test_a_refused_entry_fails_alone(broker: Broker) -> None:
    """What SQS refuses for good fails for good, and its neighbour is sent.

    moto takes a forbidden character and the local AWS takes a message timer of 901 s, which SQS does
    not; so each is asked what it does refuse.
    """
    refused = standard("bad\x00") if broker.name == "local-aws" else standard("bad", 901)
    entries = [standard("good"), refused]
    good, bad = broker.queues.send_batch(broker.queue, entries)
    assert isinstance(good, SendReceipt)
    assert isinstance(bad, Failure)
    assert not bad.transient
    assert [copy.body for copy in broker.receive(broker.queue)] == ["good"]


def test_a_missing_queue_is_named(broker: Broker) -> None:
    """Looking it up raises; sending to it fails each entry, for the time being."""
    with pytest.raises(QueueMissing, match="nowhere does not exist"):
        broker.queues.url(QueueRef("nowhere"))
    url = broker.queue.replace(broker.endpoint.name, "nowhere")
    (failure,) = broker.queues.send_batch(url, [standard("x")])
    assert isinstance(failure, Failure)
    assert failure.transient
    assert isinstance(failure.error, QueueMissing)


def test_attributes_of_the_delay_queue(broker: Broker) -> None:
    """The worker reads the hop from the queue."""
    attributes = broker.queues.attributes(broker.delay_queue)
    assert (attributes["DelaySeconds"], attributes["FifoQueue"]) == (str(HOP), "true")


def test_attributes_count_what_is_visible_in_flight_and_delayed(broker: Broker) -> None:
    """On the real SQS approximately; what `sqsdelay status` shows."""
    entries = [standard("a"), standard("b"), standard("c"), standard("later", 600)]
    broker.queues.send_batch(broker.queue, entries)
    broker.queues.receive_batch(broker.queue, wait_seconds=0, limit=2)
    attributes = broker.queues.attributes(broker.queue)
    counts = [
        attributes[f"ApproximateNumberOfMessages{which}"] for which in ("", "NotVisible", "Delayed")
    ]
    assert counts == ["1", "2", "1"]


def test_a_standard_queue_takes_a_message_group(broker: Broker) -> None:
    """Fair queues have them; a rejected message of 1 MiB keeps its id there."""
    entry = OutgoingMessage("x", {}, 1, group_id="m-1")
    (receipt,) = broker.queues.send_batch(broker.queue, [entry])
    assert isinstance(receipt, SendReceipt)
    (copy,) = broker.receive(broker.queue)
    assert copy.group_id == "m-1"


def test_the_brokers_clock_is_learned(broker: Broker) -> None:
    """One cheap request is enough to know the broker's time to within a second or two."""
    broker.queues.synchronise(broker.endpoint.queue)
    clock = broker.queues.broker_clock
    assert clock.synchronised
    assert -2000 <= clock.now_ms() - clock.local.now_ms() <= 0


def test_an_unreachable_service_is_unavailable() -> None:
    """No answer is a typed error of the port, and no boto3 error escapes."""
    config = Config(retries={"total_max_attempts": 1})
    client = boto3.client("sqs", endpoint_url="http://127.0.0.1:9", config=config)
    queues = SqsQueues(client)
    with pytest.raises(QueueUnavailable, match="orders cannot be used now"):
        queues.url(QueueRef("orders"))
    (failure,) = queues.send_batch("http://127.0.0.1:9/1/orders", [standard("x")])
    assert isinstance(failure, Failure)
    assert failure.transient


def test_a_queues_own_limit_refuses_what_is_larger_and_nothing_else(broker: Broker) -> None:
    """For good, the entry alone; attributes count."""
    limit = 2_048
    name = f"small-{uuid.uuid4().hex[:8]}"
    if isinstance(broker.queues, InMemoryQueues):
        url = broker.queues.create_queue(name, MaximumMessageSize=str(limit))
    else:
        client = broker.queues._client  # type: ignore[attr-defined]
        given = {"MaximumMessageSize": str(limit)}
        url = client.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    assert broker.queues.attributes(url)["MaximumMessageSize"] == str(limit)
    small, large = standard("a"), standard("b" * (limit + 1))
    sent, refused = broker.queues.send_batch(url, [small, large])
    assert isinstance(sent, SendReceipt)
    assert isinstance(refused, Failure)
    assert not refused.transient
    (alone,) = broker.queues.send_batch(url, [large])
    assert isinstance(alone, Failure)
    assert not alone.transient
    assert [copy.body for copy in broker.receive(url)] == ["a"]
