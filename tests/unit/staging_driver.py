"""A Spark job whose rows are staged in an S3 store, without Spark: its driver, its tasks, its bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.sending.router import SenderSettings
from sqsdelay.spark.sink import stored_job
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.receipts import Receipts
from sqsdelay.spark.sink.rows import Rows
from sqsdelay.spark.sink.run import Attempt, run_of
from sqsdelay.spark.sink.staging import Bulk
from sqsdelay.spark.sink.stored_job import Job
from sqsdelay.spark.sink.task import Task
from sqsdelay.spark.sink.worker import sent_before
from sqsdelay.stores import S3Store
from sqsdelay.stores.s3.bucket import ObjectBucket
from sqsdelay.stores.s3.wheel import Wheel
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.services.in_memory_s3 import InMemoryS3

ATTEMPT: Final = Attempt("w", 0, 0, 7)
DAY: Final = 86_400
COLUMNS: Final = ("body", "delay_seconds", "message_id", "endpoint", "message_group_id")


class Driver:
    """A job, its bucket and its queues."""

    def __init__(self, *endpoints: str) -> None:
        self.clock = ManualClock()
        self.s3 = InMemoryS3()
        self.queues = InMemoryQueues(self.clock)
        for endpoint in endpoints:
            self.queues.create_endpoint(endpoint)
        self.begin("j")

    def begin(self, job: str | None) -> None:
        """A run of a job begins now."""
        self.run = run_of(Options(store="s3://parked", job=job), self.clock.now_ms())

    def bucket(self, _: str = "") -> ObjectBucket:
        client: Any = self.s3
        return ObjectBucket("parked", client, self.clock)

    def wheel(self, endpoint: str) -> Wheel:
        return self.job().wheel(endpoint)

    def job(self) -> Job:
        return Job("s3://parked", self.run, self.bucket())

    def bulk(
        self, receipts: Receipts | None = None, part: int = 0, parts: int = 1, attempt: int = 1
    ) -> Bulk:
        """What one attempt stages with."""
        options = Options(store="s3://parked", endpoint="orders", retry_seconds=0, parts=parts)
        run = replace(self.run, delay_start_ms=self.clock.now_ms())
        rows = Rows(Columns(names=frozenset(COLUMNS)), options, run)
        job, this = self.job(), Attempt(self.run.stamp, part, 0, attempt)
        staged = None if receipts is None else receipts.staging(ATTEMPT)
        before = sent_before(receipts, job, options, this)
        more = f"{part}x{attempt}", staged, SenderSettings(idempotent=True), before
        return Bulk(rows, job, self.queues, *more)

    def task(
        self,
        batches: Sequence[pa.RecordBatch],
        receipts: Receipts | None = None,
        **which: int,
    ) -> Task:
        """One attempt, run to its end."""
        bulk = self.bulk(receipts, **which)
        given: dict[str, Any] = {"rows": bulk.rows, "sender": bulk.sender, "before": bulk.before}
        task = Task(**given, clock=self.clock, bulk=bulk)
        self.rejected = [each for batch in task.send(batches) for each in batch.to_pylist()]
        return task

    def publish(self, *tasks: Task, slept: list[float] | None = None) -> None:
        """What the job's driver does when Spark has committed these; patient where it is to sleep."""
        staged = [task.staged for task in tasks if task.staged is not None]
        retry, slept = (0, []) if slept is None else (60, slept)
        options = Options(store="s3://parked", parts=len(tasks), retry_seconds=retry)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stored_job, "bucket_of", self.bucket)
            patch.setattr("time.sleep", slept.append)
            if staged:
                stored_job.published(staged, options)

    def give_up(self, task: Task) -> bool:
        """What the job's driver does when Spark has given it up; False where it was published."""
        assert task.staged is not None
        return Job("s3://parked", task.staged.run, self.bucket()).abort([task.staged])

    def store(self, endpoint: str = "orders", s3: InMemoryS3 | None = None) -> S3Store:
        client: Any = s3 or self.s3
        return S3Store("parked", endpoint=endpoint, client=client, clock=self.clock)

    def pending(self, endpoint: str = "orders") -> list[StoredMessage]:
        return self.store(endpoint).pending(100_000)

    def around(self, around: Callable[[str, Callable[[], Any]], Any]) -> InMemoryS3:
        """The bucket, as somebody sees it whose calls are broken."""
        return InMemoryS3(self.s3.objects, around=around)


def table(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    types = [pa.string(), pa.int64(), pa.string(), pa.string(), pa.string()]
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(c, t) for c, t in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))
