"""A task of the Spark sink under throttling: slow is no failure, and what was taken is not sent again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest

from sqsdelay.core.message import OutgoingMessage
from sqsdelay.errors import QueueUnavailable
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sending.settings import SenderSettings
from sqsdelay.spark.sink.columns import Columns
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.rows import Rows
from sqsdelay.spark.sink.task import Task
from sqsdelay.testing import InMemoryQueues, ManualClock

ROWS = 300


class ThrottlingQueues(InMemoryQueues):
    """Takes one batch call, then refuses until so many seconds have passed."""

    seconds_a_call = 40.0
    taken: Counter[str]
    free_at = 0.0

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        now = self.clock.monotonic()
        if now < self.free_at:
            error = QueueUnavailable("RequestThrottled")
            return [Failure("RequestThrottled", error, transient=True)] * len(entries)
        self.free_at = now + self.seconds_a_call
        self.taken.update(entry.group_id or "" for entry in entries)
        return super().send_batch(queue_url, entries)


def task_on(queues: ThrottlingQueues, clock: ManualClock, *, retry_seconds: int) -> Task:
    queues.create_endpoint("orders")
    rows = Rows(
        columns=Columns(names=frozenset({"body", "delay_seconds", "message_id"}), key=None),
        options=Options(endpoint="orders"),
        delay_start_ms=clock.now_ms(),
    )
    sender = QueueSender(queues, SenderSettings(concurrency=1))
    return Task(rows, sender, retry_seconds=retry_seconds, clock=clock, sleep=clock.advance)


def table() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "body": ["x"] * ROWS,
            "delay_seconds": [86_400] * ROWS,
            "message_id": [f"m{row}" for row in range(ROWS)],
        }
    )


def test_a_slow_service_is_no_outage() -> None:
    """Thirty calls at 40 s each take twenty minutes: the limit counts from the last row taken."""
    clock = ManualClock()
    queues = ThrottlingQueues(clock)
    queues.taken = Counter()
    task = task_on(queues, clock, retry_seconds=60)
    assert list(task.send([table()])) == []
    assert queues.taken == {f"m{row}": 1 for row in range(ROWS)}
    assert task.counts.sent == ROWS


def test_a_service_that_takes_nothing_fails_the_task() -> None:
    """After retry_seconds without a single row taken, with the number of rows that are left."""
    clock = ManualClock()
    queues = ThrottlingQueues(clock)
    queues.taken = Counter()
    queues.seconds_a_call = 10_000.0
    task = task_on(queues, clock, retry_seconds=60)
    with pytest.raises(QueueUnavailable, match=r"290 rows for orders .* 60 s .* none was"):
        list(task.send([table()]))
    assert queues.taken == {f"m{row}": 1 for row in range(10)}
