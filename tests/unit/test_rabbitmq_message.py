"""What travels with a message, and what is refused before it could end a channel."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock, patch

import pytest
from pika import BasicProperties

from sqsdelay import Message
from sqsdelay.core.delay import Reject
from sqsdelay.errors import InvalidMessage, MessageTooLarge
from sqsdelay.ports.queues import Delivery
from sqsdelay.rabbitmq import RabbitMqSender
from sqsdelay.rabbitmq.message import RabbitMqMessage, checked, delayed
from sqsdelay.rabbitmq.timeouts import RabbitMqTimeouts, Received, read_timeout


def sent(message: RabbitMqMessage, *, seconds: int = 5) -> BasicProperties:
    _, given = checked(message, limit=10, user="guest")
    return delayed(given, seconds=seconds, due_ms=1_700_000_005_000) if seconds else given


def body_of(body: Any) -> bytes:
    return checked(RabbitMqMessage(body), limit=6, user="guest")[0]


def test_a_delayed_message_says_its_delay_and_its_due_time() -> None:
    """NServiceBus's header as the 32-bit integer it casts to, and our due time as text."""
    properties = sent(RabbitMqMessage("hi", message_id="id-1"))
    assert properties.headers == {
        "NServiceBus.Transport.RabbitMQ.DelayInSeconds": 5,
        "sqsdelay.WasDueAt": "1700000005000",
    }
    assert b"DelayInSecondsI\x00\x00\x00\x05" in b"".join(properties.encode())
    assert (properties.delivery_mode, properties.message_id) == (2, "id-1")


def test_properties_and_headers_are_preserved() -> None:
    """What the user set leaves as it came, and the user's own object stays untouched."""
    given = BasicProperties(
        content_type="application/json", correlation_id="c", priority=3, headers={"tenant": "a"}
    )
    properties = sent(RabbitMqMessage(b"{}", headers={"n": 2**40}, properties=given))
    kept = (properties.content_type, properties.correlation_id, properties.priority)
    assert kept == ("application/json", "c", 3)
    assert (properties.headers["tenant"], properties.headers["n"]) == ("a", 2**40)
    assert given.headers == {"tenant": "a"}
    assert given.delivery_mode is None


def test_traces_of_an_earlier_delay_are_removed() -> None:
    """With them the broker takes the second delay for a cycle and drops the message."""
    traces = {
        "x-death": [{"queue": "nsb.v2.delay-level-02"}],
        "x-first-death-queue": "q",
        "x-last-death-reason": "expired",
        "NServiceBus.Transport.RabbitMQ.DelayInSeconds": 77,
        "sqsdelay.DueAt": "1",
        "sqsdelay.WasDueAt": "1",
    }
    again = RabbitMqMessage("hi", headers={**traces, "kept": "yes"})
    assert sent(again, seconds=0).headers == {"kept": "yes"}


def test_an_expiration_and_copies_are_refused_on_a_delayed_message() -> None:
    """The broker would take the shorter of it and the level's: early. Sender-selected copies would be routed
    by keys that hold no delay."""
    for expiration in ("1000", b"1000"):  # pika takes both
        message = RabbitMqMessage("hi", properties=BasicProperties(expiration=expiration))
        with pytest.raises(InvalidMessage, match=r"expiration=b?'1000' on a delayed message"):
            sent(message)
        assert sent(message, seconds=0).expiration == expiration
    for name in ("CC", "BCC"):
        with pytest.raises(InvalidMessage, match=f"header '{name}' on a delayed message"):
            sent(RabbitMqMessage("hi", headers={name: ["other"]}))


@pytest.mark.parametrize(
    "message",
    [
        RabbitMqMessage("hi", headers={"x": object()}),
        RabbitMqMessage("hi", headers={"x" * 256: "long name"}),
        RabbitMqMessage("hi", headers={"x": 2**70}),
        RabbitMqMessage("hi", properties=BasicProperties(correlation_id="c" * 256)),
        RabbitMqMessage("hi", properties=BasicProperties(content_type=5)),
        RabbitMqMessage("hi", properties=BasicProperties(expiration="soon")),
        RabbitMqMessage("hi", properties=BasicProperties(expiration="-1")),
        RabbitMqMessage("hi", properties=BasicProperties(expiration="٣")),
        RabbitMqMessage("hi", properties=BasicProperties(expiration=str(2**32))),
        RabbitMqMessage("hi", headers={"CC": "orders"}),
        RabbitMqMessage("hi", headers={"BCC": None}),
    ],
)
def test_what_the_broker_would_end_the_channel_for_is_refused(message: RabbitMqMessage) -> None:
    """Found here, it spoils one message; found by the broker, everyone's on the channel."""
    with pytest.raises(InvalidMessage, match=r"cannot be written in AMQP 0-9-1|broker would end"):
        sent(message, seconds=0)


def test_headers_beyond_one_frame_are_refused() -> None:
    """The broker ends a connection that sends them, and could not deliver them with its own added."""
    with pytest.raises(MessageTooLarge, match="move some into the body"):
        sent(RabbitMqMessage("hi", headers={"x": "y" * 131_000}))


def test_a_foreign_user_id_is_refused() -> None:
    """The broker closes the channel over it."""
    with pytest.raises(InvalidMessage, match="user_id='eve', but the connection is 'guest'"):
        sent(RabbitMqMessage("hi", properties=BasicProperties(user_id="eve")))
    own = RabbitMqMessage("hi", properties=BasicProperties(user_id="guest"))
    assert sent(own).user_id == "guest"


def test_bodies() -> None:
    """Text goes in UTF-8, bytes as they are; size is counted in bytes."""
    assert body_of("日本") == "日本".encode()
    assert body_of(b"\xff") == b"\xff"
    with pytest.raises(MessageTooLarge, match="body of 9 bytes; the limit is 6"):
        body_of("日本語")
    with pytest.raises(InvalidMessage, match="body is dict; give text or bytes"):
        body_of({})
    with pytest.raises(InvalidMessage, match="cannot be written in UTF-8"):
        body_of("\ud800")


def test_what_is_not_a_message_is_told_as_its_result() -> None:
    """Also a message for SQS; nothing is asked of a broker for them."""
    given: list[Any] = ["x", Message("y", message_id="m")]
    with RabbitMqSender("amqp://127.0.0.1:1") as sender:
        text, other = sender.send_many("orders", given)
    told = "is not a RabbitMqMessage; give RabbitMqMessage(body, …)"
    assert (str(text.error), other.message_id) == (f"a str {told}", "m")
    assert str(other.error) == f"a Message {told}"


def test_a_header_that_pika_reads_and_cannot_write_goes_to_the_error_queue() -> None:
    """A whole number of more than 64 bits: it ended the timeout manager, at each start anew."""
    headers = {"score": 2**70, "sqsdelay.Destination": "orders", "sqsdelay.DueAt": "5"}
    given = BasicProperties(headers=headers, message_id="m")
    rejected = read_timeout(given, b"x")
    assert isinstance(rejected, Reject)
    transport, publish = RabbitMqTimeouts("amqp://localhost", "orders"), Mock()
    with patch.object(transport, "_publish", publish):
        received = Received(Mock(), Mock(), Mock(), given, b"x")
        transport.reject_unreadable([Delivery(rejected, received)])
    (delivery,), to_error_queue = publish.call_args.args
    publication = to_error_queue(delivery)
    written = publication.properties
    told = json.loads(written.headers["sqsdelay.Error"])
    assert (publication.body, written.message_id) == (b"x", "m")
    assert f"'score': {2**70}" in told["properties"]
    assert told["reason"].startswith("properties cannot be written in AMQP 0-9-1")
