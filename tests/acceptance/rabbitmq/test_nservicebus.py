"""Sharing one infrastructure with NServiceBus, whichever declares it first."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pika
import pytest
from pika.compat import long
from pika.exceptions import ChannelClosedByBroker
from typer.testing import CliRunner

from sqsdelay.cli.rabbitmq import app
from sqsdelay.errors import ConfigurationError, QueueUnavailable
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender, Topology, bind, declare
from sqsdelay.rabbitmq.publisher import Publisher
from tests.acceptance.rabbitmq.broker import Broker, Inbox

DELAY_HEADER = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
SHARED = Topology("nsb.v2")


def nservicebus_declares(channel: Any) -> None:
    """The calls of NServiceBus's DelayInfrastructure, value for value and type for type."""
    binding_key = "1.#"
    for level in range(27, -1, -1):
        name = f"nsb.v2.delay-level-{level:02}"
        channel.exchange_declare(name, "topic", durable=True)
        arguments = {
            "x-queue-type": "quorum",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-message-ttl": long((1 << level) * 1000),  # .NET sends it as 64 bits
            "x-dead-letter-exchange": f"nsb.v2.delay-level-{level - 1:02}"
            if level
            else "nsb.v2.delay-delivery",
        }
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(name, name, binding_key)
        binding_key = "*." + binding_key
    binding_key = "0.#"
    for level in range(27, 0, -1):
        name, below = f"nsb.v2.delay-level-{level:02}", f"nsb.v2.delay-level-{level - 1:02}"
        channel.exchange_bind(below, name, binding_key)
        binding_key = "*." + binding_key
    channel.exchange_declare("nsb.v2.delay-delivery", "topic", durable=True)
    channel.exchange_bind("nsb.v2.delay-delivery", "nsb.v2.delay-level-00", binding_key)


def nservicebus_endpoint(channel: Any, name: str) -> None:
    """An endpoint in the conventional routing topology, as its installer leaves it."""
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    channel.exchange_declare(name, "fanout", durable=True)
    channel.queue_bind(name, name, "")
    channel.exchange_bind(name, "nsb.v2.delay-delivery", f"#.{name}")


def nservicebus_sends(channel: Any, endpoint: str, body: bytes, *, delay: int) -> None:
    """What its sender does with a delayed message: bind the endpoint's exchange, then publish."""
    channel.exchange_bind(endpoint, "nsb.v2.delay-delivery", f"#.{endpoint}")
    channel.basic_publish(
        f"nsb.v2.delay-level-{delay.bit_length() - 1:02}",
        ".".join(f"{delay:028b}") + f".{endpoint}",
        body,
        pika.BasicProperties(
            delivery_mode=2,
            message_id="nsb-1",
            headers={
                DELAY_HEADER: delay,
                "NServiceBus.TimeSent": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S:%f Z"),
            },
        ),
        mandatory=True,
    )


def test_declared_by_nservicebus_first(broker: Broker) -> None:
    """We find it equal; a message of ours reaches its endpoint once, though it is bound twice."""
    with broker.channel() as channel:
        nservicebus_declares(channel)
        nservicebus_endpoint(channel, "sales")
        assert [p.text for p in broker.problems(SHARED) if p.fatal] == []
        declare(broker.url, SHARED)
        with (
            RabbitMqSender(broker.url, prefix="nsb.v2", without_alternate_exchange=True) as sender,
            Inbox(broker.url, "sales") as inbox,
        ):
            sender.send("sales", "from sqsdelay", delay=1)
            inbox.wait(1)
            time.sleep(0.5)
            (arrival,) = inbox.arrivals
    assert arrival.body == b"from sqsdelay"
    assert arrival.properties.headers[DELAY_HEADER] == 1


def test_declared_by_us_first(broker: Broker) -> None:
    """It finds ours equal; its message reaches our queue at the delay it asked for."""
    broker.ready("orders", prefix="nsb.v2")
    bind(broker.url, "orders", SHARED, conventional=True)
    with broker.channel() as channel:
        nservicebus_declares(channel)
        with Inbox(broker.url, "orders") as inbox:
            started = time.time() * 1000
            nservicebus_sends(channel, "orders", b"from NServiceBus", delay=2)
            (arrival,) = inbox.wait(1)
    assert arrival.body == b"from NServiceBus"
    assert arrival.at_ms - started >= 2000


def test_an_infrastructure_that_differs_is_not_touched(broker: Broker) -> None:
    """Another queue of a level's name is found by verify, and refused by declare."""
    broker.queue("nsb.v2.delay-level-05", {})
    shown = broker.cli("--prefix", "nsb.v2", "verify")
    assert shown.returncode == 1
    assert "problem: queue nsb.v2.delay-level-05 differs from what is expected" in shown.stdout
    refused = broker.cli("--prefix", "nsb.v2", "declare")
    assert refused.returncode == 1
    assert "PRECONDITION_FAILED" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_processes_declaring_at_once(broker: Broker) -> None:
    """Endpoints start together after a deployment: all succeed, and the result is whole."""
    with ThreadPoolExecutor(4) as threads:
        declared = [threads.submit(broker.cli, "--prefix", "nsb.v2", "declare") for _ in range(4)]
    for done in (each.result() for each in declared):
        assert done.returncode == 0
        assert done.stderr.startswith("warning: exchange")
        assert "Traceback" not in done.stderr
    assert [p for p in broker.problems(SHARED) if p.fatal] == []


def test_a_declaration_says_if_the_policy_could_not_be_looked_for(broker: Broker) -> None:
    """A script that goes on after it would not know whether messages can hold up all others."""
    untold = patch.object(Publisher, "uncaught", return_value=QueueUnavailable("away"))
    with untold, patch.dict("os.environ", broker.environment):
        done = CliRunner().invoke(app, ["--prefix", "nsb.v2", "declare"])
    assert isinstance(done.exception, QueueUnavailable)


def test_two_infrastructures_side_by_side(broker: Broker) -> None:
    """A prefix makes one that NServiceBus's teardown does not touch."""
    broker.ready(prefix="nsb.v2")
    broker.ready("orders", prefix="acme")
    with (
        RabbitMqSender(broker.url, prefix="acme") as ours,
        RabbitMqSender(broker.url, prefix="nsb.v2", without_alternate_exchange=True) as shared,
        Inbox(broker.url, "orders") as inbox,
    ):
        ours.send_many("orders", [RabbitMqMessage("a", delay=1)])
        shared.send_many("orders", [RabbitMqMessage("b", delay=1)])
        assert {a.body for a in inbox.wait(2)} == {b"a", b"b"}
    assert broker.cli("--prefix", "nsb.v2", "teardown", "--force").returncode == 0
    with pytest.raises(ChannelClosedByBroker, match="no queue"):
        broker.count("nsb.v2.delay-level-00")
    assert broker.count("acme.delay-level-00") == 0


def test_joining_without_the_policy_is_a_decision(broker: Broker) -> None:
    """There a message for a queue that has gone holds up everyone's; the default joins nobody."""
    assert Topology().prefix == "sqsdelay"
    broker.ready("orders", prefix="nsb.v2")
    with RabbitMqSender(broker.url, prefix="nsb.v2") as sender:
        assert sender.send("orders", "at once").error is None
        with pytest.raises(ConfigurationError, match="has no alternate exchange") as caught:
            sender.send("orders", "hi", delay=1)
        (result,) = sender.send_many("orders", [RabbitMqMessage("hi", delay=1)])
    assert isinstance(result.error, ConfigurationError)
    for way in ("rabbitmqctl set_policy", "prefix of your own", "without_alternate_exchange=True"):
        assert way in str(caught.value)
    assert broker.count("nsb.v2.delay-level-00") == 0
    send = ("--prefix", "nsb.v2", "send", "orders", "--body", "hi", "--delay", "1")
    refused = broker.cli(*send)
    assert refused.returncode == 1
    assert "--without-alternate-exchange" in refused.stderr
    assert broker.cli(*send, "--without-alternate-exchange").returncode == 0
    warned = broker.cli("--prefix", "nsb.v2", "declare")
    assert warned.returncode == 0
    assert "rabbitmqctl set_policy" in warned.stderr
