"""How many delayed messages one endpoint holds, and how many of them may be due at once.

Reckoned from AWS's quotas, assumed answer times and the costs that `benchmarks.capacity_measured` has
stored; rewrites the tables of docs/capacity.md, the same each time.

Every number of AWS stands here once, with its source, if `sqsdelay.core.limits` does not have it. What the
deployment sets comes from ``sqsdelay/cdk``: a test keeps the two equal, for importing the CDK takes seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.support.blocks import rewritten
from lambdas.dispatcher.handler import BATCH, CONCURRENT_SENDS, KEPT_BACK_SECONDS
from sqsdelay.core.limits import (
    DEFAULT_HOP_SECONDS,
    DELAY_CONSUMER_MEMORY_MB,
    DISPATCHER_MEMORY_MB,
    MAX_BATCH_ENTRIES,
    MAX_MESSAGE_TIMER_SECONDS,
    SCHEDULE_SECONDS,
    SHORT_CALL_SECONDS,
)
from sqsdelay.dispatching.dispatcher import DEFAULT_BATCH
from sqsdelay.sqs.outbox import DEFAULT_CONCURRENCY
from sqsdelay.sqs.receivers import LEAST_RECEIVERS, MOST_RECEIVERS
from sqsdelay.stores.dynamodb.dynamodb_store import DEFAULT_SHARDS

READ_ON: Final = "2026-11-20"
"""When the quotas were read."""

SCRIPT: Final = "benchmarks.capacity"
DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "capacity.md"
MEASURED: Final = Path(__file__).with_name("capacity.json")

FIFO_CALLS: Final = 70_000.0
FIFO_CALLS_ELSEWHERE: Final = 2_400.0
PLAIN_FIFO_CALLS: Final = 300.0
FIFO_IN_FLIGHT: Final = 120_000.0
MOST_CONCURRENCY: Final = 1_000.0
FULL_PROCESSOR_MB: Final = 1_769.0
TABLE_READS: Final = 12_000.0
PARTITION_READS: Final = 3_000.0

SQS_SECONDS: Final = 0.020
DYNAMODB_SECONDS: Final = 0.005
S3_SECONDS: Final = 0.150
POSTGRES_SECONDS: Final = 0.002
INVOKE_SECONDS: Final = 0.010
READ_UNITS: Final = 0.4

FIGURES: Final = f"""
FIFO queue with high throughput: calls of each action (N. Virginia, Oregon, Ireland)
| {FIFO_CALLS:,g} calls/s | SQS quotas-messages.html
the same in regions that the page does not name
| {FIFO_CALLS_ELSEWHERE:,g} calls/s | SQS quotas-messages.html, second-hand
FIFO queue without high throughput: calls of each action
| {PLAIN_FIFO_CALLS:,g} calls/s | SQS quotas-messages.html
messages in flight in a FIFO queue
| {FIFO_IN_FLIGHT:,g} messages | SQS quotas-fifo.html
batches in hand of one SQS event source
| {MOST_CONCURRENCY:,g} batches | Lambda services-sqs-scaling.html
function memory with one whole processor
| {FULL_PROCESSOR_MB:,g} MB | Lambda configuration-memory.html
new on-demand DynamoDB table: read units
| {TABLE_READS:,g} units/s | DynamoDB on-demand-capacity-mode.html
one DynamoDB partition: read units
| {PARTITION_READS:,g} units/s | DynamoDB TroubleshootingThrottlingOnDemand.html
assumed: answer of SQS
| {SQS_SECONDS:g} s | the example of SQS sqs-throughput-horizontal-scaling-and-batching.html
assumed: answer of DynamoDB
| {DYNAMODB_SECONDS:g} s | “single-digit milliseconds”, DynamoDB on-demand-capacity-mode.html
assumed: answer of S3
| {S3_SECONDS:g} s | “roughly 100-200 milliseconds”, S3 optimizing-performance.html
assumed: round trip to PostgreSQL, commit included
| {POSTGRES_SECONDS:g} s | our guess
assumed: from a batch received to the handler called, warm
| {INVOKE_SECONDS:g} s | our guess
assumed: read units a release: 1 KiB and its keys read twice, once eventually consistent
| {READ_UNITS:g} units | docs/cost.md"""
"""Each number that is not ours: what it is; its value and source."""

# What ``sqsdelay/cdk`` deploys.
MAX_CONCURRENCY: Final = 10
DISPATCHER_TIMEOUT_SECONDS: Final = 170
DISPATCHER_RUNS: Final = 3

Costs = Mapping[str, float]
"""Seconds of a processor that 1,000 messages take of each part: one hop each, or one release each."""

CHECKED_MESSAGES: Final = 2_000
CHECKED_RELEASES: Final = 5_000
CHECKED_RECEIVERS: Final = LEAST_RECEIVERS
"""What the real runs have that the arithmetic is compared with."""


@dataclass(frozen=True, kw_only=True)
class System:
    """What relays or releases messages; ``limits`` are messages a second that each part allows."""

    name: str
    limits: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Messages a second."""
        return min(self.limits.values())

    @property
    def saturates(self) -> str:
        """The part that allows the fewest."""
        return min(self.limits, key=self.limits.__getitem__)


def worker(
    cost: float, *, answer_seconds: float = SQS_SECONDS, receivers: int = MOST_RECEIVERS
) -> System:
    """One process of ``sqsdelay consume`` with a backlog: its receivers share one processor."""
    limits = {
        "batches in hand": receivers * MAX_BATCH_ENTRIES / (3 * answer_seconds),
        "processor": 1000 / cost,
        "send calls": FIFO_CALLS_ELSEWHERE * MAX_BATCH_ENTRIES,
    }
    return System(name="worker (default)", limits=limits)


def function(name: str, cost: float, *, lanes: float, calls: float) -> System:
    """The delay consumer as a function: receive, invoke, send, delete; so many batches at once."""
    at_once = min(lanes, FIFO_IN_FLIGHT / MAX_BATCH_ENTRIES)
    limits = {
        "batches in hand": at_once * MAX_BATCH_ENTRIES / _relaying(cost),
        "send calls": calls * MAX_BATCH_ENTRIES,
    }
    return System(name=name, limits=limits)


def _relaying(cost: float) -> float:
    """A batch in the function, seconds; its share of a processor is small."""
    processor = DELAY_CONSUMER_MEMORY_MB / FULL_PROCESSOR_MB
    return 3 * SQS_SECONDS + INVOKE_SECONDS + cost * MAX_BATCH_ENTRIES / 1000 / processor


def parked_a_second(cost: float) -> float:
    """What the deployed function parks: it reads amendments twice and puts ten items side by side."""
    seconds = _relaying(cost) - SQS_SECONDS + 3 * DYNAMODB_SECONDS
    return MAX_CONCURRENCY * MAX_BATCH_ENTRIES / seconds


def dispatcher_worker(cost: float) -> System:
    """One process of ``sqsdelay dispatch`` on PostgreSQL: one claim after the other."""
    sends = math.ceil(DEFAULT_BATCH / MAX_BATCH_ENTRIES / DEFAULT_CONCURRENCY)
    parts = {
        "processor": cost * DEFAULT_BATCH / 1000,
        "answers of PostgreSQL": 3 * POSTGRES_SECONDS,
        "answers of SQS": sends * SQS_SECONDS,
    }
    return _one_after_the_other("worker on PostgreSQL", DEFAULT_BATCH, parts)


def dispatcher_function(
    name: str, cost: float, store: tuple[str, float], *, runs: int, quota: float = math.inf
) -> System:
    """So many runs of the dispatcher function at once.

    Args:
        store: its answers to one claim: their name, and the seconds they take one after the other.
        quota: releases a second that the store's quotas allow.
    """
    sends = math.ceil(BATCH / MAX_BATCH_ENTRIES / CONCURRENT_SENDS)
    processor = DISPATCHER_MEMORY_MB / FULL_PROCESSOR_MB
    # One starts each minute and ends somewhat before its timeout, which grows with the runs.
    timeout = (runs - DISPATCHER_RUNS) * SCHEDULE_SECONDS + DISPATCHER_TIMEOUT_SECONDS
    lanes = (timeout - KEPT_BACK_SECONDS - SHORT_CALL_SECONDS) / SCHEDULE_SECONDS
    store_name, store_seconds = store
    parts = {
        f"processor ({DISPATCHER_MEMORY_MB} MB)": cost * BATCH / 1000 / processor,
        store_name: store_seconds,
        "answers of SQS": sends * SQS_SECONDS,
    }
    return _one_after_the_other(name, BATCH * lanes, parts, quota)


def _one_after_the_other(
    name: str, messages: float, parts: Mapping[str, float], quota: float = math.inf
) -> System:
    """A claim's parts follow each other; the longest names the limit."""
    longest = max(parts, key=parts.__getitem__)
    limits = {longest: messages / sum(parts.values()), "the store's quotas": quota}
    return System(name=name, limits=limits)


def consumers(costs: Costs) -> list[System]:
    """Those that relay: a worker, and the function with more and more batches at once."""
    most = f"function, {MOST_CONCURRENCY:,.0f} at once"
    settings = (
        (f"function, {MAX_CONCURRENCY} at once (as deployed)", MAX_CONCURRENCY, FIFO_CALLS_ELSEWHERE),
        ("function, 100 at once", 100, FIFO_CALLS_ELSEWHERE),
        (f"{most}, without high throughput", MOST_CONCURRENCY, PLAIN_FIFO_CALLS),
        (most, MOST_CONCURRENCY, FIFO_CALLS_ELSEWHERE),
        (f"{most}, Ireland", MOST_CONCURRENCY, FIFO_CALLS),
    )  # fmt: skip
    of = costs["function"]
    functions = [function(name, of, lanes=lanes, calls=calls) for name, lanes, calls in settings]
    return [worker(costs["worker"]), *functions]


def dispatchers(costs: Costs) -> list[System]:
    """Those that release: the function on DynamoDB and on S3, a worker on PostgreSQL."""
    on_dynamodb = (
        ("as deployed", DISPATCHER_RUNS, DEFAULT_SHARDS),
        ("6 runs at once", 6, DEFAULT_SHARDS),
        ("15 runs at once, 15 shards or more", 15, 15),
    )
    return [
        *(
            dispatcher_function(
                f"function on DynamoDB ({name})",
                costs["dispatcher function"],
                # Leases, what is due, lease, messages, lease.
                ("answers of DynamoDB", 5 * DYNAMODB_SECONDS),
                runs=at_once,
                quota=min(TABLE_READS, shared_by * PARTITION_READS) / READ_UNITS,
            )
            for name, at_once, shared_by in on_dynamodb
        ),
        dispatcher_function(
            "function on S3 (as deployed)",
            costs["dispatcher function on S3"],
            # A listing, an object (in one claim of five), its lease, is it still there, the checkpoint.
            ("answers of S3", 5 * S3_SECONDS),
            runs=DISPATCHER_RUNS,
        ),
        dispatcher_worker(costs["dispatcher worker"]),
    ]


def tables(stored: Mapping[str, Any]) -> dict[str, str]:
    """Every table of the page by the name of its block, from the content of ``capacity.json``."""
    seconds: Costs = {name: cost["cpu_seconds"] for name, cost in stored["costs"].items()}
    measured = [
        (name, f"{cost['cpu_seconds'] * 1000:.0f} ms", f"{cost['mib']:.0f} MiB")
        for name, cost in stored["costs"].items()
    ]
    figures = [each.split(" | ") for each in FIGURES.replace("\n|", " |").strip().splitlines()]
    where = f"{stored['measured_on']}: {stored['machine']}."
    return {
        "answers": _answers(seconds),
        "measured": f"{_table(('', 'CPU time', 'memory'), measured)}\n\n{where}",
        "figures": _table(("quota, or assumed", "value", f"source (read {READ_ON})"), figures),
        "check": _checked(seconds, stored["checks"]),
    }


def _answers(costs: Costs) -> str:
    """How many, and what saturates first."""
    header = (
        *("", "hops or releases a second", "pending, on time"),
        *("due in one minute, sent at any time", "sent together", "saturates first"),
    )
    rows = []
    for each in consumers(costs):
        waiting, together = about(each.rate * DEFAULT_HOP_SECONDS), about(each.rate * 60)
        name = f"relay: {each.name}"
        rows.append((name, about(each.rate), waiting, waiting, together, each.saturates))
    for each in dispatchers(costs):
        ahead, name = about(each.rate * MAX_MESSAGE_TIMER_SECONDS), f"parked: {each.name}"
        rows.append((name, about(each.rate), "no limit", ahead, ahead, each.saturates))
    parks = about(parked_a_second(costs["function, parking"]))
    return f"{_table(header, rows)}\n\nThe deployed function parks {parks} messages a second."


def _checked(costs: Costs, real: Mapping[str, float]) -> str:
    """Real runs beside the arithmetic."""
    relay = worker(costs["worker"], receivers=CHECKED_RECEIVERS)
    release = dispatcher_worker(costs["dispatcher worker"])
    rows = [
        (what, f"{real[name]:.2f} s", f"{reckoned:.2f} s", f"{reckoned / real[name] - 1:+.0%}")
        for name, what, reckoned in (
            (
                "worker",
                f"{CHECKED_MESSAGES:,} messages visible at once, a worker of {CHECKED_RECEIVERS} receivers",
                CHECKED_MESSAGES / relay.rate,
            ),
            (
                "dispatcher worker",
                f"{CHECKED_RELEASES:,} parked messages due at once, a worker on PostgreSQL",
                CHECKED_RELEASES / release.rate,
            ),
        )
    ]
    return _table(("all of", "real", "reckoned", ""), rows)


def about(number: float) -> str:
    """Two digits are all that the assumptions bear."""
    if number < 100:
        return f"{number:.0f}"
    return f"{float(f'{number:.2g}'):,.0f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Rewrite the page's tables, and print them."""
    document = DOCUMENT.read_text()
    for name, made in tables(json.loads(MEASURED.read_text())).items():
        document = rewritten(document, SCRIPT, name, made)
        print(f"{made}\n")
    DOCUMENT.write_text(document)


if __name__ == "__main__":
    main()
