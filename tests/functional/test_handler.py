"""The Lambda handler: the same relay, in Lambda's spelling."""

from __future__ import annotations

import base64
import io
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
import time_machine
from moto import mock_aws
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lambdas.delay_consumer import handler as module
from lambdas.settings import Until
from sqsdelay.errors import (
    ConfigurationError,
    InvalidEndpoint,
    MalformedMessage,
    SchemaMismatch,
    SqsDelayError,
)
from sqsdelay.ledger.events import EventKind, from_json
from sqsdelay.ledger.firehose import CALL_SECONDS
from sqsdelay.opentelemetry import OpenTelemetryTracing
from sqsdelay.stores import open_store
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import create_endpoint, in_queue
from tests.services.lambda_function import Context

START = datetime(2027, 3, 1, 12, tzinfo=UTC)
START_MS = round(START.timestamp() * 1000)


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An endpoint on moto and the function's environment, wired anew for each test."""
    with endpoint("orders", monkeypatch) as client:
        yield client


@pytest.fixture
def fifo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A FIFO endpoint on moto, and its function."""
    with endpoint("orders.fifo", monkeypatch) as client:
        yield client


@contextmanager
def endpoint(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("SQSDELAY_ENDPOINT", name)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders-delay")
    module.function.cache_clear()
    with mock_aws(), time_machine.travel(START, tick=False) as travel:
        client = boto3.client("sqs")
        create_endpoint(client, name)
        travel.shift(900)
        yield client
    module.function.cache_clear()
    # A logger keeps the level of a test's POWERTOOLS_LOG_LEVEL.
    logging.getLogger(name).setLevel(logging.INFO)


def record(message_id: str, delay_seconds: str | None, **attributes: Any) -> dict[str, Any]:
    """A record as Lambda passes it on from a FIFO queue."""
    ours = {} if delay_seconds is None else {
        "NServiceBus.AmazonSQS.DelaySeconds": {
            "stringValue": delay_seconds,
            "stringListValues": [],
            "binaryListValues": [],
            "dataType": "String",
        }
    }  # fmt: skip
    return {
        "messageId": message_id,
        "receiptHandle": f"handle-{message_id}",
        "body": f"body of {message_id}",
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": str(START_MS),
            "ApproximateFirstReceiveTimestamp": str(START_MS + 900_000),
            "MessageGroupId": message_id,
            "MessageDeduplicationId": message_id,
            "SequenceNumber": "18849496460467696128",
            "SenderId": "AIDA",
        },
        "messageAttributes": ours | attributes,
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:orders-delay.fifo",
        "awsRegion": "us-east-1",
    }


def url_of(sqs: Any, name: str) -> str:
    return str(sqs.get_queue_url(QueueName=name)["QueueUrl"])


def delayed(sqs: Any, name: str) -> str:
    """How many of a queue's messages wait for a timer."""
    told = sqs.get_queue_attributes(QueueUrl=url_of(sqs, name), AttributeNames=["All"])
    return str(told["Attributes"]["ApproximateNumberOfMessagesDelayed"])


def set_delay(sqs: Any, seconds: int) -> None:
    """The delay queue's."""
    url = url_of(sqs, "orders-delay.fifo")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": str(seconds)})


def handled(*records: Any) -> list[str]:
    """The ids of those records that Lambda must not delete."""
    answer = module.handler({"Records": list(records)}, Context())
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def test_records_are_relayed_and_none_is_reported_failed(sqs: Any) -> None:
    """Hand over, requeue and reject in one event; Lambda may delete all three."""
    binary = {"dataType": "Binary", "binaryValue": base64.b64encode(b"\x00\xff").decode()}
    due = record("now", "900", picture=binary)
    wrong = record("poison", "soon"), record("bare", None)
    assert handled(due, record("hops", "5000"), *wrong) == []
    (arrived,) = in_queue(sqs, "orders")
    expected = {"BinaryValue": b"\x00\xff", "DataType": "Binary"}
    assert arrived["MessageAttributes"]["picture"] == expected
    bodies = {m["Body"] for m in in_queue(sqs, "orders-delay-error")}
    assert bodies == {"body of poison", "body of bare"}
    assert delayed(sqs, "orders-delay.fifo") == "1"


def test_one_failing_message_fails_alone(sqs: Any) -> None:
    """The destination is gone: its hand-over is reported, the hop beside it is not."""
    sqs.delete_queue(QueueUrl=url_of(sqs, "orders"))
    assert handled(record("now", "900"), record("hops", "5000")) == ["now"]


def test_a_record_without_a_body_fails_alone(sqs: Any) -> None:
    """What is no record of a queue is reported, and does not take the others with it."""
    bad = {"messageId": "bad", "receiptHandle": "handle"}
    assert handled(bad, record("now", "900")) == ["bad"]
    assert len(in_queue(sqs, "orders")) == 1


def test_an_attribute_that_is_no_base64_is_rejected_with_its_reason(sqs: Any) -> None:
    """It can never be relayed intact, so it goes to the error queue instead of failing for 14 days."""
    bad = record("bad", "900", picture={"dataType": "Binary", "binaryValue": "%%%"})
    assert handled(bad) == []
    (rejected,) = in_queue(sqs, "orders-delay-error")
    error = json.loads(rejected["MessageAttributes"]["sqsdelay.Error"]["StringValue"])
    assert error["reason"] == "message attribute 'picture' has no value of its type"


@pytest.mark.parametrize("item", [{"body": "x"}, None, "text"])
def test_a_record_without_an_id_is_an_error_lambda_counts(sqs: Any, item: Any) -> None:
    """An item identifier Lambda does not know would fail the whole batch without a word."""
    with pytest.raises(MalformedMessage):
        handled(item)


def test_the_hop_is_the_deployed_queues(sqs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hop set shorter than the queue's delay would requeue what a message timer should hold."""
    monkeypatch.setenv("SQSDELAY_HOP_SECONDS", "60")
    assert handled(record("last", "1000")) == []
    assert delayed(sqs, "orders") == "1"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SQSDELAY_ENDPOINT", "", "is not a queue name"),
        ("SQSDELAY_HOP_SECONDS", "1.5", "SQSDELAY_HOP_SECONDS='1.5' is not a whole number"),
        ("SQSDELAY_MAX_RECEIVES", "0", "max_receives=0; use 1 or more"),
        ("SQSDELAY_LEDGER", "file", "'file'; use true or firehose://NAME, or leave"),
        ("SQSDELAY_LEDGER", "firehose://", "SQSDELAY_LEDGER='firehose://'; use true or"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    sqs: Any, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    """The function does not start, its error says what to set, and the messages stay."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(SqsDelayError, match=message):
        handled(record("now", "900"))


def test_while_a_deployment_changes_the_hop_the_queue_is_read_each_time(sqs: Any) -> None:
    """Refusing would hide the batch for a visibility timeout; remembering would make messages late."""
    set_delay(sqs, 10)
    assert handled(record("m-1", "1000")) == []
    assert module.function.cache_info().currsize == 0
    set_delay(sqs, 900)
    assert handled(record("m-2", "1000")) == []
    assert module.function.cache_info().currsize == 1


def test_a_delay_queue_without_a_delay_is_an_error_lambda_counts(sqs: Any) -> None:
    """Requeueing would spin; nothing is sent, the alarm on errors rings, the messages stay."""
    set_delay(sqs, 0)
    with pytest.raises(ConfigurationError, match="its delay of 0 s is shorter than the hop of 1 s"):
        handled(record("now", "900"))


@pytest.mark.parametrize("event", [{}, {"Records": None}, {"detail": "scheduled"}])
def test_an_event_that_is_none_of_sqs_is_an_error_lambda_counts(sqs: Any, event: Any) -> None:
    """A wrong trigger must ring the errors alarm, not be answered with success."""
    with pytest.raises(MalformedMessage, match="not an SQS event"):
        module.handler(event, Context())


def test_metrics_tell_hops_hand_overs_lateness_and_failures(
    sqs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """One EMF line per invocation, which CloudWatch turns into the dashboard's metrics."""
    handled(record("now", "900"), record("hops", "5000"), record("p", "x"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    (emf,) = lines
    assert (emf["HandedOver"], emf["Hops"], emf["Rejected"], emf["Failed"]) == ([1], [1], [1], [0])
    assert 0 <= emf["Lateness"][0] < 5_000  # the wiring of a cold start, in real time
    assert emf["service"] == "orders"


@pytest.mark.parametrize(("timeout_seconds", "sent"), [(5, 10), (10, 20), (30, 30), (60, 30)])
def test_the_functions_time_is_its_contexts(
    sqs: Any, monkeypatch: pytest.MonkeyPatch, timeout_seconds: int, sent: int
) -> None:
    """Three seconds a send: it answers in time, and names just those it has not sent."""
    client, passed = module.function().relay._queues._client, [0.0]  # type: ignore[attr-defined]

    def slow(**_: Any) -> None:
        passed[0] += 3

    client.meta.events.register("before-send.sqs.SendMessageBatch", slow)
    monkeypatch.setattr(Until, "seconds_left", lambda self: timeout_seconds - 1 - passed[0])
    records = [record(f"m-{n}", "900") for n in range(30)]
    answer = module.handler({"Records": records}, Context(timeout_seconds * 1000))
    assert passed[0] < timeout_seconds
    failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
    assert failed == {f"m-{n}" for n in range(sent, 30)}
    arrived = {m["Body"] for _ in range(6) for m in in_queue(sqs, "orders")}
    assert arrived == {f"body of m-{n}" for n in range(sent)}


def test_no_body_is_logged(sqs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages may hold what logs must not; ids and reasons are enough."""
    handled(record("now", "900"), record("p", "x"))
    assert "body of" not in capsys.readouterr().out


def test_lambdas_own_trace_header_does_not_travel_on(
    sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 adds the invocation's trace header, with its recursion count, to each call; off it comes."""
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-abc;Parent=def;Sampled=0;Lineage=1:fa:15")
    calls: list[list[str]] = []
    client = module.function().relay._queues._client  # type: ignore[attr-defined]
    client.meta.events.register_last(
        "before-send.sqs",
        lambda request, **_: calls.append([name.lower() for name in request.headers]),
    )
    handled(record("now", "900"))
    assert calls
    assert not [headers for headers in calls if "x-amzn-trace-id" in headers]


def traced(function: ModuleType, monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Its spans, as where the layer that traces functions brings OpenTelemetry."""
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = OpenTelemetryTracing(provider)
    monkeypatch.setattr(function, "if_installed", lambda ledger: (tracing, ledger))
    return spans


def test_a_delivery_begins_a_trace_linked_to_the_send(
    sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A span of its own, which names the one of the send."""
    spans = traced(module, monkeypatch)
    due = record("now", "900")
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    due["attributes"]["AWSTraceHeader"] = header
    assert handled(due) == []
    (span,) = spans.get_finished_spans()
    assert (span.name, span.parent) == ("deliver orders", None)
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["53995c3f42cd8ad8"]


DUE_ARN = "arn:aws:sqs:us-east-1:123456789012:orders-due"
FIFO_IDS = {
    "sqsdelay.MessageGroupId": {"stringValue": "g", "dataType": "String"},
    "sqsdelay.MessageDeduplicationId": {"stringValue": "d", "dataType": "String"},
}


def test_a_fifo_endpoints_function_serves_both_queues(
    fifo: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the delay queue to the due queue, from the due queue to the FIFO queue, by the record's ARN."""
    assert handled(record("m-1", "900", **FIFO_IDS)) == []
    (due,) = in_queue(fifo, "orders-due")
    attributes = {
        name: {"stringValue": value["StringValue"], "dataType": "String"}
        for name, value in due["MessageAttributes"].items()
    }
    from_due_queue = record("due", None, **attributes) | {"eventSourceARN": DUE_ARN}
    assert handled(from_due_queue) == []
    (arrived,) = in_queue(fifo, "orders.fifo")
    assert arrived["Body"] == "body of due"
    assert arrived["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] == "m-1"
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert [(emf["HandedOver"], emf["Delivered"]) for emf in lines] == [([1], [0]), ([0], [1])]


def test_a_store_of_another_version_is_refused_before_anything_is_sent(
    fifo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due or not: it may have been cancelled there. SQS hands all of it out again. What has come to the due
    queue needs no store, and goes on."""
    url = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setenv("SQSDELAY_STORE", url)
    with closing(open_store(url, endpoint="orders.fifo")) as store:
        store.set_up()
    waiting = record("m-1", "900", **FIFO_IDS), record("m-2", "99999", **FIFO_IDS)
    due = record("due", None, **FIFO_IDS) | {"eventSourceARN": DUE_ARN}
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as connection:
        connection.execute('UPDATE "sqsdelay.versions" SET version = 2')
        for _ in range(2):
            with pytest.raises(SchemaMismatch, match=r"version 2, .*; name another table, and"):
                handled(*waiting)
            assert in_queue(fifo, "orders-due") == []
        assert handled(due) == []
        assert len(in_queue(fifo, "orders.fifo")) == 1
        connection.execute('UPDATE "sqsdelay.versions" SET version = 1')
    assert handled(*waiting) == []
    assert [each["Body"] for each in in_queue(fifo, "orders-due")] == ["body of m-1"]


def test_a_record_of_neither_queue_is_an_error_lambda_counts(fifo: Any) -> None:
    """A wrong event source must not be taken for the delay queue."""
    stray = record("x", "900", **FIFO_IDS) | {"eventSourceARN": DUE_ARN + "s"}
    with pytest.raises(MalformedMessage, match="event from orders-dues; this function serves"):
        handled(stray)


def test_a_message_the_fifo_queue_lacks_stays_on_the_due_queue(fifo: Any) -> None:
    """Reported as failed, so that Lambda does not delete it."""
    fifo.delete_queue(QueueUrl=url_of(fifo, "orders.fifo"))
    assert handled(record("due", None, **FIFO_IDS) | {"eventSourceARN": DUE_ARN}) == ["due"]


def test_with_a_store_the_function_parks(
    sqs: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQSDELAY_STORE names it, SQSDELAY_PARK_AFTER_SECONDS says from when on."""
    url = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setenv("SQSDELAY_STORE", url)
    monkeypatch.setenv("SQSDELAY_PARK_AFTER_SECONDS", "3600")
    with closing(open_store(url, endpoint="orders")) as store:
        store.set_up()
        assert handled(record("far", "9000"), record("near", "4000")) == []
        assert [m.message_id for m in store.pending(9)] == ["far"]
    (emf,) = [json.loads(x) for x in capsys.readouterr().out.splitlines() if "_aws" in x]
    assert (emf["Parked"], emf["Hops"]) == ([1], [1])


def test_importing_the_handler_reads_no_environment() -> None:
    """The function is wired at its first invocation, not on import."""
    module.function.cache_clear()
    with pytest.raises(InvalidEndpoint, match="is not a queue name"):
        module.function()


def function_log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What the function logs from here on. Its handlers keep the stream of the first test that ran."""
    log = io.StringIO()
    service = module.function().logger.service
    for name in (service, f"{service}-ledger"):
        for handler in logging.getLogger(name).handlers:
            monkeypatch.setattr(handler, "stream", log)
    return log


def ledger_lines(log: io.StringIO) -> list[str]:
    """The log lines that carry an event."""
    return [line for line in log.getvalue().splitlines() if "ledger" in json.loads(line)]


def test_the_ledger_is_off_unless_switched_on(sqs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log line for each message has its price."""
    log = function_log(monkeypatch)
    handled(record("now", "900"), record("poison", "soon"))
    assert "poison" in log.getvalue()
    assert ledger_lines(log) == []


def test_the_ledger_is_in_the_log_and_can_be_read_back(
    sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A structured line for each event, at any log level; `from_json` takes it as it is."""
    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "ERROR")
    monkeypatch.setenv("SQSDELAY_LEDGER", "true")
    log = function_log(monkeypatch)
    assert handled(record("now", "900"), record("hops", "5000"), record("poison", "soon")) == []
    lines = ledger_lines(log)
    assert {json.loads(line)["service"] for line in lines} == {"orders-ledger"}
    events = {event.message_id: event for event in map(from_json, lines)}
    assert {name: event.kind for name, event in events.items()} == {
        "now": EventKind.HANDED_OVER,
        "hops": EventKind.HOP,
        "poison": EventKind.REJECTED,
    }
    assert events["now"].due_ms == START_MS + 900_000
    assert events["now"].receive_batch == 3


@pytest.mark.parametrize("fault", ["", "no stream", "no time"])
def test_the_ledger_is_in_a_stream_or_else_in_the_log(
    sqs: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Every event, once; and whatever becomes of them, the messages are relayed."""
    monkeypatch.setenv("SQSDELAY_LEDGER", "firehose://events")
    s3, firehose = boto3.client("s3"), boto3.client("firehose")
    s3.create_bucket(Bucket="ledgers")
    target = {"RoleARN": "arn:aws:iam::123456789012:role/r", "BucketARN": "arn:aws:s3:::ledgers"}
    if fault != "no stream":
        firehose.create_delivery_stream(
            DeliveryStreamName="events", ExtendedS3DestinationConfiguration=target
        )
    log = function_log(monkeypatch)
    for _ in range(2):
        records = [record("now", "900"), record("hops", "5000")]
        context = Context(CALL_SECONDS * 1000 if fault == "no time" else 30_000)
        assert module.handler({"Records": records}, context) == {"batchItemFailures": []}
    objects = s3.list_objects_v2(Bucket="ledgers").get("Contents", [])
    bodies = [s3.get_object(Bucket="ledgers", Key=each["Key"])["Body"].read() for each in objects]
    delivered = b"".join(bodies).splitlines()
    logged = ledger_lines(log)
    assert bool(delivered) == (not logged) == (not fault)
    lines: list[str | bytes] = [*delivered, *logged]
    events = [from_json(line) for line in lines]
    assert Counter((event.message_id, event.kind) for event in events) == {
        ("now", EventKind.HANDED_OVER): 2,
        ("hops", EventKind.HOP): 2,
    }


def test_a_fifo_endpoints_due_queue_is_in_the_ledger_too(
    sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step to the FIFO queue is recorded by the same function."""
    monkeypatch.setenv("SQSDELAY_LEDGER", "true")
    monkeypatch.setenv("SQSDELAY_ENDPOINT", "pay.fifo")
    create_endpoint(sqs, "pay.fifo")
    ours = {"sqsdelay.MessageId": "m", "sqsdelay.DueAt": str(START_MS + 899_500)}
    texts = {name: {"dataType": "String", "stringValue": value} for name, value in ours.items()}
    due = record("m", None, **FIFO_IDS, **texts)
    due["attributes"] = {
        name: value for name, value in due["attributes"].items() if not name.startswith("Message")
    }
    due["eventSourceARN"] = "arn:aws:sqs:us-east-1:123456789012:pay-due"
    log = function_log(monkeypatch)
    assert handled(due) == []
    (line,) = ledger_lines(log)
    event = from_json(line)
    told = event.kind, event.endpoint, event.message_id
    assert told == (EventKind.HANDED_OVER, "pay.fifo", "m")
    assert event.late_ms is not None
    assert 500 <= event.late_ms < 500 + PATIENCE_SECONDS * 1000
