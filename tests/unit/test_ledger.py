"""The ledger's lines: what is written is read back, and what cannot be read says why. In a Firehose stream a
batch is one record, and nothing is lost when it is not taken."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError
from hypothesis import given
from hypothesis import strategies as st

from sqsdelay.core.message import DUE_AT, MESSAGE_ID, Route
from sqsdelay.core.received_message import from_boto3
from sqsdelay.errors import MalformedEvent, SqsDelayError
from sqsdelay.ledger.events import (
    LEDGER_VERSION,
    Event,
    EventKind,
    Source,
    from_json,
    record_safely,
    to_json,
)
from sqsdelay.ledger.files import record_received, waited_ms
from sqsdelay.ledger.firehose import MAX_RECORD_BYTES, PAUSE_SECONDS, FirehoseLedger
from sqsdelay.testing import InMemoryLedger, ManualClock

SENT = Event(
    kind=EventKind.SENT,
    at_ms=1_700_000_000_000,
    endpoint="orders",
    message_id="order-7",
    source=Source.SENDER,
    due_ms=1_700_001_800_000,
    size=120,
    batch=10,
    route=Route.DELAY_QUEUE,
    sqs_message_id="5f1e",
)
LINE = (
    '{"v":1,"event":"sent","at_ms":1700000000000,"endpoint":"orders","message_id":"order-7",'
    '"source":"sender","due_ms":1700001800000,"size":120,"batch":10,"route":"delay-queue",'
    '"sqs_message_id":"5f1e"}'
)

whole = st.integers(min_value=-(2**53), max_value=2**53)
natural = st.integers(min_value=0, max_value=2**53)
text = st.text(min_size=1)


def test_an_events_line_is_the_documented_one() -> None:
    """Field names, their order, and that a field which is not known is left out."""
    assert to_json(SENT) == LINE
    assert from_json(LINE) == SENT
    assert from_json(LINE.encode() + b"\n") == SENT


@given(
    st.builds(
        Event,
        kind=st.sampled_from(EventKind),
        at_ms=whole,
        endpoint=text,
        message_id=text,
        source=st.sampled_from(Source),
        due_ms=st.none() | whole,
        size=st.none() | natural,
        batch=st.none() | st.integers(1, 10),
        receive_batch=st.none() | st.integers(1, 10),
        route=st.none() | st.sampled_from(Route),
        timer_seconds=st.none() | st.integers(0, 900),
        late_ms=st.none() | whole,
        enqueued_ms=st.none() | natural,
        reason=st.none() | text,
        sqs_message_id=st.none() | text,
    )
)
def test_any_event_comes_back_from_its_line(event: Event) -> None:
    """One line, whatever text an id or a reason holds."""
    line = to_json(event)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert from_json(line) == event


def test_fields_of_a_later_writer_are_passed_over() -> None:
    """Within a version fields may be added; readers live on."""
    assert from_json(LINE.replace('"v":1', '"v":1,"colour":"red"')) == SENT


@pytest.mark.parametrize(
    "line",
    [
        f'{{"level":"INFO","message":"event","service":"orders","ledger":{LINE}}}',
        f'{{"level":"INFO","message":{LINE},"service":"orders"}}',
        json.dumps({"level": "INFO", "message": LINE}),
        f"2026-11-20T09:30:00.123Z {LINE}",
        f'2026-11-20T09:30:00+00:00 {{"message":"event","ledger":{LINE}}}\n',
    ],
)
def test_a_line_of_an_exported_log_is_read(line: str) -> None:
    """As Powertools nests it, and with the timestamp that CloudWatch's exports put first."""
    assert from_json(line) == SENT


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("", "not a line of JSON"),
        (LINE[:40], "not a line of JSON"),
        (b"\xff\xfe", "not a line of JSON"),
        ("[" * 100_000, "not a line of JSON"),
        ("[1]", "a JSON list, not a JSON object"),
        ('{"level":"INFO","message":"started"}', 'it has no "v"'),
        (LINE.replace('"v":1', '"v":"1"'), "v='1' is not a ledger version"),
        (LINE.replace('"v":1', '"v":true'), "v=True is not a ledger version"),
        (LINE.replace('"v":1', '"v":2'), f"v=2, this sqsdelay reads up to {LEDGER_VERSION}"),
        (LINE.replace('"event":"sent",', ""), "event is missing"),
        (LINE.replace('"order-7"', "null"), "message_id is missing"),
        (LINE.replace('"sent"', '"lost"'), "event='lost'; known are sent, hop"),
        (LINE.replace('"delay-queue"', '"by-air"'), "route='by-air'; known are direct"),
        (LINE.replace("1700000000000", "1.5"), "at_ms=1.5 is not a whole number"),
        (LINE.replace("120", "true"), "size=True is not a whole number"),
        (LINE.replace("120", "-1"), "size=-1; the minimum is 0"),
        (LINE.replace('"batch":10', '"batch":0'), "batch=0; the minimum is 1"),
        (LINE.replace('"order-7"', "7"), "message_id=7 is not text"),
        (LINE.replace('"order-7"', '""'), "message_id='' is not text"),
    ],
)
def test_a_bad_line_says_what_is_wrong(line: str | bytes, wrong: str) -> None:
    """A report keeps bad lines aside, with the reason."""
    with pytest.raises(MalformedEvent) as raised:
        from_json(line)
    assert wrong in str(raised.value)
    assert isinstance(raised.value, SqsDelayError)


def test_every_field_is_in_the_line_of_an_event_that_has_them_all() -> None:
    """A field added to the record and forgotten in the line would be lost without a word."""
    line = json.loads(to_json(SENT))
    known = {field.name for field in fields(Event)} - {"kind"} | {"v", "event"}
    unset = {"receive_batch", "timer_seconds", "late_ms", "enqueued_ms", "reason"}
    assert set(line) == known - unset


def test_a_failing_ledger_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk costs the events, and nothing else."""
    ledger = InMemoryLedger()
    ledger.fail = OSError(28, "No space left on device")
    with caplog.at_level(logging.WARNING, "sqsdelay"):
        record_safely(ledger, [SENT])
        record_received(ledger, "orders", [boto3_message()])
    told = "events are missing in the ledger, it failed: [Errno 28] No space left on device"
    assert caplog.messages == [told] * 2


def test_events_that_cannot_be_made_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Making an event must not stop a consumer either."""

    def broken() -> Iterator[Event]:
        yield SENT
        raise ValueError("no event of it")

    ledger = InMemoryLedger()
    with caplog.at_level(logging.WARNING, "sqsdelay"):
        record_safely(ledger, broken())
    assert ledger.events == []
    assert "no event of it" in caplog.text


def boto3_message(**system: str) -> dict[str, Any]:
    return {
        "MessageId": "sqs-1",
        "ReceiptHandle": "handle",
        "Body": "text",
        "Attributes": system,
        "MessageAttributes": {
            MESSAGE_ID: {"DataType": "String", "StringValue": "order-7"},
            DUE_AT: {"DataType": "String", "StringValue": "1700000000000"},
        },
    }


TIMES = {"ApproximateFirstReceiveTimestamp": "1700000000250", "SentTimestamp": "1699999998180"}
"""Its message timer of 2 s ends 180 ms after it was due, and it waits 70 ms for its receiver."""


def lambda_record() -> dict[str, Any]:
    message = boto3_message()
    return {
        "messageId": "sqs-1",
        "receiptHandle": "handle",
        "body": "text",
        "attributes": TIMES,
        "messageAttributes": {
            name: {"dataType": "String", "stringValue": value["StringValue"]}
            for name, value in message["MessageAttributes"].items()
        },
    }


RECEIVED = Event(
    kind=EventKind.RECEIVED,
    at_ms=1_700_000_000_250,
    endpoint="orders",
    message_id="order-7",
    source=Source.RECEIVER,
    due_ms=1_700_000_000_000,
    batch=1,
    late_ms=180,
    enqueued_ms=1_699_999_998_180,
    sqs_message_id="sqs-1",
)


@pytest.mark.parametrize(
    "message", [boto3_message(**TIMES), lambda_record()], ids=["boto3", "lambda"]
)
def test_a_receiver_records_how_late_a_message_came(message: dict[str, Any]) -> None:
    """In boto3's spelling and in Lambda's; by the broker's times, without the wait in the queue."""
    ledger = InMemoryLedger()
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
    record_received(ledger, url, [message])
    assert ledger.events == [RECEIVED]


@pytest.mark.parametrize(
    ("endpoint", "sent_ms", "received_ms", "late_ms"),
    [
        ("orders", 2_000, 90_000, 2_000),  # handed over after it was due: what follows is a wait
        ("orders", -1_500, 90_000, 500),  # by a message timer of two seconds
        ("orders", -1_500, 100, 100),  # of one: nothing is later than its reception
        ("orders", -9_000, -3_000, -3_000),  # early
        ("orders.fifo", -9_000, 90_000, -9_000),  # a FIFO queue has no timer, and shows it at once
    ],
)
def test_lateness_ends_when_the_queue_shows_the_message(
    endpoint: str, sent_ms: int, received_ms: int, late_ms: int
) -> None:
    """Whatever its receiver was doing then."""
    due_ms = 1_700_000_000_000
    message = boto3_message(
        ApproximateFirstReceiveTimestamp=str(due_ms + received_ms),
        SentTimestamp=str(due_ms + sent_ms),
    )
    ledger = InMemoryLedger()
    record_received(ledger, endpoint, [message])
    (event,) = ledger.events
    assert (event.late_ms, event.enqueued_ms) == (late_ms, due_ms + sent_ms)
    copy = from_boto3(message, received_at=0)
    assert waited_ms(copy, fifo=endpoint.endswith(".fifo")) == received_ms - late_ms


def test_a_receiver_without_the_brokers_time_tells_no_lateness() -> None:
    """The local clock says when, roughly; it must not pass for the broker's."""
    ledger, clock = InMemoryLedger(), ManualClock(1_700_000_009_000)
    record_received(ledger, "orders", [boto3_message()], clock=clock)
    (event,) = ledger.events
    assert (event.at_ms, event.late_ms) == (1_700_000_009_000, None)


def test_a_plain_message_is_known_by_sqss_own_id() -> None:
    """A direct message without an id of its own: the sender recorded the same id."""
    message = boto3_message(**TIMES)
    del message["MessageAttributes"]
    ledger = InMemoryLedger()
    record_received(ledger, "orders", [message])
    (event,) = ledger.events
    assert (event.message_id, event.due_ms, event.late_ms) == ("sqs-1", None, None)


@pytest.mark.parametrize(("endpoint", "message"), [("no queue", boto3_message()), ("orders", {})])
def test_recording_what_was_received_never_raises(
    endpoint: str, message: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A worker's messages are not lost for its book-keeping."""
    ledger = InMemoryLedger()
    record_received(ledger, endpoint, [message])
    assert ledger.events == []
    assert "events are missing in the ledger" in caplog.text


def test_a_line_of_a_log_is_read_once() -> None:
    """One timestamp before it goes, none within it, and other logs' words do not hide the event."""
    event = replace(RECEIVED, reason="2023-11-14T22:13:20.250Z {no json}")
    line = to_json(event)
    assert from_json(f"2023-11-14T22:13:20.250Z {line}") == event
    assert from_json(json.dumps({**json.loads(line), "message": "{}", "ledger": {}})) == event


def test_nothing_received_is_nothing_to_record(caplog: pytest.LogCaptureFixture) -> None:
    """No call of the ledger, and none of what is not there."""

    class Untouchable:
        def record(self, events: object) -> None:
            raise AssertionError("it was called")

    record_received(Untouchable(), "orders", [])
    record_received(None, "orders", [boto3_message()])
    assert caplog.messages == []


class Stream:
    """Takes records, or raises; as boto3's client does."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.calls = 0
        self.error: Exception | None = None

    def put_record(self, *, DeliveryStreamName: str, Record: dict[str, bytes]) -> dict[str, Any]:
        assert DeliveryStreamName == "events"
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.records.append(Record["Data"])
        return {"RecordId": str(len(self.records))}


@pytest.fixture
def stream() -> Stream:
    return Stream()


def firehose(stream: Stream, log: InMemoryLedger, **more: Any) -> FirehoseLedger:
    return FirehoseLedger("events", otherwise=log, client=stream, **more)


def read(records: list[bytes]) -> list[Event]:
    assert all(record.endswith(b"\n") for record in records), "objects are records put together"
    return [from_json(line) for record in records for line in record.splitlines()]


def test_a_batch_is_one_record_of_lines(stream: Stream) -> None:
    """Firehose bills each record as 5 KB at least, whatever it holds."""
    log = InMemoryLedger()
    events = [replace(SENT, message_id=f"é-{n}") for n in range(10)]
    firehose(stream, log).record(events)
    assert len(stream.records) == 1
    assert read(stream.records) == events
    assert log.events == []


def test_more_than_a_record_holds_is_several(stream: Stream) -> None:
    """In order; and an event that is too large for any goes elsewhere, alone."""
    log = InMemoryLedger()
    events = [replace(SENT, message_id=str(n), reason="x" * 300_000) for n in range(7)]
    events[5] = replace(events[5], reason="x" * MAX_RECORD_BYTES)
    firehose(stream, log).record(events)
    assert [record.count(b"\n") for record in stream.records] == [3, 2, 1]
    assert read(stream.records) == [*events[:5], events[6]]
    assert log.events == [events[5]]


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "ServiceUnavailableException"}}, "PutRecord"),
        ConnectTimeoutError(endpoint_url="https://firehose"),
    ],
)
def test_what_the_stream_does_not_take_goes_elsewhere(
    stream: Stream, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once; for a while the stream is not asked, for each call may take seconds of the relay's."""
    log, clock = InMemoryLedger(), ManualClock()
    ours = firehose(stream, log, clock=clock)
    stream.error = error
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            ours.record([replace(SENT, message_id=str(n))])
    assert [event.message_id for event in log.events] == ["0", "1", "2"]
    assert stream.calls == len(caplog.messages) == 1
    assert "stream events does not take events, they go elsewhere for 60 s" in caplog.text
    stream.error = None
    clock.advance(PAUSE_SECONDS)
    ours.record([SENT])
    assert read(stream.records) == [SENT]


def test_without_time_for_a_call_none_is_made(stream: Stream) -> None:
    """A function that is cut off would relay its messages again."""
    log, left = InMemoryLedger(), [False]
    ours = firehose(stream, log, may_call=lambda: left[0])
    ours.record([SENT])
    left[0] = True
    ours.record([SENT])
    assert (log.events, stream.calls) == ([SENT], 1)
