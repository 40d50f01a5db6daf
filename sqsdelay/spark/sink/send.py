"""One call that sends a table, on every Spark from 3.5 on, and on Spark Connect."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sqsdelay.errors import ConfigurationError, MissingExtra
from sqsdelay.spark.sink.attempt import this_attempt
from sqsdelay.spark.sink.columns import checked_columns
from sqsdelay.spark.sink.job import Sink, Times
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.summary import TaskReport, total
from sqsdelay.spark.sink.table import check_unique, shared_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REPORT: Final = "report binary"


def send(rows: DataFrame, *, unique: bool = False, **options: Any) -> dict[str, Any]:
    """Send each row of a table as a delayed message.

    It needs no Python data source: Spark runs it as ``mapInArrow``, and what its tasks did comes
    back to this process, which keeps rejects and counts.

    Args:
        rows: the columns of the data source ``sqsdelay``. A stream's micro-batch within
            ``foreachBatch`` is one, too: give its number as ``batch``.
        unique: read all ids first, and refuse the table if one comes more than once.
        options: the data source's, see docs/spark.md.

    Returns:
        The counts, as the option ``summary`` keeps them.

    Raises:
        ConfigurationError, InvalidEndpoint, QueueMissing, QueueUnavailable: nothing was sent.
        NotAllSent: rows were rejected, and there is no rejects table.
        MissingExtra: pandas is missing, which Spark requires for ``mapInArrow``.
    """
    if rows.isStreaming:
        raise ConfigurationError(
            "send() takes a table, and this is a stream; send its micro-batches: rows.writeStream"
            ".foreachBatch(lambda batch, number: send(batch, batch=number, job='…', …))"
        )
    if find_spec("pandas") is None:
        raise MissingExtra(
            "Spark's mapInArrow requires pandas: pip install 'pandas<3'; or write the table with "
            "format('sqsdelay'), on Spark 4.1 or newer"
        )
    at_a_time = _at_a_time(rows)
    if "rate" in options and at_a_time is not None:
        options = {"tasks": at_a_time} | options
    parsed = Options.parse({name: str(value) for name, value in options.items()})
    columns = checked_columns(rows.schema, parsed)
    sink = Sink(options=parsed, columns=columns)
    if unique:
        check_unique(rows, columns)
    write_id = uuid.uuid4().hex if parsed.batch is None else f"{parsed.job}-{parsed.batch}"
    task = partial(_task, sink, write_id, sink.begin())
    shared = shared_out(rows, columns, tasks=parsed.tasks or at_a_time or 1, options=parsed)
    return _sent(shared, task, sink, write_id)


def _sent(rows: DataFrame, task: Any, sink: Sink, write_id: str) -> dict[str, Any]:
    summary = sink.options.summary
    try:
        found = [pickle.loads(row.report) for row in rows.mapInArrow(task, _REPORT).collect()]
    except BaseException:
        sink.abort([], [write_id], summary)
        raise
    reports: list[TaskReport | None] = list(found)
    sink.commit(reports, summary)
    return sink.told(total(reports))


def _task(
    sink: Sink, write_id: str, times: Times, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a worker does: a row for what became of its own."""
    report = sink.send(batches, this_attempt(write_id, sink.options.batch), times)
    yield pa.RecordBatch.from_pydict({"report": pa.array([pickle.dumps(report)], pa.binary())})


def _at_a_time(rows: DataFrame) -> int | None:
    """How many tasks run at a time; None where it cannot be known, on Spark Connect."""
    context = getattr(rows.sparkSession, "_sc", None)
    return None if context is None else int(context.defaultParallelism)
