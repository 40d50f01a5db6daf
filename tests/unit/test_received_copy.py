"""What is read of a copy: every stamp and id of the queue service's, in both of its spellings."""

from __future__ import annotations

from typing import Any

import pytest

from sqsdelay.core.delay import Reject
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import (
    DELAY_SECONDS,
    DUE_AT,
    GROUP_ID,
    MOST_ADDED_BYTES,
    Attribute,
    size_of,
    string,
)
from sqsdelay.core.outgoing import check_whole_way, handed_over, hop_deduplication_id, requeued
from sqsdelay.core.received_message import (
    DelayedMessage,
    ReceivedMessage,
    from_boto3,
    from_lambda_event,
    read_delay,
)
from sqsdelay.errors import MalformedMessage
from sqsdelay.limits import MAX_DUE_MS, MAX_MESSAGE_BYTES

SYSTEM = {
    "SentTimestamp": "1700000000000",
    "ApproximateFirstReceiveTimestamp": "1700000000250",
    "ApproximateReceiveCount": "2",
    "MessageGroupId": "group",
    "MessageDeduplicationId": "deduplication",
    "AWSTraceHeader": "Root=1",
}
WHOLE = ReceivedMessage(
    body="x",
    attributes={"a": string("b"), "raw": {"DataType": "Binary", "BinaryValue": b"\xff"}},
    receipt_handle="handle",
    sqs_message_id="sqs-1",
    received_at=7.5,
    sent_ms=1_700_000_000_000,
    first_receive_ms=1_700_000_000_250,
    receive_count=2,
    group_id="group",
    deduplication_id="deduplication",
    trace_header="Root=1",
)
BOTO3: dict[str, Any] = {
    "Body": "x",
    "ReceiptHandle": "handle",
    "MessageId": "sqs-1",
    "Attributes": SYSTEM,
    "MessageAttributes": WHOLE.attributes,
}
LAMBDA: dict[str, Any] = {
    "body": "x",
    "receiptHandle": "handle",
    "messageId": "sqs-1",
    "attributes": SYSTEM,
    "messageAttributes": {
        "a": {"dataType": "String", "stringValue": "b"},
        "raw": {"dataType": "Binary", "binaryValue": "/w=="},
    },
}


def test_all_that_a_copy_says_is_read() -> None:
    """boto3's spelling and Lambda's make the same copy."""
    assert from_boto3(BOTO3, received_at=7.5) == WHOLE
    assert from_lambda_event(LAMBDA, received_at=7.5) == WHOLE


def test_a_copy_may_say_little() -> None:
    """A body and a receipt handle are enough; what is not told is None, and the id empty."""
    bare = ReceivedMessage(
        body="x", attributes={}, receipt_handle="handle", sqs_message_id="", received_at=7.5
    )
    assert from_boto3({"Body": "x", "ReceiptHandle": "handle"}, received_at=7.5) == bare
    assert from_lambda_event({"body": "x", "receiptHandle": "handle"}, received_at=7.5) == bare


def test_a_copy_without_body_or_handle_is_none() -> None:
    """The reason, in full, in both spellings."""
    told = "a received message needs a body and a receipt handle"
    for raw in ({"Body": "x"}, {"ReceiptHandle": "handle"}):
        with pytest.raises(MalformedMessage, match=f"^{told}$"):
            from_boto3(raw, received_at=0.0)
    with pytest.raises(MalformedMessage, match=f"^event record is not an SQS record: {told}$"):
        from_lambda_event({"body": "x"}, received_at=0.0)
    with pytest.raises(MalformedMessage, match=r"^event record is not an SQS record: .*attribute"):
        from_lambda_event({"messageAttributes": 7}, received_at=0.0)


def copy(**attributes: Attribute) -> ReceivedMessage:
    return ReceivedMessage(
        body="x",
        attributes={name.replace("__", "."): value for name, value in attributes.items()},
        receipt_handle="r",
        sqs_message_id="s",
        received_at=0.0,
        sent_ms=1_700_000_000_000,
    )


@pytest.mark.parametrize(
    ("attribute", "shown"),
    [
        (string("x" * 41), repr("x" * 40)),
        ({"DataType": "Binary", "BinaryValue": b"\xff" * 41}, repr(b"\xff" * 40)),
        ({"DataType": "String"}, "b''"),
    ],
    ids=["text", "binary", "nothing"],
)
def test_a_delay_that_is_no_number_is_shown_to_forty_characters(
    attribute: Attribute, shown: str
) -> None:
    """Whatever type it has."""
    told = read_delay(copy(**{DELAY_SECONDS: attribute}))
    assert told == Reject(f"{DELAY_SECONDS} is {shown}, not a whole number of seconds")


def test_a_copy_without_its_sent_timestamp_is_rejected() -> None:
    """Never "now" by default."""
    bare = from_boto3(
        {"Body": "x", "ReceiptHandle": "r", "MessageAttributes": {DELAY_SECONDS: string("5")}},
        received_at=0.0,
    )
    assert read_delay(bare) == Reject(
        "SentTimestamp is missing, so the start of the delay is unknown"
    )


def test_the_last_millisecond_of_the_calendar_is_a_due_time() -> None:
    """And the next one is none."""
    seconds = (MAX_DUE_MS - 1_700_000_000_000) // 1000
    last = {DELAY_SECONDS: string(str(seconds)), DUE_AT: string(str(MAX_DUE_MS))}
    assert read_delay(copy(**last)) == DelayedMessage("s", MAX_DUE_MS)
    after = {**last, DUE_AT: string(str(MAX_DUE_MS + 1))}
    assert isinstance(read_delay(copy(**after)), Reject)


def test_the_next_copy_has_an_id_of_its_message() -> None:
    """Two messages' copies never share one, though all else be alike."""
    one, other = (requeued(copy(), DelayedMessage(name, 0), 900) for name in ("m-1", "m-2"))
    assert one.deduplication_id == hop_deduplication_id(copy(), "m-1", copy().sent_ms)
    assert other.deduplication_id == hop_deduplication_id(copy(), "m-2", copy().sent_ms)
    assert one.deduplication_id != other.deduplication_id


def test_an_id_with_a_lone_surrogate_still_hops() -> None:
    """moto lets one through; it must not stop the worker."""
    assert hop_deduplication_id(copy(), "\ud800").startswith("hop.")


@pytest.mark.parametrize(("group", "kept"), [("g", "g"), ("a b", None), ("", None)])
def test_a_group_is_handed_over_where_a_queue_takes_it(group: str, kept: str | None) -> None:
    """Any other would have the whole message refused."""
    sent = handed_over(
        copy(**{GROUP_ID: string(group)}),
        DelayedMessage("m", 0),
        Endpoint.parse("orders"),
        delay_seconds=0,
    )
    assert sent.group_id == kept


@pytest.mark.parametrize("spare", [0, 1])
def test_a_message_that_fits_at_its_largest_stage(spare: int) -> None:
    """The quick answer and the exact one are the same size, at the limit and below it."""
    wired = {DELAY_SECONDS: string("901")}
    body = "x" * (MAX_MESSAGE_BYTES - MOST_ADDED_BYTES - spare - len(DELAY_SECONDS + "String901"))
    size = check_whole_way(
        body, {}, wired, message_id="m", due_ms=1_800_000_000_000, size=size_of(body, wired)
    )
    assert size == MAX_MESSAGE_BYTES - MOST_ADDED_BYTES - spare
