"""What the capacity simulation is fed with: AWS's quotas, assumptions, the deployment, measured costs.

Every number of AWS stands here once, with its source; those that sqsdelay itself lives by come from
`sqsdelay.limits`. What the deployment sets comes from ``sqsdelay/cdk`` (a test keeps the two equal, for
importing the CDK takes seconds).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lambdas.dispatcher.handler import BATCH, CONCURRENT_SENDS, KEPT_BACK_MS
from sqsdelay.dispatching.dispatcher import DEFAULT_BATCH
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    DELAY_CONSUMER_MEMORY_MB,
    DISPATCHER_MEMORY_MB,
    MAX_BATCH_ENTRIES,
    MAX_MESSAGE_TIMER_SECONDS,
    MAX_RETENTION_SECONDS,
    SCHEDULE_SECONDS,
)
from sqsdelay.sqs.outbox import DEFAULT_CONCURRENCY
from sqsdelay.sqs.receivers import LEAST_RECEIVERS, MOST_RECEIVERS
from sqsdelay.stores.dynamodb.dynamodb_store import DEFAULT_SHARDS

READ_ON: Final = "2026-11-20"
"""When the quotas were read."""

MEASURED_FILE: Final = Path(__file__).parent / "measured.json"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number that is not ours, and where it is from."""

    name: str
    value: float
    unit: str
    source: str


FIFO_CALLS: Final = Figure(
    name="FIFO queue with high throughput: calls of each action (N. Virginia, Oregon, Ireland)",
    value=70_000,
    unit="calls/s",
    source="SQS quotas-messages.html",
)
FIFO_CALLS_ELSEWHERE: Final = Figure(
    name="the same in regions that the page does not name",
    value=2_400,
    unit="calls/s",
    source="SQS quotas-messages.html, second-hand",
)
PLAIN_FIFO_CALLS: Final = Figure(
    name="FIFO queue without high throughput: calls of each action",
    value=300,
    unit="calls/s",
    source="SQS quotas-messages.html",
)
FIFO_IN_FLIGHT: Final = Figure(
    name="messages in flight in a FIFO queue (20,000 in older texts)",
    value=120_000,
    unit="messages",
    source="SQS quotas-fifo.html",
)
MOST_CONCURRENCY: Final = Figure(
    name="batches in hand of one SQS event source",
    value=1_000,
    unit="batches",
    source="Lambda services-sqs-scaling.html",
)
FULL_PROCESSOR_MB: Final = Figure(
    name="function memory that comes with one whole processor; less memory, as much less of it",
    value=1_769,
    unit="MB",
    source="Lambda configuration-memory.html",
)
TABLE_READS: Final = Figure(
    name="new on-demand DynamoDB table: read units",
    value=12_000,
    unit="units/s",
    source="DynamoDB on-demand-capacity-mode.html",
)
PARTITION_READS: Final = Figure(
    name="one DynamoDB partition: read units",
    value=3_000,
    unit="units/s",
    source="DynamoDB TroubleshootingThrottlingOnDemand.html",
)
S3_WRITES: Final = Figure(
    name="one prefix of an S3 bucket: writes, at least",
    value=3_500,
    unit="writes/s",
    source="S3 optimizing-performance.html",
)
QUOTAS: Final = (
    FIFO_CALLS,
    FIFO_CALLS_ELSEWHERE,
    PLAIN_FIFO_CALLS,
    FIFO_IN_FLIGHT,
    MOST_CONCURRENCY,
    FULL_PROCESSOR_MB,
    TABLE_READS,
    PARTITION_READS,
    S3_WRITES,
)

SQS_SECONDS: Final = Figure(
    name="answer of SQS",
    value=0.020,
    unit="s",
    source="the example of SQS sqs-throughput-horizontal-scaling-and-batching.html",
)
DYNAMODB_SECONDS: Final = Figure(
    name="answer of DynamoDB",
    value=0.005,
    unit="s",
    source="“single-digit milliseconds”, DynamoDB on-demand-capacity-mode.html",
)
S3_SECONDS: Final = Figure(
    name="answer of S3",
    value=0.150,
    unit="s",
    source="“roughly 100-200 milliseconds”, S3 optimizing-performance.html",
)
POSTGRES_SECONDS: Final = Figure(
    name="round trip to PostgreSQL, commit included", value=0.002, unit="s", source="our guess"
)
INVOKE_SECONDS: Final = Figure(
    name="from a batch received to the handler called, warm",
    value=0.010,
    unit="s",
    source="our guess",
)
READ_UNITS: Final = Figure(
    name="read units a release: 1 KiB and its keys read twice, once eventually consistent",
    value=0.4,
    unit="units",
    source="docs/cost.md",
)
ASSUMPTIONS: Final = (
    SQS_SECONDS,
    DYNAMODB_SECONDS,
    S3_SECONDS,
    POSTGRES_SECONDS,
    INVOKE_SECONDS,
    READ_UNITS,
)


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
    retention_seconds: int = MAX_RETENTION_SECONDS


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
"""How many the real runs have that the simulation is compared with."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A real run: seconds until half of its messages were through, until all were, and SQS's mean answer."""

    what: str
    real_half: float
    real_all: float
    answer_seconds: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The stored measurements."""

    machine: str
    measured_on: str
    costs: Mapping[str, Cost]
    checks: Mapping[str, Check]

    @classmethod
    def load(cls, path: Path = MEASURED_FILE) -> Measured:
        """What ``capacity.py --measure`` has stored."""
        stored: dict[str, Any] = json.loads(path.read_text())
        return cls(
            machine=stored["machine"],
            measured_on=stored["measured_on"],
            costs={name: Cost(**cost) for name, cost in stored["costs"].items()},
            checks={name: Check(**check) for name, check in stored["checks"].items()},
        )
