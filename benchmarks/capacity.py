"""How many delayed messages one endpoint holds, and how many of them may be due at once.

Reckoned from AWS's quotas, assumed answer times and the costs that `benchmarks.capacity_measured` has
stored; rewrites the tables of docs/capacity.md, the same each time.

Every number of AWS stands here once, with its source, if `sqsdelay.limits` does not have it. What the
deployment sets comes from ``sqsdelay/cdk``: a test keeps the two equal, for importing the CDK takes seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.support import blocks
from lambdas.dispatcher.handler import BATCH, CONCURRENT_SENDS, KEPT_BACK_MS
from sqsdelay.dispatching.dispatcher import DEFAULT_BATCH
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    DELAY_CONSUMER_MEMORY_MB,
    DISPATCHER_MEMORY_MB,
    MAX_BATCH_ENTRIES,
    MAX_MESSAGE_TIMER_SECONDS,
    SCHEDULE_SECONDS,
)
from sqsdelay.sqs.outbox import DEFAULT_CONCURRENCY
from sqsdelay.sqs.receivers import LEAST_RECEIVERS, MOST_RECEIVERS
from sqsdelay.stores.dynamodb.dynamodb_store import DEFAULT_SHARDS

READ_ON: Final = "2026-11-20"
"""When the quotas were read."""

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
S3_WRITES: Final = 3_500.0

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
one prefix of an S3 bucket: writes, at least
| {S3_WRITES:,g} writes/s | S3 optimizing-performance.html
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


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What ``sqsdelay/cdk`` and the defaults set."""

    hop_seconds: int = DEFAULT_HOP_SECONDS
    batch: int = MAX_BATCH_ENTRIES
    max_concurrency: int = 10
    consumer_memory_mb: int = DELAY_CONSUMER_MEMORY_MB
    dispatcher_memory_mb: int = DISPATCHER_MEMORY_MB
    dispatcher_timeout_seconds: int = 170
    dispatcher_runs: int = 3
    dispatcher_sends: int = CONCURRENT_SENDS
    dispatcher_kept_back_seconds: float = KEPT_BACK_MS / 1000
    dispatcher_every_seconds: int = SCHEDULE_SECONDS
    dispatcher_claim: int = BATCH
    dynamodb_threads: int = 16
    shards: int = DEFAULT_SHARDS
    receivers: int = MOST_RECEIVERS
    worker_claim: int = DEFAULT_BATCH
    outbox_batches: int = DEFAULT_CONCURRENCY
    ahead_seconds: int = MAX_MESSAGE_TIMER_SECONDS


DEPLOYED: Final = Deployment()


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What 1,000 messages cost their process: one hop each, or one release each."""

    requests: Mapping[str, float]
    cpu_seconds: float
    start_mib: float
    grown_mib: float

    def cpu_of(self, messages: int) -> float:
        """Seconds of a whole processor."""
        return self.cpu_seconds * messages / 1000


CHECKED_MESSAGES: Final = 2_000
CHECKED_RELEASES: Final = 5_000
CHECKED_RECEIVERS: Final = LEAST_RECEIVERS
"""How many the real runs have that the arithmetic is compared with."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A real run: seconds until all of its messages were through, and SQS's mean answer."""

    what: str
    real_all: float
    answer_seconds: float


@dataclass(frozen=True, kw_only=True)
class System:
    """What relays or releases messages.

    Args:
        limits: messages a second that each part allows, by the part's name.
    """

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
    cost: Cost, *, answer_seconds: float = SQS_SECONDS, receivers: int = DEPLOYED.receivers
) -> System:
    """One process of ``sqsdelay consume`` with a backlog: its receivers share one processor."""
    batch = DEPLOYED.batch
    return System(
        name="worker (default)",
        limits={
            "batches in hand": receivers * batch / (3 * answer_seconds),
            "processor": batch / cost.cpu_of(batch),
            "send calls": FIFO_CALLS_ELSEWHERE * batch,
        },
    )


def function(name: str, cost: Cost, *, lanes: float, calls: float) -> System:
    """The delay consumer as a function: receive, invoke, send, delete; so many batches at once."""
    batch_seconds = _relaying(cost)
    at_once = min(lanes, FIFO_IN_FLIGHT / DEPLOYED.batch)
    return System(
        name=name,
        limits={
            "batches in hand": at_once * DEPLOYED.batch / batch_seconds,
            "send calls": calls * DEPLOYED.batch,
        },
    )


def dispatcher_worker(cost: Cost, answer_seconds: float = SQS_SECONDS) -> System:
    """One process of ``sqsdelay dispatch`` on PostgreSQL: one claim after the other."""
    claim = DEPLOYED.worker_claim
    sends = math.ceil(claim / DEPLOYED.batch / DEPLOYED.outbox_batches)
    return _one_after_the_other(
        "worker on PostgreSQL",
        claim,
        {
            "processor": cost.cpu_of(claim),
            "answers of PostgreSQL": 3 * POSTGRES_SECONDS,
            "answers of SQS": sends * answer_seconds,
        },
    )


def dispatcher_function(
    name: str, cost: Cost, answers: tuple[str, float], *, runs: int, quota: float
) -> System:
    """So many runs of the dispatcher function at once.

    Args:
        answers: the store's, of one claim: their name, and the seconds they take one after the other.
        quota: releases a second that the store's quotas allow.
    """
    claim, every = DEPLOYED.dispatcher_claim, DEPLOYED.dispatcher_every_seconds
    sends = math.ceil(claim / DEPLOYED.batch / DEPLOYED.dispatcher_sends)
    processor = DEPLOYED.dispatcher_memory_mb / FULL_PROCESSOR_MB
    # One starts each minute and ends somewhat before its timeout, which grows with the runs.
    timeout = (runs - DEPLOYED.dispatcher_runs) * every + DEPLOYED.dispatcher_timeout_seconds
    lanes = (timeout - DEPLOYED.dispatcher_kept_back_seconds) / every
    store_name, store_seconds = answers
    return _one_after_the_other(
        name,
        claim * lanes,
        {
            f"processor ({DEPLOYED.dispatcher_memory_mb} MB)": cost.cpu_of(claim) / processor,
            store_name: store_seconds,
            "answers of SQS": sends * SQS_SECONDS,
        },
        {"the store's quotas": quota},
    )


def _one_after_the_other(
    name: str,
    messages: float,
    parts: Mapping[str, float],
    limits: Mapping[str, float] | None = None,
) -> System:
    """A claim's parts follow each other; the longest names the limit."""
    longest = max(parts, key=parts.__getitem__)
    return System(name=name, limits={longest: messages / sum(parts.values()), **(limits or {})})


def consumers(costs: Mapping[str, Cost]) -> list[System]:
    """Those that relay: a worker, and the function with more and more batches at once."""
    most = f"function, {MOST_CONCURRENCY:,.0f} at once"
    settings = (
        (
            f"function, {DEPLOYED.max_concurrency} at once (as deployed)",
            DEPLOYED.max_concurrency,
            FIFO_CALLS_ELSEWHERE,
        ),
        ("function, 100 at once", 100, FIFO_CALLS_ELSEWHERE),
        (f"{most}, without high throughput", MOST_CONCURRENCY, PLAIN_FIFO_CALLS),
        (most, MOST_CONCURRENCY, FIFO_CALLS_ELSEWHERE),
        (f"{most}, Ireland", MOST_CONCURRENCY, FIFO_CALLS),
    )
    cost = costs["function"]
    return [
        worker(costs["worker"]),
        *(function(name, cost, lanes=lanes, calls=calls) for name, lanes, calls in settings),
    ]


def dispatchers(costs: Mapping[str, Cost]) -> list[System]:
    """Those that release: the function on DynamoDB and on S3, a worker on PostgreSQL."""
    runs, shards = DEPLOYED.dispatcher_runs, DEPLOYED.shards
    on_dynamodb = (
        ("as deployed", runs, shards),
        ("6 runs at once", 6, shards),
        ("15 runs at once, 15 shards or more", 15, 15),
    )
    on_s3 = costs["dispatcher function on S3"]
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
            on_s3,
            # A listing, an object (in one claim of five), its lease, is it still there, the checkpoint.
            ("answers of S3", 5 * S3_SECONDS),
            runs=runs,
            quota=S3_WRITES * 1000 / on_s3.requests["PutObject"],
        ),
        dispatcher_worker(costs["dispatcher worker"]),
    ]


def parked_a_second(cost: Cost) -> float:
    """What the deployed function parks: it reads amendments twice and puts ten items side by side."""
    seconds = _relaying(cost) - SQS_SECONDS + 3 * DYNAMODB_SECONDS
    return DEPLOYED.max_concurrency * DEPLOYED.batch / seconds


def _relaying(cost: Cost) -> float:
    """A batch in the function, seconds; its share of a processor is small."""
    processor = DEPLOYED.consumer_memory_mb / FULL_PROCESSOR_MB
    return 3 * SQS_SECONDS + INVOKE_SECONDS + cost.cpu_of(DEPLOYED.batch) / processor


def tables(stored: Mapping[str, Any]) -> dict[str, str]:
    """Every table of the page by the name of its block.

    Args:
        stored: the content of ``capacity.json``.
    """
    costs = {name: Cost(**cost) for name, cost in stored["costs"].items()}
    checks = {name: Check(**check) for name, check in stored["checks"].items()}
    return {
        "answers": _answers(costs),
        "measured": _measured(costs, f"{stored['measured_on']}: {stored['machine']}."),
        "figures": _table(
            ("quota, or assumed", "value", f"source (read {READ_ON})"),
            [line.split(" | ") for line in FIGURES.replace("\n|", " |").strip().splitlines()],
        ),
        "check": _checked(costs, checks),
    }


def _answers(costs: Mapping[str, Cost]) -> str:
    """How many, and what saturates first."""
    rows = [
        (
            f"relay: {each.name}",
            about(each.rate),
            about(each.rate * DEPLOYED.hop_seconds),
            about(each.rate * DEPLOYED.hop_seconds),
            about(each.rate * 60),
            each.saturates,
        )
        for each in consumers(costs)
    ]
    for each in dispatchers(costs):
        ahead = about(each.rate * DEPLOYED.ahead_seconds)
        name = f"parked: {each.name}"
        rows.append((name, about(each.rate), "no limit", ahead, ahead, each.saturates))
    header = (
        "",
        "hops or releases a second",
        "pending, on time",
        "due in one minute, sent at any time",
        "sent together",
        "saturates first",
    )
    parks = about(parked_a_second(costs["function, parking"]))
    return f"{_table(header, rows)}\n\nThe deployed function parks {parks} messages a second."


def _measured(costs: Mapping[str, Cost], where: str) -> str:
    rows = [
        (
            name,
            ", ".join(f"{n:g} {action}" for action, n in cost.requests.items()),
            f"{cost.cpu_seconds * 1000:.0f} ms",
            f"{cost.start_mib:.0f} MiB",
            f"{cost.grown_mib * 1024:.0f} KiB",
        )
        for name, cost in costs.items()
    ]
    return f"{_table(('', 'requests', 'CPU time', 'memory, warm', 'grown'), rows)}\n\n{where}"


def _checked(costs: Mapping[str, Cost], checks: Mapping[str, Check]) -> str:
    """Real runs beside the arithmetic, with the answer time assumed and with that of the run."""
    rows = []
    for name, real in checks.items():
        cells = [
            _compared(_reckoned(name, costs[name], answer), real)
            for answer in (SQS_SECONDS, real.answer_seconds)
        ]
        mean = f"{real.answer_seconds * 1000:.1f} ms"
        rows.append((real.what, f"{real.real_all:.2f} s", cells[0], mean, cells[1]))
    assumed = f"reckoned, {SQS_SECONDS * 1000:.0f} ms an answer"
    header = ("all of", "real", assumed, "mean answer of the run", "reckoned with that")
    return _table(header, rows)


def _reckoned(name: str, cost: Cost, answer_seconds: float) -> float:
    """Seconds until the last message of a check is through."""
    if name == "worker":
        relay = worker(cost, answer_seconds=answer_seconds, receivers=CHECKED_RECEIVERS)
        return CHECKED_MESSAGES / relay.rate
    return CHECKED_RELEASES / dispatcher_worker(cost, answer_seconds).rate


def _compared(seconds: float, real: Check) -> str:
    return f"{seconds:.2f} s ({seconds / real.real_all - 1:+.0%})"


def about(number: float) -> str:
    """Two digits are all that the assumptions bear."""
    if number < 100:
        return f"{number:.0f}"
    return f"{float(f'{number:.2g}'):,.0f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rewritten(document: str, name: str, made: str) -> str:
    """The document with another block of that name.

    Raises:
        ValueError: the document has no such block.
    """
    return blocks.rewritten(document, "benchmarks.capacity", name, made)


def main() -> None:
    """Rewrite the page's tables, and print them."""
    document = DOCUMENT.read_text()
    for name, made in tables(json.loads(MEASURED.read_text())).items():
        document = rewritten(document, name, made)
        print(f"{made}\n")
    DOCUMENT.write_text(document)


if __name__ == "__main__":
    main()
