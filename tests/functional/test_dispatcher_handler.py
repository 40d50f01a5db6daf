"""The dispatcher function: a schedule, a DynamoDB table, and the endpoint's queue."""

from __future__ import annotations

import io
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
import time_machine
from botocore.exceptions import ReadTimeoutError
from moto import mock_aws

from lambdas.dispatcher import handler as module
from sqsdelay.core.limits import ANSWER_SECONDS
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError, QueueUnavailable, StoreMissing, StoreUnavailable
from sqsdelay.ledger.events import EventKind, from_json
from sqsdelay.ports.queues import Failure
from sqsdelay.stores import DynamoDbStore
from tests.functional.test_handler import traced
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import create_endpoint, in_queue
from tests.services.lambda_function import Context

START = datetime(2027, 3, 1, 12, tzinfo=UTC)
START_MS = round(START.timestamp() * 1000)


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An endpoint on moto and the function's environment, wired anew for each test."""
    monkeypatch.setenv("SQSDELAY_ENDPOINT", "orders")
    monkeypatch.setenv("SQSDELAY_STORE", "dynamodb://parked?shards=2")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders-dispatcher")
    module.function.cache_clear()
    with mock_aws(), time_machine.travel(START, tick=False):
        client = boto3.client("sqs")
        create_endpoint(client, "orders")
        yield client
    module.function.cache_clear()


@pytest.fixture
def store(sqs: Any) -> Iterator[DynamoDbStore]:
    store = DynamoDbStore("parked", endpoint="orders", shards=2)
    store.set_up()
    yield store
    store.close()


def parked(message_id: str, in_seconds: int, destination: str = "orders") -> StoredMessage:
    return a_message(
        message_id,
        START_MS + in_seconds * 1000,
        to=destination,
        body=f"body of {message_id}".encode(),
    )


def test_releases_what_is_due_within_a_message_timer(sqs: Any, store: DynamoDbStore) -> None:
    """900 s ahead goes with a timer for the rest; a second more stays."""
    store.store([parked("now", -5), parked("soon", 900), parked("later", 901)])
    assert module.handler({}, Context()) == {"released": 2, "rejected": 0, "failed": 0, "held": 0}
    assert [m.message_id for m in store.pending(10)] == ["later"]
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == "1"
    assert attributes["ApproximateNumberOfMessagesDelayed"] == "1"
    (received,) = in_queue(sqs, url)
    assert received["Body"] == "body of now"
    assert received["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] == "now"


def test_a_release_begins_a_trace_linked_to_the_send(
    sqs: Any, store: DynamoDbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header that the message was stored with names the span of its send."""
    spans = traced(module, monkeypatch)
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    store.store([replace(parked("now", -5), trace_header=header)])
    assert module.handler({}, Context())["released"] == 1
    (span,) = spans.get_finished_spans()
    assert (span.name, span.parent) == ("deliver orders", None)
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["53995c3f42cd8ad8"]


def test_what_cannot_be_sent_is_rejected_with_a_reason(sqs: Any, store: DynamoDbStore) -> None:
    """A destination that does not exist ends in the error queue, and holds up no one."""
    store.store([parked("lost", 0, destination="nowhere"), parked("good", 1)])
    counts = module.handler({}, Context())
    assert (counts["released"], counts["rejected"]) == (1, 1)
    (received,) = in_queue(sqs, "orders-delay-error")
    about = json.loads(received["MessageAttributes"]["sqsdelay.Error"]["StringValue"])
    assert "nowhere does not exist" in about["reason"]
    assert (about["messageId"], about["destination"]) == ("lost", "nowhere")
    assert received["Body"] == "body of lost"


def test_refused_messages_do_not_block_those_behind_them(
    sqs: Any, store: DynamoDbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that settles nothing is not the end while more is due."""
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setenv("SQSDELAY_NUMBER_OF_RETRIES", "1000")
    lost = [replace(parked(f"lost-{n}", -90), destination="nowhere") for n in range(4)]
    store.store([*lost, parked("good", -60)])
    counts = module.handler({}, Context())
    assert (counts["released"], counts["failed"]) == (1, 4)


def reported(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The metrics of the last run."""
    lines = capsys.readouterr().out.splitlines()
    metrics: dict[str, Any] = json.loads([line for line in lines if "_aws" in line][-1])
    return metrics


def test_a_queue_out_of_reach_does_not_starve_the_others(
    sqs: Any,
    store: DynamoDbStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two batches for a denied queue in front: the others are released in the same run, and each run."""
    monkeypatch.setattr(module, "BATCH", 10)
    for name in ("denied", "billing"):
        sqs.create_queue(QueueName=name)
    store.store([parked(f"denied-{n}", -900 + n, destination="denied") for n in range(25)])
    store.store([parked(f"bill-{n}", -60, destination="billing") for n in range(12)])
    queues = module.function().outbox._queues
    send, tried = queues.send_batch, []

    def denied(queue_url: str, messages: list[OutgoingMessage]) -> Any:
        if not queue_url.endswith("/denied"):
            return send(queue_url, messages)
        tried.append(len(messages))
        return [
            Failure("AccessDenied", QueueUnavailable("denied"), transient=True, outage=True)
        ] * len(messages)

    monkeypatch.setattr(queues, "send_batch", denied)
    # Only then are the pauses those of the test, however slow the machine is.
    monkeypatch.setattr("sqsdelay.core.delay.SystemClock.monotonic", lambda _: 1000.0)
    assert module.handler({}, Context()) == {"released": 12, "rejected": 0, "failed": 0, "held": 10}
    with time_machine.travel(START + timedelta(seconds=60), tick=False):
        store.store([parked("bill-more", 0, destination="billing")])
        assert module.handler({}, Context())["released"] == 1
    assert reported(capsys)["Overdue"][0] >= 900_000
    monkeypatch.setattr(queues, "send_batch", send)
    dispatcher = module.function().dispatcher
    assert dispatcher is not None
    dispatcher._destination.end_pauses()
    assert module.handler({}, Context())["released"] == 25
    assert tried[0] == 10


def test_a_lasting_outage_is_logged_and_still_measured(
    sqs: Any,
    store: DynamoDbStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run that raised would tell no metrics; the breaker's error is in the log."""
    store.store([parked("kept", -60)])
    log = io.StringIO()
    queues = module.function().outbox._queues
    for handler in logging.getLogger("orders").handlers:
        monkeypatch.setattr(handler, "stream", log)
    denied = Failure("AccessDenied", QueueUnavailable("denied"), transient=True, outage=True)
    monkeypatch.setattr(queues, "send_batch", lambda url, messages: [denied] * len(messages))
    for minute in range(3):
        monkeypatch.setattr(
            "sqsdelay.core.delay.SystemClock.monotonic", lambda _, at=1000.0 + 60 * minute: at
        )
        assert module.handler({}, Context())["released"] == 0
        assert reported(capsys)["Overdue"][0] >= 60_000
    assert "dispatch circuit breaker: failing for" in log.getvalue()


@pytest.mark.parametrize("answer_seconds", [3, math.inf])
@pytest.mark.parametrize(("timeout_seconds", "sent"), [(5, 10), (10, 20), (30, 30), (60, 30)])
def test_the_functions_time_is_its_contexts(
    sqs: Any,
    store: DynamoDbStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    timeout_seconds: int,
    sent: int,
    answer_seconds: float,
) -> None:
    """A queue that answers in 3 s, or never: it ends in time, and gives up no send that may arrive. What it
    leaves is told as overdue, and goes with the next run; the parking queue needs minutes."""
    monkeypatch.setattr(module, "CONCURRENT_SENDS", 1)
    monkeypatch.setattr(module, "BATCH", 20)
    store.store([parked(f"m{n}", -60) for n in range(30)])
    this, passed, started = module.function(), [0.0], time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: started + passed[0])

    def answer(request: Any, **_: Any) -> None:
        limit = max(min(ANSWER_SECONDS, this.until.seconds_left()), 0)
        passed[0] += min(answer_seconds, limit)
        if answer_seconds > limit:
            raise ReadTimeoutError(endpoint_url=request.url)

    this.outbox._queues._client.meta.events.register_first(  # type: ignore[attr-defined]
        "before-send.sqs.SendMessageBatch", answer
    )
    with monkeypatch.context() as limited:
        left = "get_remaining_time_in_millis"
        limited.setattr(Context, left, lambda _: (timeout_seconds - passed[0]) * 1000)
        with pytest.raises(ConfigurationError, match=f"^{timeout_seconds} s .* timeout of 120 s"):
            module.handler({"park": True}, Context())
        counts = module.handler({}, Context())
        assert passed[0] < timeout_seconds
    sent = sent if answer_seconds == 3 else 0
    assert (counts["released"], counts["failed"], store.pending_count()) == (sent, 0, 30 - sent)
    assert (reported(capsys)["Overdue"][0] >= 60_000) is (sent < 30)
    answer_seconds = 0
    passed[0] += 60
    with time_machine.travel(START + timedelta(seconds=60), tick=False):
        module.handler({}, Context())
        assert received(sqs) == {f"m{n}": 1 for n in range(30)}


class CutOff(BaseException):
    """Lambda ends the environment: no line of it runs any more."""


@pytest.mark.parametrize(
    ("moment", "call", "calls_before"),
    [
        pytest.param("after-call", "Query", 12, marks=pytest.mark.nightly),
        pytest.param("before-call", "SendMessageBatch", 1, marks=pytest.mark.nightly),
        ("after-call", "SendMessageBatch", 1),
        # The lease that is let go of, which moves its cursor.
        ("before-call", "PutItem", 3),
    ],
)
def test_a_run_cut_off_hands_over_to_the_next(
    sqs: Any,
    store: DynamoDbStore,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    call: str,
    calls_before: int,
) -> None:
    """Its time ends in the midst of a batch: the next runs release everything, what was in hand once
    the leases have ended, and no more than that one batch twice."""
    monkeypatch.setattr(module, "BATCH", 10)
    names = {f"m{n}" for n in range(25)}
    store.store([parked(name, -60) for name in sorted(names)])
    seen: Counter[str] = Counter()

    def cut(model: Any, **_: Any) -> None:
        seen[model.name] += 1
        if seen[call] > calls_before:
            raise CutOff

    first = module.function()
    for client in (first.store._table.client, first.outbox._queues._client):  # type: ignore[attr-defined]
        client.meta.events.register(f"{moment}.*", cut)
    with pytest.raises(CutOff):
        module.handler({}, Context())
    module.function.cache_clear()
    with time_machine.travel(START + timedelta(seconds=30), tick=False):
        module.handler({}, Context())
    with time_machine.travel(START + timedelta(seconds=180), tick=False):
        module.handler({}, Context())
        assert store.pending_count() == 0
        arrived = received(sqs)
    assert set(arrived) == names
    assert arrived.total() <= len(names) + module.BATCH


def received(sqs: Any) -> Counter[str]:
    """The ids of all messages in the endpoint's queue, and how often each is there."""
    found = Counter[str]()
    while answer := in_queue(sqs, "orders"):
        found.update(m["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] for m in answer)
    return found


def test_a_missing_table_is_an_error_each_time(sqs: Any) -> None:
    """A wrong deployment raises an alarm, and works as soon as it is mended."""
    with pytest.raises(StoreMissing, match="parked does not exist"):
        module.handler({}, Context())
    store = DynamoDbStore("parked", endpoint="orders", shards=2)
    store.set_up()
    store.close()
    assert module.handler({}, Context())["released"] == 0


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ("", []),
        ("true", ["rejected", "released"]),
        # A stream that does not exist.
        ("firehose://events", ["rejected", "released"]),
    ],
)
def test_the_ledger_is_in_the_log_and_can_be_read_back(
    sqs: Any, store: DynamoDbStore, monkeypatch: pytest.MonkeyPatch, value: str, kinds: list[str]
) -> None:
    """Off by default; on, a line for each message released or rejected."""
    monkeypatch.setenv("SQSDELAY_LEDGER", value)
    log = io.StringIO()
    module.function()
    for name in ("orders", "orders-ledger"):
        for handler in logging.getLogger(name).handlers:
            monkeypatch.setattr(handler, "stream", log)
    store.store([parked("soon", 600), parked("lost", 0, destination="nowhere")])
    module.handler({}, Context())
    assert "not released" in log.getvalue()
    lines = [line for line in log.getvalue().splitlines() if "ledger" in json.loads(line)]
    events = {event.kind: event for event in map(from_json, lines)}
    assert sorted(events) == kinds
    if kinds:
        released, rejected = events[EventKind.RELEASED], events[EventKind.REJECTED]
        assert (released.timer_seconds, released.batch) == (600, 1)
        assert "nowhere does not exist" in (rejected.reason or "")


def test_a_store_is_asked_nothing_when_the_runs_time_is_over(
    sqs: Any, store: DynamoDbStore
) -> None:
    """Lambda would end it, and with it what it knows to have sent."""
    with pytest.raises(StoreUnavailable, match="the function's"):
        module.handler({}, Context(0))
    assert module.handler({}, Context())["released"] == 0


def test_an_s3_store_is_told_how_long_the_run_may_take(
    sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it begins no turn of its wheel that Lambda would cut off."""
    boto3.client("s3").create_bucket(Bucket="parked")
    monkeypatch.setenv("SQSDELAY_STORE", "s3://parked")
    assert module.handler({}, Context(remaining_ms=3_600_000))["released"] == 0
    store: Any = module.function().store
    assert 3_600 - PATIENCE_SECONDS < store.seconds_left() < 3_600
