"""A Spark job whose rows are staged in an S3 store, without Spark: its driver, its tasks, its bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pytest

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.spark.sink import stored_job
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.receipts import NOTHING_SENT, Receipts
from sqsdelay.spark.sink.rows import Rows
from sqsdelay.spark.sink.run import Attempt, run_of
from sqsdelay.spark.sink.staging import Bulk
from sqsdelay.spark.sink.stored_job import Job
from sqsdelay.spark.sink.task import Task
from sqsdelay.stores import S3Store
from sqsdelay.stores.s3.bucket import ObjectBucket
from sqsdelay.stores.s3.layout import Hierarchy
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

    def wheel(self, _: str, endpoint: str) -> Wheel:
        client: Any = self.s3
        bucket = ObjectBucket("parked", client, self.clock)
        return Wheel(bucket, endpoint, prefix="", hierarchy=Hierarchy())

    def bulk(self, receipts: Receipts | None = None, name: str = "0x1", parts: int = 1) -> Bulk:
        """What one attempt stages with."""
        rows = Rows(
            columns=Columns(names=frozenset(COLUMNS), key=None),
            options=Options(store="s3://parked", endpoint="orders", retry_seconds=0, parts=parts),
            delay_start_ms=self.clock.now_ms(),
        )
        staged, before = None, NOTHING_SENT
        if receipts is not None:
            staged, before = receipts.staging(ATTEMPT), receipts.load()
        more: dict[str, Any] = {"sent_before": before, "open_wheel": self.wheel}
        return Bulk(rows, self.run, self.queues, name, staged, **more)

    def task(
        self,
        batches: Sequence[pa.RecordBatch],
        receipts: Receipts | None = None,
        *,
        part: int = 0,
        parts: int = 1,
        attempt: int = 1,
    ) -> Task:
        """One attempt, run to its end."""
        bulk = self.bulk(receipts, f"{part}x{attempt}", parts)
        given: dict[str, Any] = {
            "rows": bulk.rows,
            "sender": bulk.sender,
            "sent_before": bulk.sent_before,
        }
        task = Task(**given, clock=self.clock, bulk=bulk)
        self.rejected = [each for batch in task.send(batches) for each in batch.to_pylist()]
        return task

    def publish(self, *tasks: Task, slept: list[float] | None = None) -> int:
        """What the job's driver does when Spark has committed these; patient where it is to sleep."""
        staged = [task.staged for task in tasks if task.staged is not None]
        retry, slept = (0, []) if slept is None else (60, slept)
        options = Options(store="s3://parked", parts=len(tasks), retry_seconds=retry)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stored_job, "wheel_of", self.wheel)
            patch.setattr("time.sleep", slept.append)
            return stored_job.published(staged, options) if staged else 0

    def give_up(self, task: Task) -> bool:
        """What the job's driver does when Spark has given it up; False where it was published."""
        assert task.staged is not None
        job = Job(self.wheel("", task.staged.endpoint), task.staged.run)
        return job.abort([task.staged])

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
