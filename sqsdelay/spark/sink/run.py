"""One run of a job: its attempts, the instants that delays count from, what it stages in an S3 store, and
what its tasks tell its driver."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypeVar

import tenacity
from pyspark import TaskContext

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError, SchemaMismatch, SqsDelayError, StoreUnavailable
from sqsdelay.spark.session import opened
from sqsdelay.spark.sink.options import Options
from sqsdelay.stores.s3.layout import BATCH_SECONDS, digest, new_batch

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt on one task of a write, of which ``number`` 0 is the first. No other attempt has the same
    ``task_id`` and ``began_ms``: a driver that is started again counts its tasks from 0."""

    write_id: str
    partition: int = 0
    number: int = 0
    task_id: int = 0
    began_ms: int = 0


AT_A_TIME: Final = 16
"""Files that are read or moved at a time: of a store of objects each takes some requests."""


class AttemptFiles:
    """Files that count once Spark has committed the attempts that wrote them. Until then they lie in a folder
    of their write, whose name begins with ``_``: Spark's readers pass over it."""

    def __init__(self, path: str, option: str = "rejects") -> None:
        self.system, self.root = opened(path, option)

    def hidden(self, attempt: Attempt) -> str:
        """Where an attempt writes its file."""
        name = f"{attempt.partition:05d}-{attempt.task_id}.parquet"
        return f"{self.root}/_staging-{attempt.write_id}/{name}"

    def move(self, names: Mapping[str, str]) -> None:
        """Let files count under the names that they are to have."""
        folders = {name.rpartition("/")[0] for name in names.values()}
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(self.system.create_dir, folders))
            list(pool.map(self.system.move, names, names.values()))

    def drop(self, write_ids: Iterable[str]) -> None:
        """Delete what is hidden of these writes."""
        from pyarrow import fs

        for folder in (f"{self.root}/_staging-{each}" for each in write_ids):
            if self.system.get_file_info(folder).type is not fs.FileType.NotFound:
                self.system.delete_dir(folder)


def this_attempt(write_id: str, run: Run) -> Attempt:
    of = TaskContext.get()
    assert of is not None, "tasks of a write run in Spark's workers"
    return Attempt(write_id, of.partitionId(), of.attemptNumber(), of.taskAttemptId(), run.began_ms)


INSTEAD: Final = (
    "give due_at instead: current_timestamp() + make_dt_interval(0, 0, 0, delay_seconds)"
)


def planned_ms(options: Options, client: SQSClient) -> int:
    """Now, for a job that is being planned, epoch milliseconds, not before the broker's now. By the
    broker's clock where the options name an endpoint to ask, which must exist. Raises QueueMissing,
    QueueUnavailable, InvalidEndpoint."""
    from sqsdelay.sqs.queues import SqsQueues  # Not for a commit, see `sqsdelay.spark.sink.job`.

    if options.endpoint is None:
        return SystemClock().now_ms()
    queues = SqsQueues(client)
    queues.synchronise(Endpoint.parse(options.endpoint).queue)
    # SQS dates answers in whole seconds, up to one in the past: nothing may be due too early.
    return queues.broker_clock.now_ms() + 1000


def micro_batch_ms(checkpoint: str | None, batch_id: int) -> int:
    """The time of a stream's micro-batch, which is also its ``current_timestamp()``. Spark writes it to the
    checkpoint before the micro-batch is run, and keeps it when the micro-batch is run again, be it days
    later. Raises ConfigurationError."""
    if checkpoint is None:
        raise ConfigurationError(
            "delay_seconds of a stream counts from the micro-batch's time in the checkpoint: "
            f"option checkpointLocation must be given on the query itself; or {INSTEAD}"
        )
    system, root = opened(checkpoint, "checkpointLocation")
    file = f"{root}/offsets/{batch_id}"
    try:
        with system.open_input_stream(file) as stream:
            _, metadata = stream.read().decode().splitlines()[:2]
        return int(json.loads(metadata)["batchTimestampMs"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"the micro-batch's time cannot be read from {file} ({error}); {INSTEAD}"
        ) from error


JOB_VERSION: Final = 1
"""Of what a job leaves to be run again: its receipts, its record in an S3 store, and the marks in both."""


def check_version(found: object, place: str) -> None:
    """Refuse to run a job again that another sqsdelay has run: its marks mean something else."""
    if found != JOB_VERSION:
        has = "no version" if found is None else f"version {found}"
        raise SchemaMismatch(
            f"another sqsdelay has run this job: {place} has {has}, and this one supports version "
            f"{JOB_VERSION} only; let that one finish the job, or name another job, which sends all rows"
        )


JOB_SECONDS: Final = 86_400
"""How long a run may take before others may give up what it has staged."""

LONGEST_WAIT: Final = 10.0
"""Seconds, at random less, before what was refused is tried again."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a job, as the driver began it; instants are epoch milliseconds. ``delay_seconds`` count
    from ``delay_start_ms``. If it stages rows in an S3 store: what the ``job`` is known by when it is run
    again, as a digest (None where it never is), what tells this run from others, and from when it stages."""

    began_ms: int
    delay_start_ms: int
    job: str | None = None
    stamp: str = ""
    after_ms: int = 0

    @property
    def batch(self) -> str:
        """The batch that it stages, which is decided with the job."""
        return f"{self.stamp}.{self.job or digest(self.stamp)}"


def run_of(options: Options, began_ms: int) -> Run:
    """A new run of a job. What it stages may be written for `JOB_SECONDS`."""
    if not options.stages:
        return Run(began_ms=began_ms, delay_start_ms=began_ms)
    named = options.job, options.batch, options.replay
    until_ms = began_ms + (JOB_SECONDS - BATCH_SECONDS) * 1000
    return Run(
        began_ms=began_ms,
        delay_start_ms=began_ms,
        job=None if options.job is None else digest(json.dumps(named, ensure_ascii=False)),
        stamp=new_batch(until_ms, until_ms),
        after_ms=began_ms + max(options.park_after, options.hop_seconds) * 1000,
    )


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt on a task has staged: its latest due time, a digest of the earlier batches it knew of,
    the first endpoint it is for, and whether the store tells of ``others`` (`stored_job.Job.leave`)."""

    run: Run
    attempt: str
    last_ms: int
    known: str
    endpoint: str
    others: bool = False


def insist(call: Callable[[], _Answer], seconds: float) -> _Answer:
    """Do what S3 may refuse for a while, again for so many seconds: hours of staging depend on it. Only what
    S3 itself did not take is tried again, not what a job has found out for good. Raises StoreUnavailable."""
    patient = tenacity.Retrying(
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=LONGEST_WAIT),
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, StoreUnavailable) and error.__cause__ is not None
        ),
        reraise=True,
    )
    return patient(call)


NUMBERS: Final = ("repeated", "already_sent", "throttled", "retried")
"""What is counted besides rows sent and rejected."""

_EXAMPLES_BYTES: Final = 200
"""Of all examples in a task's report. Spark gathers the reports of all tasks in the driver, and ends a job
when they come to more than ``spark.driver.maxResultSize``, after everything was sent."""


@dataclass(kw_only=True)
class Counts:
    """Rows sent, per route, and rows that could not be, per kind of error with one example.

    ``repeated``: rows whose id an earlier row had. ``already_sent``: rows that receipts of an earlier
    run show as sent. ``throttled``: calls that SQS or S3 refused for their rate. ``retried``: rows that were
    not taken and sent again. Of a plan: ``costs`` of each way, infinite where some messages are too large
    for it, and how many are ``relayed``.
    """

    routes: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    already_sent: int = 0
    throttled: int = 0
    retried: int = 0
    relayed: int = 0
    costs: dict[str, Fraction | float] = field(default_factory=lambda: defaultdict(Fraction))
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        return self.routes.total()

    @property
    def rejected(self) -> int:
        return self.reasons.total()

    def count_rejected(self, error: SqsDelayError) -> None:
        kind = type(error).__name__
        self.reasons[kind] += 1
        self.examples.setdefault(kind, str(error))

    def add(self, other: Counts) -> None:
        self.routes.update(other.routes)
        self.reasons.update(other.reasons)
        self.examples = other.examples | self.examples
        for way, cost in other.costs.items():
            self.costs[way] += cost
        for name in (*NUMBERS, "relayed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def reported(self) -> Counts:
        """What the driver is told: examples share `_EXAMPLES_BYTES`, whatever was rejected."""
        most, short = _EXAMPLES_BYTES // max(1, len(self.examples)), dict[str, str]()
        for kind, text in self.examples.items():
            cut = text.encode()[:most].decode(errors="ignore")
            short[kind] = text if cut == text else f"{cut}…"
        return replace(self, examples=short)

    def why(self) -> str:
        """The kinds of errors, the most frequent first, each with an example."""
        return "; ".join(
            f"{number} {kind}, e.g. {self.examples[kind]}"
            for kind, number in self.reasons.most_common()
        )

    def told(self) -> dict[str, Any]:
        """As JSON has them."""
        return {
            "sent": self.sent,
            "rejected": self.rejected,
            **{name: getattr(self, name) for name in NUMBERS},
            "routes": dict(self.routes),
            "reasons": {
                kind: {"rows": rows, "example": self.examples[kind]}
                for kind, rows in self.reasons.most_common()
            },
        }


@dataclass
class TaskReport:
    """What a task tells the driver once all its rows are dealt with: below 1 kB, whatever it sent; and of
    files that count once Spark has committed it, the name that its rejects are to have, and whether there
    are ``receipts``: one that is gone then fails the commit."""

    attempt: Attempt
    counts: Counts
    rejects: str = ""
    staged: Staged | None = None
    receipts: bool = False
