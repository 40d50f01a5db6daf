"""The input of a schedule, to the last character: what EventBridge Scheduler sends months later."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace

import pytest

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import string
from sqsdelay.core.schedule_input import (
    COPY,
    MAX_INPUT_BYTES,
    amendment_of,
    check_keepable,
    copy_of,
    description_of,
    input_of,
    kept_since_ms_of,
    message_of,
    name_of,
    prefix_of,
)
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import InvalidMessage, MessageTooLarge, StoreError

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders-parking"
DUE_MS = 1_800_000_000_123
FIRES_AT = 1_799_998_500
MESSAGE = StoredMessage(
    message_id="m-1",
    destination="orders.fifo",
    due_ms=DUE_MS,
    body="grün".encode(),
    attributes={
        "Raw": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
        "Count": {"DataType": "Number", "StringValue": "1"},
        "sqsdelay.MessageDeduplicationId": {"DataType": "String", "StringValue": "d-1"},
    },
    group_id="g-1",
    trace_header="Root=1-5759e988-bd862e3fe1be46a994272793",
)


def made(message: StoredMessage = MESSAGE, *, since_ms: int = 77) -> str:
    return input_of(message, URL, fires_at=FIRES_AT, kept_since_ms=since_ms)


def test_the_request_is_a_send_to_the_parking_queue() -> None:
    """SendMessage's parameters: the body as it is, the rest of the copy in one attribute, and hidden until a
    quarter of an hour before it is due."""
    request = json.loads(made())
    rest = json.loads(request["MessageAttributes"].pop(COPY)["StringValue"])
    assert request == {
        "QueueUrl": URL,
        "DelaySeconds": DUE_MS // 1000 - 840 - FIRES_AT,
        "MessageBody": "grün",
        "MessageAttributes": {},
    }
    ids = rest["attributes"]
    assert re.fullmatch(r"hop\.77\.[0-9a-f]{64}", ids.pop("MessageDeduplicationId"))
    assert ids == {
        "SentTimestamp": f"{FIRES_AT}000",
        "MessageGroupId": "m-1",
        "AWSTraceHeader": "Root=1-5759e988-bd862e3fe1be46a994272793",
    }
    assert rest["messageAttributes"] == {
        "Raw": {"dataType": "Binary.png", "binaryValue": "AP8="},
        "Count": {"dataType": "Number", "stringValue": "1"},
        "NServiceBus.AmazonSQS.DelaySeconds": text("1501"),
        "sqsdelay.DueAt": text(str(DUE_MS)),
        "sqsdelay.MessageGroupId": text("g-1"),
        "sqsdelay.MessageDeduplicationId": text("d-1"),
        "sqsdelay.MessageId": text("m-1"),
    }


def text(value: str) -> dict[str, str]:
    return {"dataType": "String", "stringValue": value}


def test_what_is_not_there_is_left_out() -> None:
    """No group, no trace."""
    plain = replace(MESSAGE, attributes={}, group_id=None, trace_header=None)
    copy = copy_of(made(plain))
    assert copy.trace_header is None
    assert set(copy.attributes) == {
        "NServiceBus.AmazonSQS.DelaySeconds",
        "sqsdelay.DueAt",
        "sqsdelay.MessageId",
    }
    assert message_of(made(plain), "orders.fifo") == plain


def test_it_is_read_back_whole() -> None:
    """As it was stored, and when."""
    assert message_of(made(), "orders.fifo") == MESSAGE
    assert kept_since_ms_of(made(since_ms=1_799_000_000_000)) == 1_799_000_000_000


def test_the_copy_is_the_one_the_queue_will_have() -> None:
    """For what is found in the error queue: with the attributes of its delay, ids and trace."""
    copy = copy_of(made())
    assert copy.body == "grün"
    assert (copy.message_id, copy.group_id) == ("m-1", "m-1")
    assert copy.attributes["Raw"] == {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"}
    assert copy.attributes["sqsdelay.DueAt"]["StringValue"] == str(DUE_MS)
    assert copy.trace_header == "Root=1-5759e988-bd862e3fe1be46a994272793"
    assert (copy.receipt_handle, copy.sqs_message_id, copy.received_at) == ("", "", 0)
    assert (copy.sent_ms, copy.unreadable) == (FIRES_AT * 1000, None)


def test_one_deduplication_id_for_one_stay() -> None:
    """The service may invoke twice; another stay, due time or message has another."""
    ids = {
        str(copy_of(text).deduplication_id).split(".")[-1]
        for text in (
            made(),
            made(),
            made(since_ms=78),
            made(replace(MESSAGE, due_ms=DUE_MS + 1)),
            made(replace(MESSAGE, message_id="m-2")),
        )
    }
    assert len(ids) == 4


def test_names_are_hashes_of_the_whole_id() -> None:
    """64 characters of those a name may have; the same for the same id, always."""
    mine, other = prefix_of("https://sqs/orders", "m"), prefix_of("https://sqs/invoices", "m")
    digest = hashlib.sha256(b"m-1").hexdigest()[:45]
    assert name_of("m-1", mine) == f"{mine}{digest}"
    assert re.fullmatch(r"m\.[0-9a-f]{16}\.[0-9a-f]{45}", name_of("\N{SNOWMAN}\ud800", mine))
    assert len({name_of(f"m-{n}", mine) for n in range(100)}) == 100
    assert name_of("m-1", mine) != name_of("m-1", other)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"MessageAttributes": {"a": {}}}', '{"MessageAttributes": 1}', "[" * 9_999],
)
def test_what_is_none_of_ours_says_so(text: str) -> None:
    """Somebody's own schedule in our group, or theirs with our name."""
    with pytest.raises(StoreError, match="is not a message of sqsdelay"):
        message_of(text, "orders")
    with pytest.raises(ValueError, match=r"no SendMessage|Expecting"):
        copy_of(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"at": "x"}', "None"])
def test_an_amendment_is_kept_in_a_description(text: str) -> None:
    """Within its 512 characters, whatever the id; anything else is none."""
    for amendment in (
        Amendment(message_id="m", at_ms=5),
        Amendment(message_id="m", at_ms=5, due_ms=6),
        Amendment(message_id="m", at_ms=5, due_ms=6, cancelled_ms=4),
    ):
        described = description_of(amendment)
        assert len(described) <= 512
        assert amendment_of("m", described) == amendment
    assert json.loads(description_of(Amendment(message_id="m", at_ms=5))) == {"at": 5}
    with pytest.raises(StoreError, match="is not an amendment of sqsdelay"):
        amendment_of("m", text)


def test_the_largest_input_fits_and_one_byte_more_does_not() -> None:
    """The limit is of the JSON, in UTF-8."""
    room = MAX_INPUT_BYTES - len(made().encode()) + len("grün".encode())
    assert len(made(replace(MESSAGE, body=b"x" * room)).encode()) == MAX_INPUT_BYTES
    words = f"takes {MAX_INPUT_BYTES + 1} bytes .* {MAX_INPUT_BYTES};"
    with pytest.raises(MessageTooLarge, match=words):
        made(replace(MESSAGE, body=b"x" * (room + 1)))


def test_attributes_that_leave_no_room_are_counted() -> None:
    """Ten of the user's: what SQS takes, and a hop does not."""
    many = {f"a{n}": string("x") for n in range(9)}
    with pytest.raises(InvalidMessage, match=r"m-1 has 9 attributes, .* of its delay; use fewer$"):
        made(replace(MESSAGE, attributes=many))


def test_what_can_be_kept() -> None:
    """Of this endpoint, by whatever name it was given; a destination of 512 characters."""
    orders = Endpoint.parse("orders.fifo")
    for destination in (
        "orders.fifo",
        "arn:aws:sqs:eu-west-1:123456789012:orders.fifo",
        "https://sqs/" + "x" * (512 - 12 - 12) + "/orders.fifo",
    ):
        check_keepable(replace(MESSAGE, destination=destination), orders)
    long = replace(MESSAGE, destination="https://sqs/" + "x" * (513 - 12 - 12) + "/orders.fifo")
    with pytest.raises(InvalidMessage, match="destination of 513 characters; a schedule keeps 512"):
        check_keepable(long, orders)
    with pytest.raises(InvalidMessage, match=r"send to orders-parking alone"):
        check_keepable(replace(MESSAGE, destination="orders"), orders)
