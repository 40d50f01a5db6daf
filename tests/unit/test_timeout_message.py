"""Reading what is sent to a timeout manager."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sqsdelay.core.delay import Reject
from sqsdelay.core.message import Attribute, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.timeouts.sender import due_ms_of, id_body, read_id, read_timeout

DUE_MS = 1_801_386_000_000
OURS = {"sqsdelay.Destination": string("orders"), "sqsdelay.DueAt": string(str(DUE_MS))}
NSERVICEBUS = {
    "NServiceBus.Timeout.RouteExpiredTimeoutTo": string("orders"),
    "NServiceBus.Timeout.Expire": string("2027-01-31 09:00:00:000000 Z"),
}


def copy(attributes: dict[str, Attribute], *, body: str = "hi") -> ReceivedMessage:
    return ReceivedMessage(
        body=body,
        attributes=attributes,
        receipt_handle="r",
        sqs_message_id="sqs-1",
        received_at=0.0,
        group_id="tenant",
        trace_header="Root=1-5759e988;Lineage=1:a",
    )


def read(attributes: dict[str, Attribute], **more: str) -> StoredMessage:
    message = read_timeout(copy(attributes, **more))
    assert isinstance(message, StoredMessage), message
    return message


def test_our_headers_are_read_and_taken_off() -> None:
    """Destination, due time, id and group; the user's own attributes stay."""
    more = {"sqsdelay.MessageId": string("m-1"), "sqsdelay.MessageGroupId": string("g")}
    message = read({**OURS, **more, "kind": string("reminder")}, body="grüß")
    assert message == StoredMessage(
        message_id="m-1",
        destination="orders",
        due_ms=DUE_MS,
        body="grüß".encode(),
        attributes={"kind": string("reminder")},
        group_id="g",
        trace_header="Root=1-5759e988",
    )


def test_nservicebus_headers_are_read_and_kept() -> None:
    """The same instant in NServiceBus's way of writing it; SQS's id where there is no other."""
    message = read(NSERVICEBUS)
    assert (message.destination, message.due_ms) == ("orders", DUE_MS)
    assert message.message_id == "sqs-1"
    assert message.attributes == NSERVICEBUS


def test_our_headers_come_before_nservicebus() -> None:
    """Where both are there, whoever added ours meant it."""
    message = read(NSERVICEBUS | {"sqsdelay.DueAt": string("5")})
    assert message.due_ms == 5


def test_a_part_of_a_millisecond_is_rounded_up() -> None:
    """Never early."""
    later = {"NServiceBus.Timeout.Expire": string("2027-01-31 09:00:00:000001 Z")}
    assert read(NSERVICEBUS | later).due_ms == DUE_MS + 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sqsdelay.Destination": None}, "gives its destination"),
        ({"sqsdelay.DueAt": None}, "gives its due time"),
        ({"sqsdelay.DueAt": string("tomorrow")}, "'tomorrow', not epoch milliseconds"),
        ({"sqsdelay.DueAt": string("9" * 15)}, "outside 0 to"),
        (
            {"sqsdelay.DueAt": None, "NServiceBus.Timeout.Expire": string("soon")},
            "'soon', not as 2027-01-31",
        ),
        ({"sqsdelay.MessageId": string("m" * 251)}, "cannot be stored"),
    ],
)
def test_what_cannot_be_read_is_rejected_with_a_reason(
    changes: dict[str, Attribute | None], told: str
) -> None:
    """It goes to the error queue rather than somewhere, or now."""
    attributes = {name: value for name, value in {**OURS, **changes}.items() if value is not None}
    rejected = read_timeout(copy(attributes))
    assert isinstance(rejected, Reject)
    assert told in rejected.reason


@pytest.mark.parametrize("message_id", ["m-1", "\N{SNOWMAN} 'x'", "\x01"])
def test_any_id_survives_the_announcement(message_id: str) -> None:
    """A store keeps ids that SQS would not take as they are."""
    body = id_body(message_id)
    assert body.isascii()
    assert read_id(body) == message_id


@pytest.mark.parametrize("body", ["", "m-1", "[]", "{}", '{"message_id": 7}'])
def test_another_body_is_no_id(body: str) -> None:
    """What somebody else put there is rejected, not guessed at."""
    assert isinstance(read_id(body), Reject)


@pytest.mark.parametrize("message_id", ["", "a\0", "\ud800", "x" * 251, 5, None, ["m"]])
def test_an_announced_id_no_store_can_hold_is_rejected(message_id: object) -> None:
    """Looked up, it would make the database refuse the whole batch, again and again."""
    assert isinstance(read_id(json.dumps({"message_id": message_id})), Reject)


def test_an_unreadable_copys_reason_is_passed_on() -> None:
    """What of it could not be read: it must not be kept, and later delivered, without that attribute."""
    unreadable = replace(copy(OURS), unreadable="message attribute 'a' has no value of its type")
    assert read_timeout(unreadable) == Reject("message attribute 'a' has no value of its type")


def test_a_group_no_queue_takes_is_left_out() -> None:
    """The message arrives, without it."""
    assert read({**OURS, "sqsdelay.MessageGroupId": string("a b")}).group_id is None


def test_a_time_before_1970_is_overdue() -> None:
    """As any past one: 0, not a negative number."""
    assert due_ms_of({"NServiceBus.Timeout.Expire": string("1969-01-31 09:00:00:000000 Z")}) == 0
