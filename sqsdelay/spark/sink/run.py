"""One run of a job: its attempts, the instants that delays count from, and what it stages in an S3 store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import tenacity
from pyspark import TaskContext

from sqsdelay.core.clock import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError, StoreUnavailable
from sqsdelay.spark.locations import opened
from sqsdelay.spark.sink.options import Options

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt on one task of a write: what names its files."""

    write_id: str
    partition: int
    number: int
    """0 for the first attempt."""
    task_id: int
    """Spark's, which no other attempt has."""
    batch: int | None = None
    """Of a stream."""
    parts: int = 1
    """Among so many tasks the rows are shared out by their ids."""

    @property
    def file_name(self) -> str:
        """What its files are named by: no other attempt's are. It tells whose rows are in them."""
        return f"{self.write_id}-{self.partition:05d}of{self.parts}-{self.task_id}"


def context() -> TaskContext:
    """Spark's, of the task that this worker runs."""
    found = TaskContext.get()
    assert found is not None, "tasks of a write run in Spark's workers"
    return found


def this_attempt(write_id: str, batch: int | None = None, parts: int = 1) -> Attempt:
    """This worker's attempt on a task of a write."""
    current = context()
    return Attempt(
        write_id=write_id,
        partition=current.partitionId(),
        number=current.attemptNumber(),
        task_id=current.taskAttemptId(),
        batch=batch,
        parts=parts,
    )


_DATE_RESOLUTION_MS: Final = 1000
"""SQS dates its answers in whole seconds."""

INSTEAD: Final = (
    "give due_at instead: current_timestamp() + make_dt_interval(0, 0, 0, delay_seconds)"
)


def planned_ms(options: Options, client: SQSClient) -> int:
    """Now, for a job that is being planned, epoch milliseconds, not before the broker's now.

    By the broker's clock where the options name an endpoint to ask, which must exist.

    Raises:
        QueueMissing: it does not.
        QueueUnavailable, InvalidEndpoint: it could not be asked.
    """
    if options.endpoint is None:
        return SystemClock().now_ms()
    from sqsdelay.sqs.queues import SqsQueues  # Not for a commit, see `sqsdelay.spark.sink.job`.

    queues = SqsQueues(client)
    queues.synchronise(Endpoint.parse(options.endpoint).queue)
    # What an answer's date proves is up to a second in the past: nothing may be due too early.
    return queues.broker_clock.now_ms() + _DATE_RESOLUTION_MS


def micro_batch_ms(checkpoint: str | None, batch_id: int) -> int:
    """The time of a stream's micro-batch, which is also its ``current_timestamp()``.

    Spark writes it to the checkpoint before the micro-batch is run, and keeps it when the
    micro-batch is run again, be it days later.

    Raises:
        ConfigurationError: it cannot be read.
    """
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


JOB_SECONDS: Final = 86_400
"""How long a run may take before others may give up what it has staged."""

_RETRY_WAIT: Final = tenacity.wait_random_exponential(multiplier=0.5, max=10)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a job, as the driver began it.

    Args:
        batch: the name of what it stages.
        job: what the job is known by when it is run again; None where it never is.
        now_ms: its beginning, epoch milliseconds.
        after_ms: rows due later than this are staged.
    """

    batch: str
    job: str | None
    now_ms: int
    after_ms: int

    def of_stream(self, write_id: str) -> Run:
        """The same of a stream's micro-batch, which is known by its query and its number."""
        return replace(self, job=_named("stream", write_id))


def run_of(options: Options, now_ms: int) -> Run | None:
    """A new run of a job; None where its rows go to queues, or into a store that takes them one by one."""
    if options.store is None or options.plan:
        return None
    parts = urlsplit(options.store)
    if parts.scheme != "s3":
        return None
    from sqsdelay.stores import s3_settings_of

    if s3_settings_of(parts).get("lookup"):
        return None
    ahead = max(options.park_after, options.hop_seconds)
    return Run(
        batch=new_job_batch(now_ms),
        job=None if options.job is None else _named(options.job, options.batch, options.replay),
        now_ms=now_ms,
        after_ms=now_ms + ahead * 1000,
    )


def new_job_batch(now_ms: int) -> str:
    """A batch's name for one run of a job: it may be written to for `JOB_SECONDS`."""
    from sqsdelay.stores.s3.bucket import BATCH_SECONDS, LATEST_MS
    from sqsdelay.stores.s3.layout import new_batch

    return new_batch(LATEST_MS, now_ms + (JOB_SECONDS - BATCH_SECONDS) * 1000)


def _named(*parts: object) -> str:
    """What a job, or a micro-batch, is known by in the store."""
    return json.dumps(parts, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt on a task has staged for one endpoint.

    Args:
        attempt: its name, which no other attempt has.
        messages: how many.
        total: the sum of the marks of all of them, of 64 bits: of the same messages it is the same.
        last_ms: the latest due time among them.
        known: a digest of the batches of earlier runs that the attempt knew of, in their order.
        others: for how many endpoints more, which the store tells: see `stored_job.Job.leave`.
    """

    endpoint: str
    run: Run
    attempt: str
    messages: int
    total: int
    last_ms: int
    known: str
    others: int = 0


def insist(
    call: Callable[[], _Answer], seconds: float, *, sleep: Callable[[float], None] = time.sleep
) -> _Answer:
    """Do what S3 may refuse for a while, again for so many seconds: hours of staging depend on it.

    Only what S3 itself did not take is tried again, not what a job has found out for good.

    Raises:
        StoreUnavailable
    """
    for attempt in tenacity.Retrying(
        stop=tenacity.stop_after_delay(seconds),
        wait=_RETRY_WAIT,
        sleep=sleep,
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, StoreUnavailable) and error.__cause__ is not None
        ),
        reraise=True,
    ):
        with attempt:
            return call()
    raise AssertionError("the last attempt returns or raises")
