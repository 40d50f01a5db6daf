"""The Spark data source ``sqsdelay``: rows of a table or a stream become delayed messages.

Spark makes a writer on the driver, sends copies of it to the tasks, and commits with yet another
copy in a process of its own. A stream gets a new writer for each micro-batch, and one more for its
commit; what they must agree on travels with the tasks' reports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from sqsdelay.core.delay import SystemClock
from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.sink.job import Sink
from sqsdelay.spark.sink.options import Options, checked_columns
from sqsdelay.spark.sink.run import TaskReport, micro_batch_ms, run_of, this_attempt
from sqsdelay.stores.s3.layout import digest

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"
"""Local properties that Spark sets for the tasks of a micro-batch."""


class SqsDelayDataSource(datasource.DataSource):
    """``df.write.format("sqsdelay")``; see docs/fields.md for columns and options."""

    @classmethod
    def name(cls) -> str:
        return "sqsdelay"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A writer for one job. Raises ConfigurationError, InvalidEndpoint, QueueMissing, QueueUnavailable:
        nothing was sent."""
        return BatchWriter(self._checked(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """A writer for one micro-batch, or for its commit. Raises ConfigurationError, InvalidEndpoint."""
        return StreamWriter(self._checked(schema, overwrite))

    def _checked(self, schema: StructType, overwrite: bool) -> Sink:
        if overwrite:
            raise ConfigurationError(
                "messages that were sent cannot be overwritten; use mode('append'), "
                "or outputMode('append') for a stream"
            )
        options = Options.parse(self.options)
        if options.plan and options.summary is None:
            raise ConfigurationError(
                "a plan is written to the summary: give option summary (a file)"
            )
        return Sink(options=options, columns=checked_columns(schema, options))


class Report(TaskReport, datasource.WriterCommitMessage):
    """As Spark brings it to the driver."""


class BatchWriter(datasource.DataSourceArrowWriter):
    """One job."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._write_id = uuid4().hex
        self._run = sink.begin()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        attempt = this_attempt(self._write_id, self._run)
        return Report(**vars(self._sink.send(iterator, attempt, self._run)))

    def commit(self, messages: list[Any]) -> None:
        self._sink.commit(messages)

    def abort(self, messages: list[Any]) -> None:
        self._sink.abort(messages, [self._write_id])


class StreamWriter(datasource.DataSourceStreamArrowWriter):
    """One micro-batch. Run again, it replaces its rejects and its counts."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        # Made once for a micro-batch, before its tasks: they are to agree on it.
        self._run = run_of(sink.options, SystemClock().now_ms())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        current = TaskContext.get()
        assert current is not None, "tasks of a write run in Spark's workers"
        batch_id = int(str(current.getLocalProperty(_BATCH_ID)))
        write_id = f"{current.getLocalProperty(_QUERY_ID)}-{batch_id}"
        sink, start_ms = self._of(batch_id), 0
        if sink.columns.has("delay_seconds"):
            start_ms = micro_batch_ms(sink.options.checkpoint, batch_id)
        job = digest(json.dumps(("stream", write_id)))  # Of its query, and its number.
        run = replace(self._run, delay_start_ms=start_ms, job=job)
        return Report(**vars(sink.send(iterator, this_attempt(write_id, run), run)))

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._of(batchId).commit(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        write_ids = {report.attempt.write_id for report in messages if report is not None}
        self._of(batchId).abort(messages, write_ids)

    def _of(self, batch_id: int) -> Sink:
        """The sink of one micro-batch, whose receipts and summary are its own."""
        options = self._sink.options
        summary = None if options.summary is None else f"{options.summary}/{batch_id}.json"
        options = replace(options, batch=batch_id, summary=summary, parts=1)
        return replace(self._sink, options=options, stream=True)
