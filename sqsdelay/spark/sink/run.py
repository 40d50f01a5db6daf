"""One run of a job: its attempts, the instants that delays count from, and what it stages in an S3 store."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import tenacity
from pyspark import TaskContext

from sqsdelay.core.clock import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import one_line
from sqsdelay.errors import ConfigurationError, StoreError, StoreUnavailable
from sqsdelay.spark.locations import opened
from sqsdelay.spark.sink.options import Options

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from sqsdelay.spark.sink.stored_job import Job, Staged


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
            f"option('checkpointLocation', …) must be given on the query itself; or {INSTEAD}"
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


logger = logging.getLogger(__name__)

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
    from sqsdelay.spark.sink.stored_job import new_job_batch
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


def _named(*parts: object) -> str:
    """What a job, or a micro-batch, is known by in the store."""
    return json.dumps(parts, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What an attempt has staged for one endpoint."""

    endpoint: str
    run: Run
    staged: Staged


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


def published(
    parts: Iterable[StagedPart],
    options: Options,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Publish what committed attempts have staged: in all endpoints, or in none.

    Each step is tried again for the option ``retry_seconds``.

    Returns:
        How many messages another run of the same job had stored meanwhile, and this one then did not.

    Raises:
        StoreUnavailable: nothing is published; the job can be run again, with a name or without.
    """

    def insisted(call: Callable[..., _Answer], *arguments: Any, **more: Any) -> _Answer:
        return insist(partial(call, *arguments, **more), options.retry_seconds, sleep=sleep)

    found = list(parts)
    staged = {
        insisted(_job, endpoint, run, options): (run.batch, each)
        for (endpoint, run), each in _by_endpoint(found).items()
    }
    if len(staged) == 1:
        new = [
            job
            for job, (batch, each) in staged.items()
            if insisted(job.commit, batch, each, parts=options.parts)
        ]
    else:
        try:
            new = _decided_for_all(staged, insisted, options.parts)
        except StoreUnavailable:
            if given_up(found, options):
                raise
            new = list(staged)  # An answer was lost: it was decided.
    return sum(sum(e.messages for e in each) for job, (_, each) in staged.items() if job not in new)


def _decided_for_all(
    staged: Mapping[Job, tuple[str, Sequence[Staged]]], insisted: Callable[..., Any], parts: int
) -> list[Job]:
    """Publish in several endpoints by one decision; those in which no other run has stored the same."""
    names = [job.endpoint for job in staged]
    new = [
        job
        for job, (batch, each) in staged.items()
        if insisted(job.noted, batch, each, names, parts=parts)
    ]
    attempts = {job.endpoint: [each.attempt for each in staged[job][1]] for job in new}
    for job in new[:1]:
        insisted(job.decide_for_all, staged[job][0], attempts)
    return new


def given_up(parts: Iterable[StagedPart], options: Options) -> bool:
    """Give up what a job that failed has staged; what cannot be now is, when its slot comes near.

    Returns:
        False where it is published.
    """
    staged = _by_endpoint(parts)
    for endpoint, run in staged:
        try:
            job = _job(endpoint, run, options)
            if len(staged) > 1 and not job.is_given_up(run.batch):
                return False
            job.abort(run.batch)
        except StoreError as error:
            logger.warning("what was staged for %s is left: %s", endpoint, one_line(error))
    return True


def _by_endpoint(parts: Iterable[StagedPart]) -> dict[tuple[str, Run], Sequence[Staged]]:
    found: dict[tuple[str, Run], list[Staged]] = {}
    for part in parts:
        found.setdefault((part.endpoint, part.run), []).append(part.staged)
    return {key: found[key] for key in sorted(found, key=lambda key: key[0])}


def _job(endpoint: str, run: Run, options: Options) -> Job:
    from sqsdelay.spark.sink.stored_job import Job, wheel_of

    wheel = wheel_of(str(options.store), endpoint)
    assert wheel is not None, "a run stages in S3 stores only"
    return Job(wheel, run.job)
