"""Which attempt on which task of a write this worker makes."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext


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

    @property
    def file_name(self) -> str:
        """What its files are named by: no other attempt's are."""
        return f"{self.write_id}-{self.partition:05d}-{self.task_id}"


def context() -> TaskContext:
    """Spark's, of the task that this worker runs."""
    found = TaskContext.get()
    assert found is not None, "tasks of a write run in Spark's workers"
    return found


def this_attempt(write_id: str, batch: int | None = None) -> Attempt:
    """This worker's attempt on a task of a write."""
    current = context()
    return Attempt(
        write_id=write_id,
        partition=current.partitionId(),
        number=current.attemptNumber(),
        task_id=current.taskAttemptId(),
        batch=batch,
    )
