"""What recording a ledger costs: `send_many` and `poll` with and without one, on the same fast stub.

The two take turns, round by round; the figures are medians of this process's CPU time, user and
system. It depends on the machine and is not judged; a ledger that misses an event fails the run
(exit code 1).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from aws_lambda_powertools import Logger, Metrics

from benchmarks.support.contest import Work, compared
from benchmarks.support.sqs_stub import BODY, Stub, running_stub
from lambdas.settings import PowertoolsLedger, report_outcomes
from sqsdelay import DelayConsumer, DelaySender, FileLedger, Message
from sqsdelay.cdk import function_names
from sqsdelay.core.message import Route
from sqsdelay.cost import shipped_prices
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, to_json
from sqsdelay.limits import MAX_BATCH_ENTRIES
from sqsdelay.relaying.mover import Outcome, Status

ENDPOINT = "orders"
DELAY_SECONDS = 24 * 3600


def send(stub: Stub, ledger: Ledger | None) -> Work:
    """`DelaySender.send_many`, one batch at a time."""
    sender = DelaySender(stub.client(), concurrency=1, ledger=ledger)

    def work(messages: int) -> None:
        sender.send_many(ENDPOINT, [Message(BODY, delay=DELAY_SECONDS)] * messages)

    return work


def poll(stub: Stub, ledger: Ledger | None) -> Work:
    """`DelayConsumer.poll` until all messages are requeued."""
    consumer = DelayConsumer(ENDPOINT, stub.client(), ledger=ledger)

    def work(messages: int) -> None:
        while messages > 0:
            messages -= len(consumer.poll(wait_seconds=0))

    return work


def _event(number: int) -> Event:
    return Event(
        kind=EventKind.SENT,
        at_ms=1_800_000_000_000,
        endpoint=ENDPOINT,
        message_id=f"0b5b1a52-3f6e-4d4c-9f5e-{number:012}",
        source=Source.SENDER,
        due_ms=1_800_086_400_000,
        size=len(BODY),
        batch=MAX_BATCH_ENTRIES,
        route=Route.DELAY_QUEUE,
        sqs_message_id=f"7d1c2f0e-5a3b-4c8d-8e9f-{number:012}",
    )


def run(stub: Stub, file: Path, *, messages: int, rounds: int) -> int:
    """Measure and print; returns how many events are missing."""
    ledger = FileLedger(file)
    for name, work, supply in (("send_many", send, None), ("poll", poll, DELAY_SECONDS)):
        works = {f"{name} without": work(stub, None), f"{name} with": work(stub, ledger)}
        compared(stub, works, messages=messages, rounds=rounds, supply=supply)
    expected = 2 * (rounds * messages + MAX_BATCH_ENTRIES)
    with file.open("rb") as lines:
        return expected - sum(1 for _ in lines)


LOGS_PER_GB: Final = float(shipped_prices().cloudwatch_logs_gb)
"""Each event counts 26 bytes more. Source: CloudWatch pricing."""
LOGS_EXTRA_BYTES: Final = 26
FIREHOSE_PER_GB: Final = 0.029
"""Ingestion of Firehose by PutRecord, us-east-1, the first 500 TB a month. Source: Firehose pricing."""
FIREHOSE_STEP_BYTES: Final = 5 * 1024
"""Each record is rounded up to the next 5 KB. Source: Firehose pricing."""


def on_aws() -> str:
    """What a million events of the functions cost to record, in their logs and in S3 by Firehose."""
    line = len(to_json(_event(0))) + 1
    with contextlib.redirect_stdout(io.StringIO()) as log:
        PowertoolsLedger(ENDPOINT).record([_event(0)])
    logged = len(log.getvalue()) + LOGS_EXTRA_BYTES
    lines = [f"a million events, $: {logged} bytes each in a log, {line} in a record"]
    in_logs = logged * 1e6 / 2**30 * LOGS_PER_GB
    for batch in (1, MAX_BATCH_ENTRIES, 1000):
        steps = -(-batch * line // FIREHOSE_STEP_BYTES)
        by_stream = 1e6 / batch * steps * FIREHOSE_STEP_BYTES / 2**30 * FIREHOSE_PER_GB
        lines.append(
            f"  {batch:>5} in a record: logs {in_logs:.3f}, Firehose {by_stream:.3f}, "
            f"{in_logs / by_stream:.1f} times less"
        )
    return "\n".join(lines)


def metrics() -> str:
    """What the functions' metrics cost in their logs, without a ledger, of copies on a hop."""
    lines = []
    for batch in (1, MAX_BATCH_ENTRIES):
        made = Metrics(namespace=function_names.METRIC_NAMESPACE, service="orders")
        with contextlib.redirect_stdout(io.StringIO()) as log:
            outcome: Any = Outcome(None, Status.REQUEUED)  # type: ignore[arg-type]
            report_outcomes(made, Logger(service="orders"), [outcome] * batch)
            made.flush_metrics()
        size = len(log.getvalue()) + LOGS_EXTRA_BYTES
        paid = size * 1e6 / batch / 2**30 * LOGS_PER_GB
        lines.append(f"  {batch:>5} copies a run: {size} bytes of metrics, {paid:.3f}")
    return "\n".join(["a million copies on a hop, $ without a ledger", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5000, help="messages a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each, taking turns")
    options = parser.parse_args()
    if options.messages < MAX_BATCH_ENTRIES or options.rounds < 1:
        parser.error(f"use at least {MAX_BATCH_ENTRIES} messages and 1 round")
    messages = options.messages // MAX_BATCH_ENTRIES * MAX_BATCH_ENTRIES
    print(f"{options.rounds} rounds of {messages} messages, 0 ms latency")
    with tempfile.TemporaryDirectory() as folder, running_stub() as stub:
        file = Path(folder) / "ledger.jsonl"
        missing = run(stub, file, messages=messages, rounds=options.rounds)
    print(on_aws())
    print(metrics())
    if missing:
        print(f"FAILED: {missing} events are missing in the ledger")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
