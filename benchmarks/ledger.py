"""What the functions' metrics and a ledger cost on AWS: bytes that the real code writes, at list prices."""

from __future__ import annotations

import contextlib
import io
from typing import Any, Final

from aws_lambda_powertools import Logger, Metrics

from benchmarks.support.sqs_stub import BODY
from lambdas.settings import PowertoolsLedger, report_outcomes
from sqsdelay.cdk import function_names
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.core.message import Route
from sqsdelay.cost import shipped_prices
from sqsdelay.ledger.events import Event, EventKind, Source, to_json
from sqsdelay.relaying.outcomes import Outcome, Status

LOGS_PER_GB: Final = float(shipped_prices().cloudwatch_logs_gb)
LOGS_EXTRA_BYTES: Final = 26
"""Each event counts so many bytes more. Source: CloudWatch pricing."""
FIREHOSE_PER_GB: Final = 0.029
"""Ingestion of Firehose by PutRecord, us-east-1, the first 500 TB a month. Source: Firehose pricing."""
FIREHOSE_STEP_BYTES: Final = 5 * 1024
"""Each record is rounded up to the next 5 KB. Source: Firehose pricing."""

EVENT: Final = Event(
    kind=EventKind.SENT,
    at_ms=1_800_000_000_000,
    endpoint="orders",
    message_id="0b5b1a52-3f6e-4d4c-9f5e-000000000000",
    source=Source.SENDER,
    due_ms=1_800_086_400_000,
    size=len(BODY),
    batch=MAX_BATCH_ENTRIES,
    route=Route.DELAY_QUEUE,
    sqs_message_id="7d1c2f0e-5a3b-4c8d-8e9f-000000000000",
)


def ledger() -> str:
    """A million events of the functions, in their logs and in S3 by Firehose."""
    line = len(to_json(EVENT)) + 1
    with contextlib.redirect_stdout(io.StringIO()) as log:
        PowertoolsLedger("orders").record([EVENT])
    logged = len(log.getvalue()) + LOGS_EXTRA_BYTES
    in_logs = logged * 1e6 / 2**30 * LOGS_PER_GB
    lines = [f"a million events, $: {logged} bytes each in a log, {line} in a record"]
    for batch in (1, MAX_BATCH_ENTRIES, 1000):
        steps = -(-batch * line // FIREHOSE_STEP_BYTES)
        by_stream = 1e6 / batch * steps * FIREHOSE_STEP_BYTES / 2**30 * FIREHOSE_PER_GB
        lines.append(
            f"  {batch:>5} in a record: logs {in_logs:.3f}, Firehose {by_stream:.3f}, "
            f"{in_logs / by_stream:.1f} times less"
        )
    return "\n".join(lines)


def metrics() -> str:
    """A million copies on a hop, without a ledger."""
    lines = ["a million copies on a hop, $ without a ledger"]
    for batch in (1, MAX_BATCH_ENTRIES):
        made = Metrics(namespace=function_names.METRIC_NAMESPACE, service="orders")
        with contextlib.redirect_stdout(io.StringIO()) as log:
            outcome: Any = Outcome(None, Status.REQUEUED)  # type: ignore[arg-type]
            report_outcomes(made, Logger(service="orders"), [outcome] * batch)
            made.flush_metrics()
        size = len(log.getvalue()) + LOGS_EXTRA_BYTES
        paid = size * 1e6 / batch / 2**30 * LOGS_PER_GB
        lines.append(f"  {batch:>5} copies a run: {size} bytes of metrics, {paid:.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(ledger())
    print(metrics())
