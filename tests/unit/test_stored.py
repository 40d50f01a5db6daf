"""A message as a store keeps it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sqsdelay import errors
from sqsdelay.core.limits import MAX_DUE_MS, MAX_MESSAGE_BYTES
from sqsdelay.core.message import DEDUPLICATION_ID, GROUP_ID, Message, due_ms_of_id, string
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage
from sqsdelay.core.stored_message import (
    AMENDMENT_LIFETIME_MS,
    Amendment,
    StoredMessage,
    amendment_from_row,
    from_rows,
    from_store,
    latest_amendments,
    parked,
    to_store,
)
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.testing import InMemoryStore, ManualClock

NOW_MS = 1_800_000_000_000


def stored(**changes: object) -> StoredMessage:
    fields = {"message_id": "a", "destination": "orders", "due_ms": NOW_MS, "body": b"x"}
    return StoredMessage(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("message_id", ["", "x" * 251, "a\0b", "\ud800", None, 7])
def test_an_id_no_store_can_keep_is_refused(message_id: object) -> None:
    """Found when it is made, not when one database of three chokes on it."""
    with pytest.raises(errors.InvalidMessage, match="1 to 250 characters"):
        stored(message_id=message_id)


def test_an_id_may_be_long_and_foreign() -> None:
    """250 characters of any script."""
    assert stored(message_id="\N{SNOWMAN}" * 250).message_id


@pytest.mark.parametrize("due_ms", [-1, MAX_DUE_MS + 1, 1.5, None])
def test_a_due_time_outside_the_calendar_is_refused(due_ms: object) -> None:
    """Seconds or microseconds given by mistake do not pass unnoticed as year 50,000."""
    with pytest.raises(errors.InvalidMessage, match="1970 to 9999"):
        stored(due_ms=due_ms)
    assert stored(due_ms=0).due_ms == 0
    assert stored(due_ms=MAX_DUE_MS).due_ms == MAX_DUE_MS


@pytest.mark.parametrize(("field", "value"), [("body", "text"), ("destination", "")])
def test_what_could_not_be_sent_is_refused(field: str, value: object) -> None:
    """Text needs an encoding, and a message a destination."""
    with pytest.raises(errors.InvalidMessage):
        stored(**{field: value})


def test_headers_come_back() -> None:
    """What the columns do not hold travels as JSON, binary values too; the store counts failures."""
    message = stored(
        attributes={
            "Raw.png": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
            "Text": {"DataType": "String", "StringValue": "\N{SNOWMAN}"},
        },
        group_id="g",
        trace_header="Root=1",
    )
    assert from_store("a", "orders", NOW_MS, b"x", message.headers(), 0) == message
    assert from_store("a", "orders", NOW_MS, b"x", stored().headers(), 3) == stored(failures=3)


def test_a_senders_message_is_checked_before_it_waits() -> None:
    """What SQS would refuse in a year is refused today."""
    eight = {f"a{n}": "x" for n in range(8)}
    kept = to_store(Message("x", delay=1.5, attributes=eight), "orders", now_ms=NOW_MS)
    assert (kept.due_ms, due_ms_of_id(kept.message_id)) == (NOW_MS + 1500, NOW_MS + 1500)
    with pytest.raises(errors.TooManyAttributes):
        to_store(Message("x", attributes={**eight, "a9": "x"}), "orders", now_ms=NOW_MS)
    with pytest.raises(errors.InvalidMessage):
        to_store(Message("\x00"), "orders", now_ms=NOW_MS)
    with pytest.raises(errors.InvalidEndpoint):
        to_store(Message("x"), "no queue", now_ms=NOW_MS)
    due_at = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(errors.InvalidDelay, match="both given"):
        to_store(Message("x", delay=1, due_at=due_at), "orders", now_ms=NOW_MS)


def test_a_senders_due_time_is_kept_exactly() -> None:
    """``due_at`` in milliseconds; neither means now."""
    due_at = datetime(2030, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    given = Message("x", due_at=due_at, message_id="m", trace_header="Root=1")
    kept = to_store(given, "orders", now_ms=NOW_MS)
    assert (kept.due_ms, kept.trace_header) == (round(due_at.timestamp() * 1000), "Root=1")
    assert to_store(Message("x"), "orders", now_ms=NOW_MS).due_ms == NOW_MS


@pytest.mark.parametrize("given", [{"group_id": "g"}, {"trace_header": "Root=1"}])
def test_a_header_alone_comes_back(given: dict[str, str]) -> None:
    """Group and trace header each without the other, and without attributes."""
    message = stored(**given)
    assert json.loads(message.headers()) == given
    assert from_store("a", "orders", NOW_MS, b"x", message.headers(), 0) == message


@pytest.mark.parametrize("number", [7, 0])
@pytest.mark.parametrize("name", ["group_id", "trace_header"])
def test_a_row_whose_headers_are_no_text_is_unreadable(name: str, number: int) -> None:
    """It is told why, in at most 200 characters, and the rest of the row stands."""
    message = from_store("a", "orders", NOW_MS, b"x", json.dumps({name: number}), 1)
    assert message.unreadable == (
        "its headers in the store cannot be read: TypeError('int instead of text')"
    )
    attributes = {"attributes": {"a": {"type": "String", "text": 7}}}
    message = from_store("a", "orders", NOW_MS, b"x", json.dumps(attributes), 1)
    assert message.unreadable == (
        "its headers in the store cannot be read: "
        'TypeError("an attribute\'s type or value is not text")'
    )
    missing = json.dumps({"attributes": {"a": {"x": 1, "type": "t"}, "b" * 300: {}}})
    assert (from_store("a", "o", 0, b"", missing, 0).unreadable or "").endswith("KeyError('text')")


def received(**changes: object) -> ReceivedMessage:
    fields: dict[str, object] = {
        "body": "x",
        "attributes": {},
        "receipt_handle": "r",
        "sqs_message_id": "s",
        "received_at": 0.0,
    }
    return ReceivedMessage(**(fields | changes))  # type: ignore[arg-type]


def test_a_parked_copy_keeps_its_bytes_whatever_they_are() -> None:
    """A lone surrogate, which moto lets through, is kept and does not stop the batch."""
    message = parked(received(body="\ud800"), DelayedMessage("m", NOW_MS), "orders")
    assert message.body == b"\xed\xa0\x80"


@pytest.mark.parametrize(("group", "kept"), [("g", "g"), ("a b", None), ("", None)])
def test_a_parked_copys_group_is_kept_where_a_queue_takes_it(group: str, kept: str | None) -> None:
    """Any other would make every release fail."""
    copy = received(attributes={GROUP_ID: string(group)})
    assert parked(copy, DelayedMessage("m", NOW_MS), "orders").group_id == kept


def test_a_message_for_a_store_fits_to_the_byte() -> None:
    """Body, id, due time and, for a FIFO queue, group and deduplication id: 1 MiB, and not one more."""
    names = "sqsdelay.MessageIdsqsdelay.WasDueAtStringString"
    room = MAX_MESSAGE_BYTES - len(names) - len("m") - len(str(NOW_MS))
    to_store(Message("x" * room, message_id="m"), "orders", now_ms=NOW_MS)
    with pytest.raises(errors.MessageTooLarge):
        to_store(Message("x" * (room + 1), message_id="m"), "orders", now_ms=NOW_MS)
    room -= len(GROUP_ID + DEDUPLICATION_ID + "StringString") + len("gg") + len("m")
    given = Message("x" * room, message_id="m", message_group_id="gg")
    to_store(given, "orders.fifo", now_ms=NOW_MS)
    with pytest.raises(errors.MessageTooLarge):
        to_store(replace(given, body=given.body + "x"), "orders.fifo", now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ((None, "orders", NOW_MS, b"x"), ("", "orders", NOW_MS, b"x")),
        ((b"a\xff", "orders", NOW_MS, b"x"), ("a\ufffd", "orders", NOW_MS, b"x")),
        ((7, "", NOW_MS, b"x"), ("7", "", NOW_MS, b"x")),
        (("a", b"o", NOW_MS, b"x"), ("a", "o", NOW_MS, b"x")),
        (("a", "orders", None, b"x"), ("a", "orders", 0, b"x")),
        (("a", "orders", "soon", b"x"), ("a", "orders", 0, b"x")),
        (("a", "orders", 1.5, b"x"), ("a", "orders", 1, b"x")),
        (("a", "orders", float("inf"), b"x"), ("a", "orders", 0, b"x")),
        (("a", "orders", float("nan"), b"x"), ("a", "orders", 0, b"x")),
        (("a", "orders", -7, b"x"), ("a", "orders", -7, b"x")),
        (("a", "orders", NOW_MS, None), ("a", "orders", NOW_MS, b"")),
        (("a", "orders", NOW_MS, "\xe4\udcff"), ("a", "orders", NOW_MS, b"\xc3\xa4\xff")),
    ],
)
def test_a_row_written_by_hand_is_put_aside_as_it_was_found(
    row: tuple[object, object, object, object], found: tuple[object, ...]
) -> None:
    """Whatever is in it; and it says that it is no message."""
    message = from_store(*row, "{}", 4)
    assert (message.message_id, message.destination, message.due_ms, message.body) == found
    assert message.failures == 4
    assert (message.unreadable or "").startswith("its row in the store is not a message: ")
    good = ("b", "orders", NOW_MS, b"x", "{}", 0)
    assert from_rows([good, (*row, "{}", 4)]) == [from_store(*good), message]


@pytest.mark.parametrize(
    "last",
    [
        ("x" * 250, "o", MAX_DUE_MS, b"", "{}", 7),
        ("a", "orders", NOW_MS, b"x", '{"group_id": "g"}', 0),
        ("a", "orders", NOW_MS, b"x", "not JSON", 0),
        ("a", "orders", NOW_MS, b"x", None, 0),
        ("a", "orders", NOW_MS, b"x", "{}", "many"),
        ("a", "orders", MAX_DUE_MS + 1, b"x", "{}", 0),
    ],
)
def test_many_rows_are_read_as_each_alone(last: tuple[object, ...]) -> None:
    """And what a query returns besides is left alone."""
    rows: list[tuple[object, ...]] = [(f"m{n}", "orders", n, b"x", "{}", n) for n in range(3)]
    rows.append(last)
    together = from_rows([(*row, "besides") for row in rows])
    assert together == [from_store(*row) for row in rows]
    assert together[0].attributes is not together[1].attributes
    assert from_rows([]) == []


def test_what_is_no_number_of_failures_is_none() -> None:
    """The message is one all the same."""
    message = from_store("a", "orders", NOW_MS, b"x", "{}", "many")
    assert (message.failures, message.unreadable) == (0, None)


def test_an_amendment_is_kept_by_when_it_may_be_forgotten() -> None:
    """And read as it was left."""
    amendment = Amendment(message_id="a", at_ms=NOW_MS, due_ms=NOW_MS + 9, cancelled_ms=NOW_MS - 9)
    assert amendment.until_ms == NOW_MS + AMENDMENT_LIFETIME_MS
    assert amendment_from_row("a", NOW_MS + 9, amendment.until_ms, NOW_MS - 9) == amendment
    assert amendment_from_row("a", None, amendment.until_ms).new_due_ms(NOW_MS) is None
    moved_twice = replace(amendment, at_ms=NOW_MS + 1, cancelled_ms=None).after(amendment)
    assert moved_twice.cancelled_ms == NOW_MS - 9
    found = latest_amendments([amendment, replace(moved_twice, cancelled_ms=None)])
    assert found == {"a": moved_twice}
    first_sent = (None, NOW_MS - 9, NOW_MS - 8, NOW_MS, NOW_MS + 1)
    assert [amendment.cancels(each) for each in first_sent] == [True, True, False, False, False]
    due = [amendment.new_due_ms(each) for each in first_sent]
    assert due == [None, None, NOW_MS + 9, NOW_MS + 9, None]
    gone, moved = (replace(amendment, due_ms=due, cancelled_ms=None) for due in (None, NOW_MS + 9))
    assert [gone.cancels(each) for each in first_sent] == [True, True, True, True, False]
    assert (moved.cancels(None), moved.new_due_ms(None)) == (False, NOW_MS + 9)


def test_a_store_that_lacks_a_method_is_not_made() -> None:
    """Inherited, `amend` would keep nothing and say nothing: what was cancelled would arrive."""
    forgetful = type("Forgetful", (InMemoryStore,), {"amend": ParkingPlace.amend})
    with pytest.raises(TypeError, match=r"abstract method.*amend"):
        forgetful(ManualClock())
