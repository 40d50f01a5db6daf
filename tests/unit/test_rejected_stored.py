"""What the error queue gets of a store's message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sqsdelay.core.message import ERROR, GROUP_ID, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.rejection import rejected, rejected_stored
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.limits import MAX_MESSAGE_BYTES


def stored(**changes: Any) -> StoredMessage:
    fields: dict[str, Any] = {
        "message_id": "m",
        "destination": "orders",
        "due_ms": 1_800_000_000_000,
        "body": b"hi",
        "failures": 6,
        "trace_header": "Root=1",
    }
    return StoredMessage(**(fields | changes))


def about(message: StoredMessage, reason: str = "refused") -> dict[str, Any]:
    told = rejected_stored(message, reason).attributes[ERROR]["StringValue"]
    return dict(json.loads(told))


def test_it_says_all_that_is_known() -> None:
    """Why, whose, where to, when, how often tried."""
    assert about(stored(group_id="g"), "was \0 refused") == {
        "reason": "was ? refused",
        "messageId": "m",
        "destination": "orders",
        "dueMs": 1_800_000_000_000,
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
    """And the message says by what."""
    message = stored(body=body)
    assert rejected_stored(message, "refused").body == sent
    assert about(message).get("bodyEncoding") == encoding


def test_where_nothing_more_fits_a_group_is_left_out() -> None:
    """Rather than make a message of more than 1 MiB."""
    room = MAX_MESSAGE_BYTES - len(GROUP_ID + "String" + "g")
    assert GROUP_ID in rejected_stored(stored(body=b"x" * room, group_id="g"), "r").attributes
    full = rejected_stored(stored(body=b"x" * (room + 1), group_id="g"), "r")
    assert GROUP_ID not in full.attributes
    assert full.size <= MAX_MESSAGE_BYTES


def test_a_large_body_in_base64_is_not_mistaken_for_itself() -> None:
    """Without room for the words that say so it has no id of ours, which would ask for its return."""
    sent = rejected_stored(stored(body=b"\xff" * (MAX_MESSAGE_BYTES * 3 // 4)), "refused")
    assert (sent.size, sent.attributes) == (MAX_MESSAGE_BYTES, {})


def full_copy(message_id: str) -> ReceivedMessage:
    return ReceivedMessage(
        body="x" * MAX_MESSAGE_BYTES,
        attributes={},
        receipt_handle="r",
        sqs_message_id="s",
        received_at=0.0,
        group_id=message_id,
    )


@pytest.mark.parametrize(("message_id", "group"), [("m", "m"), ("a b", None)])
def test_a_full_copy_keeps_its_id_as_its_group(message_id: str, group: str | None) -> None:
    """Where a queue takes it; and a binary attribute that has to move is kept as base64."""
    assert rejected(full_copy(message_id), "refused").group_id == group


def test_a_moved_binary_delay_attribute_is_base64() -> None:
    """A foreign sender's; what it was is not lost."""
    attributes = {f"a{n}": string("x") for n in range(9)}
    copy = ReceivedMessage(
        body="x",
        attributes={
            **attributes,
            "sqsdelay.DueAt": {"DataType": "Binary", "BinaryValue": b"\xff"},
        },
        receipt_handle="r",
        sqs_message_id="s",
        received_at=0.0,
    )
    sent = rejected(copy, "refused")
    told = json.loads(sent.attributes[ERROR]["StringValue"])
    assert told["attributes"] == {"sqsdelay.DueAt": "/w=="}
    assert (sent.group_id, len(sent.attributes)) == (None, 10)
