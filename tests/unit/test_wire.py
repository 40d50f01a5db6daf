"""The wire format and every stamp and id of the queue service's: read from both of its spellings, and
written so that NServiceBus can read it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsdelay.core import outgoing
from sqsdelay.core.delay import Reject
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_DUE_MS, MAX_MESSAGE_BYTES
from sqsdelay.core.message import (
    DELAY_MS,
    DELAY_SECONDS,
    DUE_AT,
    GROUP_ID,
    MESSAGE_ID,
    MOST_ADDED_BYTES,
    WAS_DUE_AT,
    Attribute,
    Message,
    OutgoingMessage,
    checked,
    size_of,
    string,
)
from sqsdelay.core.outgoing import trace_header_to_pass_on, without_identity
from sqsdelay.core.received_message import (
    DelayedMessage,
    ReceivedMessage,
    from_boto3,
    from_lambda_event,
    read_delay,
)
from sqsdelay.errors import MalformedMessage

SENT = 1_800_000_000_000
SYSTEM = {
    "SentTimestamp": str(SENT),
    "ApproximateFirstReceiveTimestamp": str(SENT + 900_050),
    "ApproximateReceiveCount": "1",
    "MessageGroupId": "m-1",
    "MessageDeduplicationId": "m-1",
    "AWSTraceHeader": "Root=1-a;Sampled=1",
}


def copy(**changes: Any) -> ReceivedMessage:
    fields: dict[str, Any] = {
        "body": "hello",
        "attributes": {DELAY_SECONDS: string("1925")},
        "receipt_handle": "r",
        "sqs_message_id": "s",
        "received_at": 5.0,
        "sent_ms": SENT,
        "first_receive_ms": SENT + 900_050,
        "receive_count": 1,
        "group_id": "m-1",
        "deduplication_id": "m-1",
    }
    return ReceivedMessage(**fields | changes)


WHOLE = copy(
    attributes={
        "a": string("b"),
        "n": {"DataType": "Number.int", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    },
    trace_header="Root=1-a;Sampled=1",
)
BOTO3: dict[str, Any] = {
    "Body": "hello",
    "ReceiptHandle": "r",
    "MessageId": "s",
    "Attributes": SYSTEM,
    "MessageAttributes": WHOLE.attributes,
}
LAMBDA: dict[str, Any] = {
    "body": "hello",
    "receiptHandle": "r",
    "messageId": "s",
    "attributes": SYSTEM,
    "messageAttributes": {
        "a": {"dataType": "String", "stringValue": "b"},
        "n": {"dataType": "Number.int", "stringValue": "7", "stringListValues": []},
        "raw": {"dataType": "Binary", "binaryValue": "AP8="},
    },
}


def test_all_that_a_copy_says_is_read() -> None:
    """boto3's spelling and Lambda's make the same copy."""
    assert from_boto3(BOTO3, received_at=5.0) == WHOLE
    assert from_lambda_event(LAMBDA, received_at=5.0) == WHOLE
    assert WHOLE.message_id == "m-1"


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


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"body": "x"},
        {"body": "x", "receiptHandle": 5},
        {"body": None, "receiptHandle": "r"},
        {"body": "x", "receiptHandle": "r", "messageAttributes": {"b": None}},
        {"body": "x", "receiptHandle": "r", "messageAttributes": ["b"]},
        {"body": "x", "receiptHandle": "r", "attributes": ["b"]},
        None,
        "text",
    ],
)
def test_a_record_that_is_none_is_malformed_and_no_crash(record: Any) -> None:
    """Whatever arrives in an event, one error type says that it cannot be read."""
    with pytest.raises(MalformedMessage):
        from_lambda_event(record, received_at=0.0)


@pytest.mark.parametrize(
    "value",
    [
        {"dataType": "Binary"},
        {"dataType": "Binary", "binaryValue": "%"},
        {"dataType": "Binary", "binaryValue": 5},
        {"dataType": "String", "stringListValues": ["x"]},
        {"stringValue": "x"},
    ],
)
def test_an_unreadable_attribute_makes_a_reject_that_keeps_the_rest(value: dict[str, Any]) -> None:
    """Poison ends in the error queue with its reason; it does not fail for 14 days and vanish."""
    attributes = {
        "good": {"dataType": "String", "stringValue": "x"},
        DELAY_SECONDS: {"dataType": "String", "stringValue": "900"},
        "bad": value,
    }
    record = {
        "body": "x",
        "receiptHandle": "r",
        "attributes": SYSTEM,
        "messageAttributes": attributes,
    }
    received = from_lambda_event(record, received_at=0.0)
    assert read_delay(received) == Reject("message attribute 'bad' has no value of its type")
    assert set(received.attributes) == {"good", DELAY_SECONDS}


def test_due_is_sent_plus_delay_for_an_nservicebus_message() -> None:
    """A message with only DelaySeconds gets its due time from the broker's SentTimestamp."""
    assert read_delay(copy()) == DelayedMessage("m-1", SENT + 1_925_000)


def test_due_at_wins_over_the_remaining_seconds() -> None:
    """The absolute due time does not drift with the hops."""
    attributes = {DELAY_SECONDS: string("1000"), DUE_AT: string(str(SENT + 999_123))}
    assert read_delay(copy(attributes=attributes)) == DelayedMessage("m-1", SENT + 999_123)


def test_a_fractional_delay_keeps_its_milliseconds() -> None:
    """Rounding on the wire and at hand-over would add up to two seconds."""
    attributes = outgoing.delayed(remaining_ms=1_925_250, due_ms=None, message_group_id=None)
    assert attributes == {DELAY_SECONDS: string("1926"), DELAY_MS: string("1925250")}
    assert read_delay(copy(attributes=attributes)) == DelayedMessage("m-1", SENT + 1_925_250)


@pytest.mark.parametrize("exact", ["1925250", "abc", "", "9" * 15])
def test_milliseconds_count_only_where_they_agree_with_the_seconds(exact: str) -> None:
    """A relay that rewrites only DelaySeconds leaves stale milliseconds behind."""
    attributes = {DELAY_SECONDS: string("1025"), DELAY_MS: string(exact)}
    assert read_delay(copy(attributes=attributes)) == DelayedMessage("m-1", SENT + 1_025_000)


DAY = 24 * 3600


@pytest.mark.parametrize(
    ("attributes", "changes", "reason"),
    [
        ({}, {}, "DelaySeconds is missing"),
        ({DUE_AT: string("1")}, {}, "DelaySeconds is missing"),
        ({DELAY_SECONDS: string("")}, {}, "not a whole number"),
        ({DELAY_SECONDS: string("-5")}, {}, "DelaySeconds is '-5', not a whole number"),
        ({DELAY_SECONDS: string("1.5")}, {}, "not a whole number"),
        ({DELAY_SECONDS: string("1e3")}, {}, "not a whole number"),
        ({DELAY_SECONDS: string("٣")}, {}, "not a whole number"),
        *(
            ({DELAY_SECONDS: string(text)}, {}, "not a whole number")
            for text in ("1_000", "+30", " 30", "30\n", "NaN", "0x10", "9" * 5000)
        ),
        ({DELAY_SECONDS: string(str(2**63))}, {}, "not a whole number"),
        ({DELAY_SECONDS: {"DataType": "Binary", "BinaryValue": b"9"}}, {}, "not a whole number"),
        ({DELAY_SECONDS: string("9" * 15)}, {}, "after the year 9999"),
        ({DELAY_SECONDS: string("901")}, {"sent_ms": None}, "SentTimestamp is missing"),
        (
            {DELAY_SECONDS: string("901"), DUE_AT: string("soon")},
            {},
            "DueAt is 'soon', not epoch milliseconds",
        ),
        *(
            ({DELAY_SECONDS: string("901"), DUE_AT: string(text)}, {}, "not epoch milliseconds")
            for text in ("-1", "", "١٨٠٠٠٠٠٠٠٠٠٠٠", "9" * 5000)
        ),
        ({DELAY_SECONDS: string("901"), DUE_AT: string("0")}, {}, "contradict each other"),
        ({DELAY_SECONDS: string("901"), DUE_AT: string("9" * 15)}, {}, "contradict each other"),
        (
            {DELAY_SECONDS: string("901"), DUE_AT: string(str(SENT - DAY * 1000))},
            {"deduplication_id": f"hop.{SENT}.{'0' * 64}"},
            "contradict each other",
        ),
        (
            {DELAY_SECONDS: string("901"), DUE_AT: string(str(SENT + (901 + DAY) * 1000 + 1))},
            {},
            "contradict each other: 86400001 ms apart",
        ),
    ],
)
def test_what_does_not_say_when_it_is_due_is_rejected_with_a_reason(
    attributes: dict[str, Attribute], changes: dict[str, Any], reason: str
) -> None:
    """Never 'deliver now' by default, never a crash."""
    read = read_delay(copy(attributes=attributes, **changes))
    assert isinstance(read, Reject)
    assert reason in read.reason


def test_a_days_disagreement_is_explained_by_clocks() -> None:
    """A sender's clock that is wrong by minutes must not make its messages rejects."""
    attributes = {DELAY_SECONDS: string("901"), DUE_AT: string(str(SENT + (901 + DAY) * 1000))}
    assert read_delay(copy(attributes=attributes)) == DelayedMessage(
        "m-1", SENT + (901 + DAY) * 1000
    )


@given(
    st.dictionaries(
        st.sampled_from([DELAY_SECONDS, DUE_AT, DELAY_MS]),
        st.one_of(
            st.text(max_size=20).map(string),
            st.integers(-(2**70), 2**70).map(str).map(string),
            st.binary(max_size=9).map(lambda b: Attribute(DataType="Binary", BinaryValue=b)),
        ),
    ),
    st.one_of(st.none(), st.integers(0, MAX_DUE_MS)),
)
def test_any_attributes_are_read_or_rejected(
    attributes: dict[str, Attribute], sent_ms: int | None
) -> None:
    """A due time within what clocks can show, or a reason; nothing else."""
    read = read_delay(copy(attributes=attributes, sent_ms=sent_ms))
    if isinstance(read, DelayedMessage):
        assert 0 <= read.due_ms <= MAX_DUE_MS
    else:
        assert read.reason


def test_a_requeued_copy_keeps_everything_and_rewrites_the_delay() -> None:
    """Due is set once; the remaining seconds are rewritten; milliseconds are done with."""
    attributes = {
        "user": string("x"),
        DELAY_SECONDS: string("1926"),
        DELAY_MS: string("1925250"),
        GROUP_ID: string("tenant"),
    }
    entry = outgoing.requeued(
        copy(attributes=attributes, trace_header="Root=1-a"),
        DelayedMessage("m-1", SENT + 1_925_250),
        1025,
    )
    assert entry.attributes == {
        "user": string("x"),
        DELAY_SECONDS: string("1025"),
        DUE_AT: string(str(SENT + 1_925_250)),
        GROUP_ID: string("tenant"),
        MESSAGE_ID: string("m-1"),
    }
    assert (entry.body, entry.group_id, entry.delay_seconds) == ("hello", "m-1", None)
    assert entry.trace_header == "Root=1-a"


def test_hops_never_swallow_each_other_and_a_copy_requeued_twice_is_one() -> None:
    """The deduplication id is the copy's: same copy same id, next hop another, always short enough."""
    message = DelayedMessage("x" * 128, SENT)
    first = outgoing.requeued(copy(), message, 1000)
    again = outgoing.requeued(copy(receive_count=2, receipt_handle="r2"), message, 1000)
    next_hop = outgoing.requeued(copy(sent_ms=SENT + 900_100), message, 1000)
    beside = outgoing.requeued(copy(sqs_message_id="other"), message, 1000)
    assert first.deduplication_id == again.deduplication_id
    assert len({first.deduplication_id, next_hop.deduplication_id, beside.deduplication_id}) == 3
    assert len(first.deduplication_id or "") <= 128
    assert first.deduplication_id != message.message_id


def test_messages_of_a_foreign_sender_in_one_group_stay_apart() -> None:
    """Sent in one batch, in the same millisecond: each keeps an id of its own through its hops."""
    copies = [
        copy(group_id="tenant", deduplication_id=f"d-{n}", sqs_message_id=f"s-{n}") for n in (1, 2)
    ]
    read = [read_delay(each) for each in copies]
    assert read == [
        DelayedMessage("d-1", SENT + 1_925_000),
        DelayedMessage("d-2", SENT + 1_925_000),
    ]
    hops = [
        outgoing.requeued(c, m, 1000)
        for c, m in zip(copies, read, strict=True)
        if isinstance(m, DelayedMessage)
    ]
    assert [hop.group_id for hop in hops] == ["d-1", "d-2"]
    assert hops[0].deduplication_id != hops[1].deduplication_id
    again = copy(group_id="d-1", deduplication_id=hops[0].deduplication_id)
    assert again.message_id == "d-1"


def test_a_full_foreign_message_is_requeued_in_its_own_format() -> None:
    """Ten attributes leave no room for DueAt; the message goes on with what it had."""
    attributes = {f"a{n}": string("x") for n in range(9)} | {DELAY_SECONDS: string("2000")}
    entry = outgoing.requeued(copy(attributes=attributes), DelayedMessage("m-1", SENT), 1100)
    assert entry.attributes == attributes | {DELAY_SECONDS: string("1100")}


def test_a_handed_over_message_is_the_users_with_id_and_due_time() -> None:
    """Receivers deduplicate by the id and can tell lateness by the due time."""
    attributes = {
        "user": Attribute(DataType="Binary.x", BinaryValue=b"1"),
        DELAY_SECONDS: string("50"),
        DUE_AT: string(str(SENT + 50_000)),
        GROUP_ID: string("tenant"),
    }
    entry = outgoing.handed_over(
        copy(attributes=attributes),
        DelayedMessage("m-1", SENT + 50_000),
        Endpoint.parse("orders"),
        delay_seconds=50,
    )
    assert entry.attributes == {
        "user": attributes["user"],
        MESSAGE_ID: string("m-1"),
        WAS_DUE_AT: string(str(SENT + 50_000)),
    }
    assert (entry.delay_seconds, entry.group_id, entry.deduplication_id) == (50, "tenant", None)


def test_a_full_foreign_message_is_handed_over_with_what_fits() -> None:
    """Nine attributes and DelaySeconds become nine and the id; the due time has no room."""
    users = {f"a{n}": string("x") for n in range(9)}
    attributes = users | {DELAY_SECONDS: string("50")}
    entry = outgoing.handed_over(
        copy(attributes=attributes),
        DelayedMessage("m-1", SENT),
        Endpoint.parse("orders"),
        delay_seconds=0,
    )
    assert entry.attributes == users | {MESSAGE_ID: string("m-1")}


def test_id_and_due_time_are_added_to_the_byte_and_the_body_measured_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[str] = []

    def counted(body: str, attributes: dict[str, Attribute]) -> int:
        measured.append(body)
        return size_of(body, attributes)

    monkeypatch.setattr("sqsdelay.core.message.size_of", counted)
    ours = outgoing.identity("m-1", SENT)
    limit = size_of("ü", ours)
    told = DelayedMessage("m-1", SENT)
    assert outgoing.with_identity("ü", {}, told, limit=limit) == ours
    assert measured == ["ü", "", ""]
    assert [*outgoing.with_identity("ü", {}, told, limit=limit - 1)] == [MESSAGE_ID]


@pytest.mark.parametrize(
    ("header", "passed_on"),
    [
        (None, None),
        ("Root=1-a;Parent=b;Sampled=1", "Root=1-a;Parent=b;Sampled=1"),
        ("Root=1-a;Parent=b;Sampled=1;Lineage=1:fa:2", "Root=1-a;Parent=b;Sampled=1"),
        ("Lineage=1:fa:2", None),
        ("Root=1-a; Lineage=x:0|y:1 ;Sampled=0", "Root=1-a;Sampled=0"),
    ],
)
def test_the_trace_header_goes_on_without_lambdas_lineage(
    header: str | None, passed_on: str | None
) -> None:
    """Lambda would count the relay's hops as recursion of the user's functions."""
    assert trace_header_to_pass_on(header) == passed_on


def test_without_its_identity_an_entry_says_how_large_it_is() -> None:
    """By that size it is put into a batch, and compared with what its queue takes."""
    due = {MESSAGE_ID: string("m-1"), WAS_DUE_AT: string(str(SENT))}
    users = {"user": string("ü")}
    both = OutgoingMessage("bödy", users | due, size_of("bödy", users | due), group_id="g")
    left = without_identity(both)
    assert left == OutgoingMessage("bödy", users, size_of("bödy", users), group_id="g")
    assert without_identity(left) is None


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
    told = read_delay(copy(attributes={DELAY_SECONDS: attribute}))
    assert told == Reject(f"{DELAY_SECONDS} is {shown}, not a whole number of seconds")


def test_the_last_millisecond_of_the_calendar_is_a_due_time() -> None:
    """And the next one is none."""
    seconds = (MAX_DUE_MS - SENT) // 1000
    last = {DELAY_SECONDS: string(str(seconds)), DUE_AT: string(str(MAX_DUE_MS))}
    assert read_delay(copy(attributes=last)) == DelayedMessage("m-1", MAX_DUE_MS)
    after = {**last, DUE_AT: string(str(MAX_DUE_MS + 1))}
    assert isinstance(read_delay(copy(attributes=after)), Reject)


def test_the_next_copy_has_an_id_of_its_message() -> None:
    """Two messages' copies never share one, though all else be alike."""
    one, other = (
        outgoing.requeued(copy(), DelayedMessage(name, 0), 900) for name in ("m-1", "m-2")
    )
    assert one.deduplication_id == outgoing.hop_deduplication_id(copy(), "m-1", copy().sent_ms)
    assert other.deduplication_id == outgoing.hop_deduplication_id(copy(), "m-2", copy().sent_ms)
    assert one.deduplication_id != other.deduplication_id


def test_an_id_with_a_lone_surrogate_still_hops() -> None:
    """moto lets one through; it must not stop the worker."""
    assert outgoing.hop_deduplication_id(copy(), "\ud800").startswith("hop.")


@pytest.mark.parametrize(("group", "kept"), [("g", "g"), ("a b", None), ("", None)])
def test_a_group_is_handed_over_where_a_queue_takes_it(group: str, kept: str | None) -> None:
    """Any other would have the whole message refused."""
    grouped, said = copy(attributes={GROUP_ID: string(group)}), DelayedMessage("m", 0)
    sent = outgoing.handed_over(grouped, said, Endpoint.parse("orders"), delay_seconds=0)
    assert sent.group_id == kept


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_a_message_that_fits_at_its_largest_stage(spare: int) -> None:
    """The quick answer and the exact one are the same size, at the limit and beside it."""
    size = MAX_MESSAGE_BYTES - MOST_ADDED_BYTES - spare
    added = size_of("", {DELAY_SECONDS: string("901"), MESSAGE_ID: string("m")})
    message = checked(Message("x" * (size - added), delay=901), fifo=False)
    first = outgoing.first_copy(message, ("m", None), remaining_ms=901_000, due_ms=SENT, chance=1)
    assert first.size == size_of(first.body, first.attributes) == size
