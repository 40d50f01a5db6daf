"""A worker on a local AWS with short hops: the command line as people run it, in processes of its own; in one
that `opentelemetry-instrument` set up; and behind an unrestricted boto3 client."""

from __future__ import annotations

import json
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from sqsdelay import DelayConsumer, DelaySender, unrestricted
from sqsdelay.cli.run import CLOSING_SECONDS
from sqsdelay.core.limits import STOP_SECONDS
from sqsdelay.core.outgoing import TraceHeader
from sqsdelay.ledger.events import EventKind, from_json
from sqsdelay.testing import LocalAws
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import create_endpoint, in_queue
from tests.services.network import DeafProxy, TcpProxy
from tests.services.processes import run, running

HOP = "1"


@pytest.fixture
def endpoint(local_aws: LocalAws) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    done = run("endpoint", "create", name, "--hop", HOP, env=local_aws.environment())
    assert done.returncode == 0, done.stderr
    return name


def received(local_aws: LocalAws, endpoint: str, count: int) -> list[Any]:
    options = ("--count", str(count), "--idle", str(PATIENCE_SECONDS), "--delete", "--json")
    done = run("receive", endpoint, *options, env=local_aws.environment())
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_send_consume_receive(local_aws: LocalAws, endpoint: str) -> None:
    """One message through several hops: not early, with its id, body and lateness; SIGTERM ends clean."""
    env = local_aws.environment()
    with running("consume", endpoint, "--hop", HOP, "--wait", "1", "--json", env=env) as worker:
        worker.wait_for("consuming")
        options = ("--body", "wake up", "--delay", "4.5s", "--hop", HOP, "--json")
        sent = run("send", endpoint, *options, env=env)
        assert sent.returncode == 0, sent.stderr
        result = json.loads(sent.stdout)
        assert result["route"] == "delay-queue"
        (message,) = received(local_aws, endpoint, 1)
        assert (message["body"], message["message_id"]) == ("wake up", result["message_id"])
        assert message["late_ms"] >= 0
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end() == 0
    outcomes = [json.loads(line) for line in worker.lines if line.startswith("{")]
    assert [outcome["status"] for outcome in outcomes[-2:]] == ["requeued", "handed-over"]
    assert "stopped; 1 handed-over" in worker.text


def test_sigterm_leaves_nothing_in_doubt(local_aws: LocalAws, endpoint: str) -> None:
    """Stopped in the midst of hundreds of messages, a worker has each relayed or untouched."""
    env = local_aws.environment()
    lines = "".join(json.dumps({"body": f"{n}", "delay": 2 + n % 3}) + "\n" for n in range(300))
    sent = run("send", endpoint, "--file", "-", "--hop", HOP, env=env, stdin=lines)
    assert sent.returncode == 0, sent.stderr
    for _ in range(3):
        with running("consume", endpoint, "--hop", HOP, "--wait", "1", "--json", env=env) as worker:
            worker.wait_for('"status"')
            worker.process.send_signal(signal.SIGTERM)
            assert worker.end() == 0
    with running("consume", endpoint, "--hop", HOP, "--wait", "1", env=env):
        bodies = [int(message["body"]) for message in received(local_aws, endpoint, 300)]
    assert sorted(bodies) == list(range(300))


def test_a_worker_outlives_an_outage(local_aws: LocalAws, endpoint: str) -> None:
    """While SQS cannot be reached it waits, then it goes on; the message is late, not lost."""
    with TcpProxy(local_aws.port) as network:
        env = local_aws.environment() | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{network.port}"}
        with running("consume", endpoint, "--hop", HOP, "--wait", "1", env=env) as worker:
            worker.wait_for("consuming")
            time.sleep(1)  # real time: into its first long poll
            network.down()
            worker.wait_for("cannot receive, trying again in")
            options = ("--body", "x", "--delay", "3", "--hop", HOP)
            sent = run("send", endpoint, *options, env=local_aws.environment())
            assert sent.returncode == 0, sent.stderr
            network.up()
            assert len(received(local_aws, endpoint, 1)) == 1
            worker.process.send_signal(signal.SIGTERM)
            assert worker.end() == 0


def test_a_hop_longer_than_the_queues_delay_is_refused(local_aws: LocalAws, endpoint: str) -> None:
    """The worker does not start, and says what to mend."""
    done = run("consume", endpoint, env=local_aws.environment())
    assert done.returncode == 1
    assert "its delay of 1 s is shorter than the hop of 900 s" in done.stderr
    assert "set-queue-attributes" in done.stderr


def test_the_demo(tmp_path: Path) -> None:
    """`sqsdelay demo` delivers all of its messages, none early, once, intact."""
    file = tmp_path / "demo.jsonl"
    done = run("demo", "--ledger", str(file), env={})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sent 36, delivered 36, lost 0, duplicated 0, early 0, altered 0" in done.stdout
    assert "report-near-the-limit" in done.stdout
    events = [from_json(line) for line in file.read_bytes().splitlines()]
    for kind in (EventKind.SENT, EventKind.RECEIVED):
        assert len({event.message_id for event in events if event.kind is kind}) == 36
    assert all((event.late_ms or 0) >= 0 for event in events)


def test_a_fifo_destination(local_aws: LocalAws) -> None:
    """One worker serves both queues: long and short delays arrive, not early, in their group."""
    env = local_aws.environment()
    name = f"orders-{uuid.uuid4().hex[:8]}.fifo"
    created = run("endpoint", "create", name, "--hop", HOP, env=env)
    assert created.returncode == 0, created.stderr
    with running("consume", name, "--hop", HOP, "--wait", "1", "--json", env=env) as worker:
        worker.wait_for("consuming")
        for message_id, delay in (("long", "3.5s"), ("short", "1s")):
            options = ("--message-id", message_id, "--group", "g", "--delay", delay, "--hop", HOP)
            sent = run("send", name, "--body", message_id, *options, env=env)
            assert sent.returncode == 0, sent.stderr
        messages = received(local_aws, name, 2)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end() == 0
    assert sorted(message["message_id"] for message in messages) == ["long", "short"]
    assert all(message["late_ms"] >= 0 for message in messages)
    statuses = [json.loads(line)["status"] for line in worker.lines if line.startswith("{")]
    assert statuses.count("delivered") == 2
    assert "handed-over" in statuses


@pytest.mark.parametrize("deaf", [False, True], ids=["idle", "nothing answers"])
def test_sigterm_does_not_wait_for_a_long_poll(
    local_aws: LocalAws, endpoint: str, deaf: bool
) -> None:
    """Docker kills after 10 s; a long poll takes 20, and one that is not answered 25, twice. An idle machine
    takes the 5 s that docs/workers.md promises."""
    assert STOP_SECONDS + CLOSING_SECONDS <= 5
    with DeafProxy(local_aws.port) as network:
        env = local_aws.environment() | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{network.port}"}
        with running("consume", endpoint, "--hop", HOP, env=env) as worker:
            worker.wait_for("consuming")
            time.sleep(2)  # real time: into its first long poll
            if deaf:
                network.swallowing.set()
            worker.process.send_signal(signal.SIGTERM)
            assert worker.end(timeout=15) == 0  # what is left of the poll: 18 s
    assert "stopped; nothing" in worker.text


TRACEPARENT = "00-5759e988bd862e3fe1be46a994272793-53995c3f42cd8ad8-01"
THEIRS = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
INSTRUMENTED = """
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.boto3sqs import Boto3SQSInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

spans = TracerProvider()
one_line = lambda span: span.to_json(indent=None) + "\\n"
spans.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=one_line)))
trace.set_tracer_provider(spans)
exporter = ConsoleMetricExporter(formatter=lambda data: data.to_json(indent=None) + "\\n")
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter, 500)]))

Boto3SQSInstrumentor().instrument()

from sqsdelay.cli import main

main()
"""


def test_a_worker_traces_its_deliveries_and_counts(local_aws: LocalAws) -> None:
    """Of a message that another sender's header came with: a root, linked; the hand-over counted.

    The instrumentation of boto3 writes a ``traceparent`` of its own into what the worker sends on.
    """
    name = f"traced-{uuid.uuid4().hex[:8]}"
    client = local_aws.client("sqs")
    create_endpoint(client, name, hop_seconds=1)
    DelaySender(client, hop_seconds=1).send(
        name,
        "x",
        delay=2.5,
        attributes={"traceparent": TRACEPARENT},
        message_id="kept",
        message_group_id="tenant-7",
        trace_header=THEIRS,
    )
    program = [sys.executable, "-c", INSTRUMENTED, "consume", name, "--hop", "1", "--wait", "1"]
    with running(env=local_aws.environment(), program=program) as worker:
        worker.wait_for(f'"deliver {name}"')
        worker.wait_for('"sqsdelay.event": "handed-over"', timeout=PATIENCE_SECONDS)
    (span,) = [json.loads(line) for line in worker.lines if f'"deliver {name}"' in line]
    assert span["parent_id"] is None
    assert [link["context"]["span_id"] for link in span["links"]] == ["0x53995c3f42cd8ad8"]
    (message,) = in_queue(client, name, wait=20)
    assert message["MessageAttributes"]["traceparent"]["StringValue"] == TRACEPARENT
    assert message["Attributes"]["MessageGroupId"] == "tenant-7"
    told = TraceHeader.read(message["Attributes"]["AWSTraceHeader"])
    assert told is not None
    assert told.trace_id == span["context"]["trace_id"].removeprefix("0x")


ATTRIBUTES = {
    "kind": {"DataType": "String", "StringValue": "reminder"},
    "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}


def test_a_mixed_batch_arrives_and_each_on_its_time(local_aws: LocalAws) -> None:
    """The direct entry at once, the delayed one after its hops, with the id that was answered."""
    client = local_aws.client("sqs")
    name = f"orders-{uuid.uuid4().hex[:8]}"
    create_endpoint(client, name, hop_seconds=int(HOP))
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    late = {"Id": "late", "MessageBody": "grüße", "MessageAttributes": ATTRIBUTES}
    answer = unrestricted(client, hop_seconds=int(HOP)).send_message_batch(
        QueueUrl=url, Entries=[late | {"DelaySeconds": 4}, late | {"Id": "now"}]
    )
    told = {done.pop("Id"): done for done in answer["Successful"]}
    assert {k: v for k, v in told["late"].items() if k.startswith("MD5")} == {
        k: v for k, v in told["now"].items() if k.startswith("MD5")
    }
    consumer = DelayConsumer(name, client, hop_seconds=int(HOP))
    arrived: list[Any] = []
    while len(arrived) < 2:
        consumer.poll(wait_seconds=1)
        arrived += in_queue(client, url)
    now, later = arrived
    assert now["MessageId"] == told["now"]["MessageId"]
    assert now["MessageAttributes"] == ATTRIBUTES
    ours = {
        name: later["MessageAttributes"].pop(name)["StringValue"]
        for name in ("sqsdelay.MessageId", "sqsdelay.WasDueAt")
    }
    assert later["MessageAttributes"] == ATTRIBUTES
    assert ours["sqsdelay.MessageId"] == told["late"]["sqsdelay.MessageId"]
    received_ms = int(later["Attributes"]["ApproximateFirstReceiveTimestamp"])
    assert int(ours["sqsdelay.WasDueAt"]) <= received_ms
    assert received_ms - int(now["Attributes"]["SentTimestamp"]) >= 4000
