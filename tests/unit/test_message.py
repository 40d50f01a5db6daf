"""Messages: attributes, characters and sizes as SQS counts them."""

from __future__ import annotations

from decimal import Decimal
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsdelay.core.limits import FORBIDDEN_BODY_CHARACTER, ID, MAX_DUE_MS
from sqsdelay.core.message import (
    DEDUPLICATION_ID,
    Attribute,
    attributes_of,
    chances,
    check_body,
    check_id,
    check_limits,
    due_ms_of_id,
    new_message_id,
    size_of,
    string,
)
from sqsdelay.errors import InvalidMessage, MessageTooLarge, TooManyAttributes
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock

MIB = 1_048_576


def test_plain_values_become_boto3_attributes() -> None:
    """Text, numbers and bytes need no {'DataType': …}."""
    assert attributes_of(
        {"a": "x", "b": 3, "c": Decimal("1.50"), "d": b"\x00", "e": bytearray(b"y")}
    ) == {
        "a": {"DataType": "String", "StringValue": "x"},
        "b": {"DataType": "Number", "StringValue": "3"},
        "c": {"DataType": "Number", "StringValue": "1.50"},
        "d": {"DataType": "Binary", "BinaryValue": b"\x00"},
        "e": {"DataType": "Binary", "BinaryValue": b"y"},
    }


def test_boto3_shapes_pass_as_they_are() -> None:
    """Custom types keep their name."""
    shaped: Any = {
        "a": {"DataType": "Number.int", "StringValue": "7"},
        "b": {"DataType": "Binary.png", "BinaryValue": b"\x89"},
    }
    assert attributes_of(shaped) == shaped


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a", "", "is empty"),
        ("a", b"", "is empty"),
        ("a", None, "is a NoneType"),
        ("a", True, "is a bool"),
        ("a", ["x"], "is a list"),
        ("a", {"DataType": "Text", "StringValue": "x"}, "has DataType 'Text'"),
        ("a", {"StringValue": "x"}, "has DataType ''"),
        ("a", {"DataType": "Binary", "StringValue": "x"}, "needs a BinaryValue"),
        ("a", {"DataType": "String", "StringValue": "x", "BinaryValue": b"x"}, "has BinaryValue"),
        ("a", "nul\x00", r"U\+0000 at position 3"),
        ("", "x", "is not allowed by SQS"),
        (".a", "x", "is not allowed by SQS"),
        ("a..b", "x", "is not allowed by SQS"),
        ("a" * 257, "x", "the limit is 256"),
        ("AWS.x", "x", "has a prefix reserved for AWS"),
    ],
)
def test_attributes_sqs_refuses_are_refused_first(name: str, value: Any, message: str) -> None:
    """A bad attribute is found before anything is sent, and named."""
    with pytest.raises(InvalidMessage, match=message):
        attributes_of({name: value})


@pytest.mark.parametrize("body", ["a\x00b", "\x0b", "\ufffe", "\ud800", "x\udfff"])
def test_characters_sqs_refuses_are_refused_first(body: str) -> None:
    """The error names the character and where it is, and the way round."""
    words = r"U\+[0-9A-F]{4} at position \d+, which SQS refuses; encode"
    with pytest.raises(InvalidMessage, match=words):
        check_body(body)


def test_characters_sqs_takes_are_taken() -> None:
    """Tab, line ends and all planes of Unicode pass."""
    check_body("\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff")


@pytest.mark.parametrize(
    ("body", "message"), [("", "is empty"), (b"x", "body is bytes"), (None, "NoneType")]
)
def test_a_body_is_text_of_at_least_one_character(body: Any, message: str) -> None:
    """SQS has no empty and no binary bodies."""
    with pytest.raises(InvalidMessage, match=message):
        check_body(body)


@pytest.mark.parametrize("value", ["", "a b", "ä", "x" * 129, "a\n", 5])
def test_ids_sqs_refuses_are_refused_first(value: Any) -> None:
    """A message id becomes a group id and a deduplication id, so it obeys their rules."""
    with pytest.raises(InvalidMessage, match="use 1 to 128 letters, digits and punctuation"):
        check_id(value, "message_id")


def test_the_longest_id_is_taken() -> None:
    """128 characters of any punctuation."""
    check_id("!~" * 64, "message_id")


def test_size_counts_utf8_bytes_of_body_names_types_and_values() -> None:
    """An umlaut is two bytes; names and types count too."""
    assert size_of("ä", {}) == 2
    assert size_of("a", {"nä": string("vö")}) == 1 + 3 + 6 + 3
    assert size_of("a", {"b": {"DataType": "Binary.x", "BinaryValue": b"123"}}) == 1 + 1 + 8 + 3


@given(st.text(st.characters(), max_size=50))
def test_printable_text_is_text_sqs_takes(text: str) -> None:
    """The quick question before the search for forbidden characters never hides one."""
    assert not (text.isprintable() and FORBIDDEN_BODY_CHARACTER.search(text))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_size_of_a_body_is_its_encoded_length(body: str) -> None:
    """The shortcut for ASCII changes nothing."""
    assert size_of(body, {}) == len(body.encode())


def test_ten_attributes_and_no_more() -> None:
    """Ours count; the error says how many to move."""
    ten = {f"a{n}": string("x") for n in range(10)}
    check_limits("b", ten)
    words = r"12 message attributes \(2 of them added .* move 2 into"
    with pytest.raises(TooManyAttributes, match=words):
        check_limits("b", ten, {"x": string("1")}, {"x": string("1"), "y": string("2")})


def test_every_stage_counts_and_the_first_is_the_size() -> None:
    """A message must fit at each stage of its way; what is sent now is the first."""
    small, large = {"x": string("1")}, {"x": string("1" * 100)}
    assert check_limits("b" * (MIB - 107), {}, small, large) == MIB - 107 + 8
    with pytest.raises(MessageTooLarge, match=r"1048577 bytes .* 107 bytes added"):
        check_limits("b" * (MIB - 106), {}, small, large)


def test_what_a_receiver_got_is_passed_on_without_what_carried_its_delay() -> None:
    """A copy of a received message is another message: no due time and no id of the former rule it."""
    ours = (
        "sqsdelay.DueAt", "sqsdelay.WasDueAt", "sqsdelay.MessageId", "sqsdelay.Error",
        "sqsdelay.MessageGroupId", "sqsdelay.MessageDeduplicationId", "sqsdelay.DelayMilliseconds",
        "NServiceBus.AmazonSQS.DelaySeconds",
    )  # fmt: skip
    users = {
        "kind": string("reminder"),
        "raw": Attribute(DataType="Binary.gzip", BinaryValue=b"\x00"),
        "NServiceBus.MessageId": string("n-1"),
        "NServiceBus.AmazonSQS.Headers": string("{}"),
    }
    shown = type("Shown", (str,), {"__str__": lambda _: "Names.DUE"})  # as a name in an Enum
    for kind in (str, shown):
        assert attributes_of(users | {kind(name): string("1") for name in ours}) == users


@pytest.mark.parametrize("given", [[("a", "b")], "a=b", 7])
def test_attributes_that_are_no_mapping_are_one_messages_error(given: Any) -> None:
    """`send_many` gives it to that message and sends the others."""
    with pytest.raises(InvalidMessage, match=r"attributes=.*give a dict"):
        attributes_of(given)


@pytest.mark.parametrize("due_ms", [0, 1, 1_800_000_000_123, MAX_DUE_MS])
def test_an_id_tells_the_due_time(due_ms: int) -> None:
    """To the millisecond, and it fits a FIFO queue's ids."""
    made = new_message_id(due_ms)
    assert due_ms_of_id(made) == due_ms
    assert ID.fullmatch(made)


def test_ids_sort_by_due_time_and_differ() -> None:
    """Two of one millisecond are two."""
    made = [new_message_id(due_ms) for due_ms in (5, 31, 32, 1023, 1024, MAX_DUE_MS)]
    assert made == sorted(made)
    assert len({new_message_id(7, chance) for chance in islice(chances(), 1000)}) == 1000


@pytest.mark.parametrize(
    "other",
    [
        "",
        "order-7",
        "01mcc5rm3vbaszha73rv9k5ka4",
        "U01MCC5RM3VBASZHA73RV9K5KA4",
        "u81mcc5rm3vbaszha73rv9k5ka4",
        "u01mcc5rm3vbaszha73rv9k5ka4x",
        "u01mcc5rm3vbaszha73rv9k5kau",
    ],
)
def test_other_ids_tell_none(other: str) -> None:
    """Nor do ULIDs of somebody's own, whose time is when they were made."""
    assert due_ms_of_id(other) is None


@pytest.mark.parametrize("endpoint", ["orders", "orders.fifo"])
@pytest.mark.parametrize("delay", [1_000, 90_000], ids=["delay queue", "store"])
def test_a_message_without_an_id_gets_one_for_its_due_time(endpoint: str, delay: int) -> None:
    """Once that is known, whichever way it goes."""
    clock = ManualClock()
    queues = InMemoryQueues(clock)
    queues.create_endpoint(endpoint)
    sender = QueueSender(
        queues, SenderSettings(parking=ParkingSettings(InMemoryStore(clock), 3_600))
    )
    group = "g" if endpoint.endswith(".fifo") else None
    sent = sender.send(endpoint, "x", delay=delay, message_group_id=group)
    told = due_ms_of_id(sent.message_id or "")
    assert told is not None
    assert abs(told - (clock.now_ms() + delay * 1000)) <= 1_000


def test_a_fifo_queue_deduplicates_by_that_id() -> None:
    """One message, one id: also where it waits in a store."""
    clock = ManualClock()
    queues, store = InMemoryQueues(clock), InMemoryStore(clock)
    queues.create_endpoint("orders.fifo")
    sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(store, 3_600)))
    sent = sender.send("orders.fifo", "x", delay=90_000, message_group_id="g")
    (kept,) = sender.pending("orders.fifo")
    assert kept.attributes[DEDUPLICATION_ID] == string(kept.message_id)
    assert kept.message_id == sent.message_id
