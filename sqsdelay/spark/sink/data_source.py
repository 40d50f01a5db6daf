"""The Spark data source ``sqsdelay``: rows of a table or a stream become delayed messages.

Spark makes a writer on the driver, sends copies of it to the tasks, and commits with yet another
copy in a process of its own. A stream gets a new writer for each micro-batch, and one more for its
commit; what they must agree on travels with the tasks' reports.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sqsdelay.errors import ConfigurationError, NotAllSent
from sqsdelay.spark.sink.columns import DELAY, Columns, checked_columns
from sqsdelay.spark.sink.delay_start import micro_batch_ms, planned_ms
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.rejects import Part, RejectsFolder
from sqsdelay.spark.sink.rows import Rows
from sqsdelay.spark.sink.summary import TaskReport, total, write_summary
from sqsdelay.spark.sink.task import sender_client, task_of

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"
"""Local properties that Spark sets for the tasks of a micro-batch."""

_Reports = Sequence[TaskReport | None]


class SqsDelayDataSource(DataSource):
    """``df.write.format("sqsdelay")``; see docs/spark.md for columns and options."""

    @classmethod
    def name(cls) -> str:
        return "sqsdelay"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer for one job.

        Raises:
            ConfigurationError, InvalidEndpoint, QueueMissing, QueueUnavailable: the job cannot be
                run like this; nothing was sent.
        """
        options, columns = self._checked(schema, overwrite)
        if options.rejects is not None:
            RejectsFolder(options.rejects).create()
        return BatchWriter(Sink(options=options, columns=columns))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A writer for one micro-batch, or for its commit.

        Raises:
            ConfigurationError, InvalidEndpoint: the stream cannot be run like this.
        """
        options, columns = self._checked(schema, overwrite)
        return StreamWriter(Sink(options=options, columns=columns))

    def _checked(self, schema: StructType, overwrite: bool) -> tuple[Options, Columns]:
        if overwrite:
            raise ConfigurationError(
                "messages that were sent cannot be overwritten; use mode('append'), "
                "or outputMode('append') for a stream"
            )
        options = Options.parse(self.options)
        return options, checked_columns(schema, options)


@dataclass(frozen=True, kw_only=True)
class Sink:
    """What batches and streams have in common."""

    options: Options
    columns: Columns

    def send(
        self, batches: Iterable[pa.RecordBatch], write_id: str, delay_start_ms: int
    ) -> TaskReport:
        """Send a task's rows, and keep those that cannot be in a file of this attempt."""
        rows = Rows(columns=self.columns, options=self.options, delay_start_ms=delay_start_ms)
        task = task_of(rows)
        part = self._keep(task.send(batches), write_id)
        return TaskReport(write_id, task.counts, part)

    def _keep(self, rejected: Iterator[pa.RecordBatch], write_id: str) -> Part | None:
        first = next(rejected, None)
        if first is None:
            return None
        if self.options.rejects is None:
            for _ in rejected:
                pass
            return None
        context = _context()
        folder = RejectsFolder(self.options.rejects)
        part = folder.part(write_id, context.partitionId(), context.taskAttemptId())
        with folder.open(part, first.schema) as file:
            file.write_batch(first)
            for batch in rejected:
                file.write_batch(batch)
        return part

    def commit(self, reports: _Reports, summary: str | None) -> None:
        """Keep the rejects and the counts.

        Raises:
            NotAllSent: rows were rejected, and there is no rejects table.
        """
        counts = total(reports)
        lost = counts.rejected and self.options.rejects is None
        if summary is not None:
            write_summary(summary, reports, committed=not lost)
        if lost:
            raise NotAllSent(
                f"{counts.rejected} of {counts.sent + counts.rejected} rows could not be sent, the "
                f"others were: {counts.why()}. Correct them, or give option('rejects', folder) to "
                "keep them; run again, the job sends all rows again, with the same message ids"
            )
        if self.options.rejects is not None:
            done = [report for report in reports if report is not None]
            RejectsFolder(self.options.rejects).commit(
                [report.part for report in done if report.part is not None],
                [report.write_id for report in done],
            )

    def abort(self, reports: _Reports, write_ids: Iterable[str], summary: str | None) -> None:
        """Drop the rejects of a write that failed, and say what its finished tasks sent."""
        if summary is not None:
            write_summary(summary, reports, committed=False)
        if self.options.rejects is not None:
            RejectsFolder(self.options.rejects).drop(write_ids)


class BatchWriter(DataSourceArrowWriter):
    """One job."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._write_id = uuid.uuid4().hex
        self._delay_start_ms = planned_ms(sink.options, sender_client(sink.options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.send(iterator, self._write_id, self._delay_start_ms)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(_reports(messages), self._sink.options.summary)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(_reports(messages), [self._write_id], self._sink.options.summary)


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch. Run again, it replaces its rejects and its counts."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        batch_id = int(str(context.getLocalProperty(_BATCH_ID)))
        write_id = f"{context.getLocalProperty(_QUERY_ID)}-{batch_id}"
        delay_start_ms = 0
        if self._sink.columns.has(DELAY):
            delay_start_ms = micro_batch_ms(self._sink.options.checkpoint, batch_id)
        return self._sink.send(iterator, write_id, delay_start_ms)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.commit(_reports(messages), self._summary(batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        reports = _reports(messages)
        write_ids = [report.write_id for report in reports if report is not None]
        self._sink.abort(reports, write_ids, self._summary(batchId))

    def _summary(self, batch_id: int) -> str | None:
        folder = self._sink.options.summary
        return None if folder is None else f"{folder}/{batch_id}.json"


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "tasks of a write run in Spark's workers"
    return context


def _reports(messages: Sequence[WriterCommitMessage | None]) -> _Reports:
    return [message for message in messages if message is None or isinstance(message, TaskReport)]
