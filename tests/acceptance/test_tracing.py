"""The worker in a process that has OpenTelemetry set up, as `opentelemetry-instrument` does."""

from __future__ import annotations

import json
import sys
import uuid

from sqsdelay import DelaySender
from sqsdelay.core.outgoing import TraceHeader
from sqsdelay.testing import LocalAws
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import create_endpoint, in_queue
from tests.services.processes import running

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
