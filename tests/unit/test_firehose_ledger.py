"""A ledger in a Firehose stream: one record for each batch, and nothing lost when it is not taken."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError

from sqsdelay.ledger.events import Event, EventKind, Source, from_json
from sqsdelay.ledger.firehose import MAX_RECORD_BYTES, PAUSE_SECONDS, FirehoseLedger
from sqsdelay.testing import InMemoryLedger, ManualClock

HOP = Event(
    kind=EventKind.HOP,
    at_ms=1_800_000_000_000,
    endpoint="orders",
    message_id="order-7",
    source=Source.CONSUMER,
)


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


def ledger(stream: Stream, log: InMemoryLedger, **more: Any) -> FirehoseLedger:
    return FirehoseLedger("events", otherwise=log, client=stream, **more)


def read(records: list[bytes]) -> list[Event]:
    assert all(record.endswith(b"\n") for record in records), "objects are records put together"
    return [from_json(line) for record in records for line in record.splitlines()]


def test_a_batch_is_one_record_of_lines(stream: Stream) -> None:
    """Firehose bills each record as 5 KB at least, whatever it holds."""
    log = InMemoryLedger()
    events = [replace(HOP, message_id=f"é-{n}") for n in range(10)]
    ledger(stream, log).record(events)
    assert len(stream.records) == 1
    assert read(stream.records) == events
    assert log.events == []


def test_more_than_a_record_holds_is_several(stream: Stream) -> None:
    """In order; and an event that is too large for any goes elsewhere, alone."""
    log = InMemoryLedger()
    events = [replace(HOP, message_id=str(n), reason="x" * 300_000) for n in range(7)]
    events[5] = replace(events[5], reason="x" * MAX_RECORD_BYTES)
    ledger(stream, log).record(events)
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
    ours = ledger(stream, log, clock=clock)
    stream.error = error
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            ours.record([replace(HOP, message_id=str(n))])
    assert [event.message_id for event in log.events] == ["0", "1", "2"]
    assert stream.calls == len(caplog.messages) == 1
    assert "stream events does not take events, they go elsewhere for 60 s" in caplog.text
    stream.error = None
    clock.advance(PAUSE_SECONDS)
    ours.record([HOP])
    assert read(stream.records) == [HOP]


def test_without_time_for_a_call_none_is_made(stream: Stream) -> None:
    """A function that is cut off would relay its messages again."""
    log, left = InMemoryLedger(), [False]
    ours = ledger(stream, log, may_call=lambda: left[0])
    ours.record([HOP])
    left[0] = True
    ours.record([HOP])
    assert (log.events, stream.calls) == ([HOP], 1)
