"""What the error queue gets of a message, and the message as it was, read from that again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsdelay.core import message as wire
from sqsdelay.core.delay import Reject
from sqsdelay.core.limits import MAX_DUE_MS, MAX_MESSAGE_BYTES
from sqsdelay.core.message import Attribute, OutgoingMessage, size_of, string
from sqsdelay.core.received_message import ReceivedMessage, read_delay
from sqsdelay.core.rejection import Rejection, read_rejection, rejected, rejected_stored
from sqsdelay.core.stored_message import StoredMessage
from tests.messages import a_copy

SENT = 1_800_000_000_000
REJECTED = SENT + 4_000_000
NINE = {f"a{n}": string("x") for n in range(9)}


def copy(**changes: Any) -> ReceivedMessage:
    """A copy as the delay queue hands it out."""
    fields: dict[str, Any] = {
        "body": "hello",
        "attributes": {wire.DELAY_SECONDS: string("1925")},
        "receipt_handle": "r",
        "sqs_message_id": "s",
        "received_at": 5.0,
        "sent_ms": SENT,
        "receive_count": 3,
        "group_id": "m-1",
        "deduplication_id": "hop.123",
        "trace_header": "Root=1-a",
    }
    return ReceivedMessage(**fields | changes)


def in_error_queue(entry: OutgoingMessage) -> ReceivedMessage:
    """What the error queue, a standard queue, hands out of it."""
    return a_copy(
        entry.attributes,
        body=entry.body,
        receipt_handle="e-r",
        sqs_message_id="e-s",
        received_at=9.0,
        sent_ms=REJECTED,
        first_receive_ms=REJECTED + 5,
        receive_count=1,
        group_id=entry.group_id,
        trace_header=entry.trace_header,
    )


def again(original: ReceivedMessage, reason: str = "why") -> Rejection:
    return read_rejection(in_error_queue(rejected(original, reason)))


def as_it_was(original: ReceivedMessage) -> ReceivedMessage:
    """But for what only the copy received last has."""
    return replace(original, receipt_handle="e-r", received_at=9.0)


def test_a_rejected_message_carries_its_reason_and_everything_it_came_with() -> None:
    """Nothing of it is lost: body, attributes, ids, times."""
    attributes = {"user": string("x"), wire.DELAY_SECONDS: string("soon")}
    entry = rejected(copy(attributes=attributes), "not a number\x00")
    error = json.loads(entry.attributes.pop(wire.ERROR)["StringValue"])
    assert entry.attributes == attributes
    assert error["reason"] == "not a number?"
    assert error["messageId"] == "m-1"
    assert error["sentTimestamp"] == SENT


def test_a_full_rejected_message_carries_its_delay_within_the_reason() -> None:
    """With ten attributes the delay attributes make room; their values are kept in the JSON."""
    entry = rejected(copy(attributes=NINE | {wire.DELAY_SECONDS: string("soon")}), "why")
    error = json.loads(entry.attributes.pop(wire.ERROR)["StringValue"])
    assert entry.attributes == NINE
    assert error["attributes"] == {wire.DELAY_SECONDS: "soon"}


def test_a_rejected_message_without_any_room_goes_unchanged() -> None:
    """Better without a reason than not at all."""
    ten = NINE | {"a9": string("x")}
    assert rejected(copy(attributes=ten), "why").attributes == ten
    full = copy(body="b" * (MAX_MESSAGE_BYTES - 1 - 6 - 1), attributes={"a": string("x")})
    assert rejected(full, "why").attributes == {"a": string("x")}


@pytest.mark.parametrize(
    "attributes",
    [
        {wire.DELAY_SECONDS: string("1925"), "user": string("x")},
        {wire.DELAY_SECONDS: string("1925"), wire.DUE_AT: string(str(SENT + 1_925_000))},
        {wire.DELAY_SECONDS: string("2"), wire.DELAY_MS: string("1500")},
        {wire.DELAY_SECONDS: string("9"), wire.GROUP_ID: string("g"),
         wire.DEDUPLICATION_ID: string("d")},
        NINE | {wire.DELAY_SECONDS: string("1925")},
        {"binary": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"}},
    ],
)  # fmt: skip
def test_a_rejected_copy_is_read_as_it_was(attributes: dict[str, Attribute]) -> None:
    """Attributes, ids and stamps; so its due time is read from it as the delay consumer would."""
    original = copy(attributes=attributes)
    rejection = again(original, "SQS refused it")
    assert rejection.original == as_it_was(original)
    assert (rejection.message_id, rejection.reason) == ("m-1", "SQS refused it")
    read = read_delay(original)
    assert rejection.due == (
        Reject("neither NServiceBus.AmazonSQS.DelaySeconds nor sqsdelay.DueAt is present")
        if isinstance(read, Reject)
        else read.due_ms
    )


def test_a_copy_from_the_due_queue_is_due_when_it_says() -> None:
    """There is no delay to count any more: the due time alone travels."""
    attributes = {
        wire.MESSAGE_ID: string("m-1"),
        wire.DUE_AT: string(str(SENT + 7)),
        wire.GROUP_ID: string("g"),
    }
    original = copy(attributes=attributes, group_id=None, deduplication_id=None)
    rejection = again(original)
    assert (rejection.message_id, rejection.due) == ("m-1", SENT + 7)


def test_a_contradictory_copy_has_no_due_time() -> None:
    """It was rejected for that, and would be again."""
    late = {wire.DELAY_SECONDS: string("1"), wire.DUE_AT: string(str(SENT + 10**9))}
    due = again(copy(attributes=late)).due
    assert isinstance(due, Reject)
    assert "contradict each other" in due.reason


def test_a_message_of_1_mib_keeps_its_id_and_its_due_time() -> None:
    """A sender leaves room for the due time, not for a reason: the message id becomes the group."""
    attributes = {wire.DELAY_SECONDS: string("1925")}
    due = {wire.DUE_AT: string(str(SENT + 1_925_000))}
    original = copy(
        body="b" * (MAX_MESSAGE_BYTES - size_of("", attributes | due)), attributes=attributes
    )
    entry = rejected(original, "why")
    assert (entry.size, entry.group_id) == (MAX_MESSAGE_BYTES, "m-1")
    rejection = read_rejection(in_error_queue(entry))
    assert (rejection.message_id, rejection.reason) == ("m-1", None)
    assert rejection.due == SENT + 1_925_000


def test_a_foreign_message_that_leaves_no_room_has_no_due_time() -> None:
    """Its delay counts from a stamp that is gone: better not known than wrong."""
    attributes = {wire.DELAY_SECONDS: string("1925")}
    original = copy(body="b" * (MAX_MESSAGE_BYTES - size_of("", attributes)), attributes=attributes)
    assert rejected(original, "why").attributes == attributes
    due = again(original).due
    assert isinstance(due, Reject)
    assert "SentTimestamp is missing" in due.reason


def test_what_could_not_be_read_is_remembered() -> None:
    """An attribute was left out: the message is not whole, and must not pass for it."""
    spoiled = copy(unreadable="message attribute 'a' has no value of its type")
    assert again(spoiled).original.unreadable == spoiled.unreadable


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", '{"messageId": 5, "dueMs": "x", "attributes": 7}', "{}"]
)
def test_a_foreign_reason_is_no_crash(text: str) -> None:
    """Anybody may have put anything there."""
    attributes = {wire.ERROR: string(text), "user": string("x")}
    rejection = read_rejection(in_error_queue(OutgoingMessage("b", attributes, 1)))
    assert rejection.message_id == "e-s"
    assert isinstance(rejection.due, Reject)
    assert rejection.original.attributes == {"user": string("x")}


@pytest.mark.parametrize(
    ("told", "read"),
    [
        (0, 0),
        (SENT, SENT),
        (MAX_DUE_MS, MAX_DUE_MS),
        (MAX_DUE_MS + 1, None),
        (-1, None),
        (1.0, None),
        (True, None),
        (str(SENT), None),
        ([SENT], None),
    ],
)
def test_a_number_in_a_foreign_reason_is_one_or_is_not_there(told: Any, read: int | None) -> None:
    """Whole and in range: the due time is counted from it."""
    about = {"reason": "why", "sentTimestamp": told, "receiveCount": told}
    entry = OutgoingMessage("b", {wire.ERROR: string(json.dumps(about))}, 1)
    original = read_rejection(in_error_queue(entry)).original
    assert (original.sent_ms, original.receive_count) == (read, read)
    assert type(original.sent_ms) is type(read)


def stored(**changes: Any) -> StoredMessage:
    fields: dict[str, Any] = {
        "message_id": "m-1",
        "destination": "orders",
        "due_ms": SENT,
        "body": b"hello",
        "attributes": {"user": string("x")},
        "trace_header": "Root=1",
    }
    return StoredMessage(**fields | changes)


def test_a_stores_message_is_read_as_the_delay_queue_would_have_it() -> None:
    """Due time and group as attributes; for a FIFO queue the deduplication id, too."""
    entry = rejected_stored(stored(group_id="g", failures=2), "QueueMissing: no such queue")
    rejection = read_rejection(in_error_queue(entry))
    assert rejection.original.attributes == {
        "user": string("x"),
        wire.DUE_AT: string(str(SENT)),
        wire.GROUP_ID: string("g"),
    }
    assert (rejection.message_id, rejection.due, rejection.destination) == ("m-1", SENT, "orders")
    fifo = read_rejection(
        in_error_queue(rejected_stored(stored(destination="o.fifo", group_id="g"), "why"))
    )
    assert fifo.original.attributes[wire.DEDUPLICATION_ID] == string("m-1")


def test_a_stores_message_without_room_for_the_reason_keeps_what_fits() -> None:
    """Id, due time and group before the reason: by these it can be sent on."""
    message = stored(body=b"b" * (MAX_MESSAGE_BYTES - 120), group_id="g", attributes={})
    rejection = read_rejection(in_error_queue(rejected_stored(message, "why")))
    assert (rejection.reason, rejection.message_id, rejection.due) == (None, "m-1", SENT)
    assert rejection.original.attributes[wire.GROUP_ID] == string("g")


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", *wire.DELAY_ATTRIBUTES]),
        st.builds(string, st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1)),
    ),
    st.sampled_from(["m-1", None]),
    st.sampled_from(["hop.1", "m-1", None]),
)  # fmt: skip
def test_whatever_was_rejected_is_read_as_it_was(
    attributes: dict[str, Attribute], group_id: str | None, deduplication_id: str | None
) -> None:
    """Property: reading is the inverse of rejecting, and finds the same due time."""
    original = copy(attributes=attributes, group_id=group_id, deduplication_id=deduplication_id)
    rejection = again(original)
    assert rejection.original == as_it_was(original)
    assert rejection.message_id == original.message_id
    read = read_delay(original)
    if not isinstance(read, Reject):
        assert rejection.due == read.due_ms


def about(message: StoredMessage, reason: str = "refused") -> dict[str, Any]:
    told = rejected_stored(message, reason).attributes[wire.ERROR]["StringValue"]
    return dict(json.loads(told))


def test_it_says_all_that_is_known() -> None:
    """Why, whose, where to, when, how often tried."""
    assert about(stored(group_id="g", failures=6), "was \0 refused") == {
        "reason": "was ? refused",
        "messageId": "m-1",
        "destination": "orders",
        "dueMs": SENT,
        "failures": 6,
        "messageGroupId": "g",
    }
    assert rejected_stored(stored(), "refused").trace_header == "Root=1"


@pytest.mark.parametrize(
    ("body", "sent", "encoding"),
    [
        (b"hi", "hi", None),
        (b"", "-", "empty"),
        (b"\xff", "/w==", "base64"),
        (b"\0", "AA==", "base64"),
    ],
)
def test_a_body_sqs_does_not_carry_is_stood_for(
    body: bytes, sent: str, encoding: str | None
) -> None:
    """And the message says by what: that must never be taken for it."""
    entry = rejected_stored(stored(body=body), "refused")
    assert entry.body == sent
    assert about(stored(body=body)).get("bodyEncoding") == encoding
    assert read_rejection(in_error_queue(entry)).body_encoding == encoding
    full = {f"a{n}": string("x") for n in range(10)}
    unsaid = read_rejection(in_error_queue(rejected_stored(stored(body=body, attributes=full), "")))
    assert isinstance(unsaid.due, Reject)  # not sent on, unless someone says when


def test_where_nothing_more_fits_a_group_is_left_out() -> None:
    """Rather than make a message of more than 1 MiB."""
    room = MAX_MESSAGE_BYTES - len(wire.GROUP_ID + "String" + "g")
    bare: dict[str, Any] = {"attributes": {}, "group_id": "g"}
    assert wire.GROUP_ID in rejected_stored(stored(body=b"x" * room, **bare), "r").attributes
    full = rejected_stored(stored(body=b"x" * (room + 1), **bare), "r")
    assert wire.GROUP_ID not in full.attributes
    assert full.size <= MAX_MESSAGE_BYTES


def test_a_large_body_in_base64_is_not_mistaken_for_itself() -> None:
    """Without room for the words that say so it has no id of ours, which would ask for its return."""
    body = b"\xff" * (MAX_MESSAGE_BYTES * 3 // 4)
    sent = rejected_stored(stored(attributes={}, body=body), "refused")
    assert (sent.size, sent.attributes) == (MAX_MESSAGE_BYTES, {})


@pytest.mark.parametrize(("message_id", "group"), [("m", "m"), ("a b", None)])
def test_a_full_copy_keeps_its_id_as_its_group(message_id: str, group: str | None) -> None:
    """Where a queue takes it."""
    full = copy(body="x" * MAX_MESSAGE_BYTES, attributes={}, group_id=message_id)
    assert rejected(full, "refused").group_id == group


def test_a_moved_binary_delay_attribute_is_base64() -> None:
    """A foreign sender's; what it was is not lost."""
    attributes = {**NINE, wire.DUE_AT: {"DataType": "Binary", "BinaryValue": b"\xff"}}
    sent = rejected(copy(attributes=attributes, group_id=None), "refused")
    told = json.loads(sent.attributes[wire.ERROR]["StringValue"])
    assert told["attributes"] == {wire.DUE_AT: "/w=="}
    assert (sent.group_id, len(sent.attributes)) == (None, 10)
