"""A message as a store keeps it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sqsdelay.errors import InvalidDelay, InvalidEndpoint, InvalidMessage, TooManyAttributes
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.message import Message
from sqsdelay.message_id import due_ms_of_id
from sqsdelay.stored import StoredMessage, from_store, to_store

NOW_MS = 1_800_000_000_000


def stored(**changes: object) -> StoredMessage:
    fields = {"message_id": "a", "destination": "orders", "due_ms": NOW_MS, "body": b"x"}
    return StoredMessage(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("message_id", ["", "x" * 251, "a\0b", "\ud800", None, 7])
def test_an_id_no_store_can_keep_is_refused(message_id: object) -> None:
    """Found when it is made, not when one database of three chokes on it."""
    with pytest.raises(InvalidMessage, match="1 to 250 characters"):
        stored(message_id=message_id)


def test_an_id_may_be_long_and_foreign() -> None:
    """250 characters of any script."""
    assert stored(message_id="\N{SNOWMAN}" * 250).message_id


@pytest.mark.parametrize("due_ms", [-1, MAX_DUE_MS + 1, 1.5, None])
def test_a_due_time_outside_the_calendar_is_refused(due_ms: object) -> None:
    """Seconds or microseconds given by mistake do not pass unnoticed as year 50,000."""
    with pytest.raises(InvalidMessage, match="1970 to 9999"):
        stored(due_ms=due_ms)
    assert stored(due_ms=0).due_ms == 0
    assert stored(due_ms=MAX_DUE_MS).due_ms == MAX_DUE_MS


@pytest.mark.parametrize(("field", "value"), [("body", "text"), ("destination", "")])
def test_what_could_not_be_sent_is_refused(field: str, value: object) -> None:
    """Text needs an encoding, and a message a destination."""
    with pytest.raises(InvalidMessage):
        stored(**{field: value})


def test_headers_come_back() -> None:
    """What the columns do not hold travels as JSON, binary values too."""
    message = stored(
        attributes={
            "Raw.png": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
            "Text": {"DataType": "String", "StringValue": "\N{SNOWMAN}"},
        },
        group_id="g",
        trace_header="Root=1",
    )
    assert from_store("a", "orders", NOW_MS, b"x", message.headers(), 0) == message
    assert from_store("a", "orders", NOW_MS, b"x", stored().headers(), 0) == stored()


def test_a_senders_message_is_checked_before_it_waits() -> None:
    """What SQS would refuse in a year is refused today."""
    eight = {f"a{n}": "x" for n in range(8)}
    kept = to_store(Message("x", delay=1.5, attributes=eight), "orders", now_ms=NOW_MS)
    assert (kept.due_ms, due_ms_of_id(kept.message_id)) == (NOW_MS + 1500, NOW_MS + 1500)
    with pytest.raises(TooManyAttributes):
        to_store(Message("x", attributes={**eight, "a9": "x"}), "orders", now_ms=NOW_MS)
    with pytest.raises(InvalidMessage):
        to_store(Message("\x00"), "orders", now_ms=NOW_MS)
    with pytest.raises(InvalidEndpoint):
        to_store(Message("x"), "no queue", now_ms=NOW_MS)
    due_at = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidDelay, match="both given"):
        to_store(Message("x", delay=1, due_at=due_at), "orders", now_ms=NOW_MS)


def test_a_senders_due_time_is_kept_exactly() -> None:
    """``due_at`` in milliseconds; neither means now."""
    due_at = datetime(2030, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    kept = to_store(Message("x", due_at=due_at, message_id="m"), "orders", now_ms=NOW_MS)
    assert kept.due_ms == round(due_at.timestamp() * 1000)
    assert to_store(Message("x"), "orders", now_ms=NOW_MS).due_ms == NOW_MS
