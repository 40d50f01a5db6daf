"""Delays on a real broker: on time, whole, and by the levels the seed names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest
from kombu.connection import Connection
from kombu.entity import Queue
from pika.exceptions import ChannelClosedByBroker

from sqsdelay.errors import ConfigurationError, InvalidDelay, QueueMissing
from sqsdelay.rabbitmq import (
    MAX_DELAY_SECONDS,
    RabbitMqMessage,
    RabbitMqRoute,
    RabbitMqSender,
    declare,
)
from tests.acceptance.rabbitmq.broker import Broker, Inbox, check_whole, virtual_host
from tests.patience import PATIENCE_SECONDS

MANY = 1000
NAMES = ("eu.orders", "заказы.日本.🐇", "x" * 199, "1.0.1")


def due_header(seconds: float) -> dict[str, Any]:
    return {"due-ms": str(time.time() * 1000 + seconds * 1000)}


@pytest.fixture(scope="module", autouse=True)
def thousand(node: Broker) -> Iterator[Inbox]:
    """1,000 messages of 1 to 20 s on their way while the other tests of this file run."""
    broker = virtual_host(node.url, node.management_url, "sqsdelay-test thousand")
    broker.ready("many")
    with RabbitMqSender(broker.url) as sender, Inbox(broker.url, "many") as inbox:
        delays = [1 + n % 20 for n in range(MANY)]
        messages = [
            RabbitMqMessage(str(n), delay=delay, headers=due_header(delay))
            for n, delay in enumerate(delays)
        ]
        results = sender.send_many("many", messages)
        assert [r.error for r in results] == [None] * MANY
        yield inbox
    virtual_host(node.url, node.management_url, "sqsdelay-test thousand", method="DELETE")


def test_the_seeds_walk_hop_by_hop(shared: Broker) -> None:
    """5 s: four in level 2, one in level 0, and then through the endpoint's hand-over queue."""
    shared.ready("destination")
    with RabbitMqSender(shared.url) as sender, Inbox(shared.url, "destination") as inbox:
        started_ms = time.time() * 1000
        result = sender.send("destination", "hello", delay=5)
        assert result.route is RabbitMqRoute.DELAY_LEVEL
        assert shared.count("sqsdelay.delay-level-02") == 1
        (arrival,) = inbox.wait(1)
    assert arrival.at_ms - started_ms >= 5000
    assert (arrival.routing_key, arrival.body) == ("0." * 25 + "1.0.1.destination", b"hello")
    assert {(d["queue"], d["exchange"]) for d in arrival.properties.headers["x-death"]} == {
        ("sqsdelay.delay-hand-over.destination", "sqsdelay.delay-delivery"),
        ("sqsdelay.delay-level-00", "sqsdelay.delay-level-01"),
        ("sqsdelay.delay-level-02", "sqsdelay.delay-level-02"),
    }


def test_everything_on_a_message_arrives(shared: Broker) -> None:
    """Properties, typed headers and bytes are as sent; the delay and the message id are added."""
    shared.ready("orders", prefix="acme")
    given = pika.BasicProperties(
        content_type="application/json",
        correlation_id="c-1",
        reply_to="answers",
        type="Order",
        priority=4,
        headers={"tenant": "zürich", "retries": 3, "nested": {"list": [1, "two"]}},
    )
    due = datetime.now(UTC) + timedelta(seconds=5)
    with RabbitMqSender(shared.url, prefix="acme") as sender, Inbox(shared.url, "orders") as inbox:
        result = sender.send("orders", b'{"\xff', due_at=due, properties=given, message_id="m-1")
        (arrival,) = inbox.wait(1)
    assert result.due is not None
    assert arrival.at_ms >= due.timestamp() * 1000
    assert arrival.body == b'{"\xff'
    properties = arrival.properties
    told = properties.content_type, properties.correlation_id, properties.reply_to
    assert told == ("application/json", "c-1", "answers")
    assert (properties.type, properties.priority, properties.message_id) == ("Order", 4, "m-1")
    assert properties.delivery_mode == 2
    assert properties.headers["nested"] == {"list": [1, "two"]}
    assert (properties.headers["tenant"], properties.headers["retries"]) == ("zürich", 3)
    assert properties.headers["sqsdelay.WasDueAt"] == str(int(result.due.timestamp() * 1000))


def test_a_received_message_can_be_delayed_again(shared: Broker) -> None:
    """Sent on with its own properties; with the traces of its first delay the broker would drop it."""
    shared.ready("orders")
    with RabbitMqSender(shared.url) as sender, Inbox(shared.url, "orders") as inbox:
        sender.send("orders", "again", delay=1)
        (first,) = inbox.wait(1)
        assert "x-death" in first.properties.headers
        sender.send("orders", first.body, delay=3, properties=first.properties)  # level 0 again
        arrivals = inbox.wait(2)
    assert [a.body for a in arrivals] == [b"again", b"again"]


def test_any_name_of_up_to_199_bytes_is_an_endpoint(shared: Broker) -> None:
    """Dots, digits and any script; the last word's namesake gets nothing: 268,435,455 s wait in level 27."""
    endpoints = {name: name.rpartition(".")[2][:198] for name in NAMES}
    shared.ready(*endpoints, *endpoints.values())
    with RabbitMqSender(shared.url) as sender:
        for endpoint, namesake in endpoints.items():
            sender.send(namesake, "binds it", delay=MAX_DELAY_SECONDS)
            sender.send(endpoint, "delayed", delay=1)
            sender.send(endpoint, "now")
    for endpoint, namesake in endpoints.items():
        assert shared.wait_count(endpoint, 2) == 2
        assert [body for _, _, body in shared.drain(endpoint)] == [b"now", b"delayed"]
        assert shared.count(namesake) == 0
    assert shared.count("sqsdelay.delay-level-27") == len(endpoints)


def test_a_wrong_name_and_a_missing_infrastructure_are_errors_now(broker: Broker) -> None:
    """Not a message that is lost when it is due; and the sender works on."""
    broker.queue("orders")
    with RabbitMqSender(broker.url) as sender:
        with pytest.raises(ConfigurationError, match="declare the delay infrastructure with"):
            sender.send("orders", "hi", delay=5)
        declare(broker.url)
        for delay in (0, 5):
            with pytest.raises(QueueMissing, match=r"ordres.*create the queue, or correct"):
                sender.send("ordres", "hi", delay=delay)
        messages = [RabbitMqMessage("a", delay=delay) for delay in (5, None, -1)]
        results = sender.send_many("ordres", messages)
        assert [type(r.error) for r in results] == [QueueMissing, QueueMissing, InvalidDelay]
        assert sender.send("orders", "hi", delay=5).error is None
    assert broker.count("sqsdelay.delay-level-02") == 1
    with pytest.raises(ChannelClosedByBroker, match="no queue"):
        broker.count("sqsdelay.delay-hand-over.ordres")  # a wrong name leaves nothing behind


def test_kombu_receives_what_was_delayed(shared: Broker) -> None:
    """An AMQP client that no one here wrote (Celery's) decodes the message."""
    shared.ready("orders")
    received: list[Any] = []
    with RabbitMqSender(shared.url) as sender, Connection(shared.url) as connection:
        as_json = pika.BasicProperties(content_type="application/json", content_encoding="utf-8")
        sender.send("orders", json.dumps({"order": 7}), delay=1, properties=as_json)

        def on_message(body: Any, message: Any) -> None:
            received.append(body)
            message.ack()

        queue = Queue("orders", no_declare=True)
        with connection.Consumer(queue, callbacks=[on_message]):
            connection.drain_events(timeout=PATIENCE_SECONDS)
    assert received == [{"order": 7}]
    assert shared.count("orders") == 0


def test_a_thousand_messages_of_1_to_20_seconds(thousand: Inbox) -> None:
    """None early, none lost, none twice."""
    check_whole(thousand.wait(MANY), MANY)
