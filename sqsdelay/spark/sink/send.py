"""A whole table: read from files, looked at, shared out among tasks and sent, on every Spark from 3.5 on."""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyspark.sql
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sqsdelay.errors import ConfigurationError, MissingExtra, SqsDelayError
from sqsdelay.spark.session import failure, hadoop_uri
from sqsdelay.spark.sink.job import Sink
from sqsdelay.spark.sink.options import TEXT, TYPES, Columns, Options, checked_columns
from sqsdelay.spark.sink.run import Run, TaskReport, run_of, this_attempt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def read_table(spark: SparkSession, path: str, file_format: str) -> DataFrame:
    """The rows of a file, a folder or a glob: Parquet, CSV with a header and doubled quotes (RFC 4180), or
    JSON lines, read once more beforehand for the names of their fields. A line that cannot be read is a
    row with the whole line in ``_corrupt_record``. Raises PySparkException, ConfigurationError."""
    path = hadoop_uri(spark, path, "INPUT")
    if file_format == "parquet":
        rows = spark.read.parquet(path)
        plain = [n for n, kind in rows.dtypes if n.lower() == "due_at" and kind == "timestamp_ntz"]
        return rows.withColumns({name: rows[name].cast("timestamp") for name in plain})
    reader = spark.read.option("columnNameOfCorruptRecord", "_corrupt_record")
    if file_format == "jsonl":
        names = reader.option("primitivesAsString", True).json(path).columns
        return reader.schema(_schema(names)).json(path)
    csv = reader.options(header=True, multiLine=True, escape='"')
    names = csv.csv(path).columns
    # With enforceSchema Spark would go by the columns' order, not by their names.
    return csv.option("enforceSchema", False).schema(_schema(names)).csv(path)


def _schema(names: list[str]) -> str:
    kinds = {name: TYPES.get(name.lower(), TEXT)[0][-1] for name in [*names, "_corrupt_record"]}
    # An instant, whatever spark.sql.timestampType says.
    told = {name: kind.replace("timestamp", "timestamp_ltz") for name, kind in kinds.items()}
    return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in told.items())


STAGED_PER_TASK: Final = 250_000
_WORTH_A_TASK: Final = 50_000

ROWS_PER_TASK: Final = 20_000
"""A task that fails sends few rows again, and a bar of tasks moves; starting one costs little beside."""


def check_unique(rows: DataFrame, columns: Columns) -> None:
    """Read the ids of the whole table. Raises ConfigurationError."""
    # What tells messages apart: a row's own id, else its key.
    names = [name for name in ("message_id", columns.key) if name is not None and columns.has(name)]
    identity = F.coalesce(*(spelled(columns, name).cast("string") for name in names)).alias("id")
    counted = rows.select(identity).where("id is not null").groupBy("id").count()
    figures = "count(1) AS ids", "sum(count) AS rows", "max_by(id, count) AS worst"
    repeated = counted.where("count > 1").agg(*map(F.expr, (*figures, "max(count) AS most")))
    (found,) = repeated.collect()
    if found.ids:
        name = "message_id" if columns.key is None else columns.key
        raise ConfigurationError(
            f"{found.ids:,} ids occur more than once, in {found.rows:,} rows ({name} {found.worst!r} in "
            f"{found.most:,}): nothing was sent. Receivers would take such rows for copies; name a key "
            "that is unique, or drop the copies: dropDuplicates"
        )


def shared_out(rows: DataFrame, columns: Columns, options: Options) -> tuple[DataFrame, Options]:
    """The rows in tasks of about `ROWS_PER_TASK`, all rows of one id in the same task; and the options, told
    how many these are. Rows that are staged in an S3 store are shared out among fewer tasks: each writes an
    object for every slot it meets, and few large ones are wanted. Their number is a power of two, so that of
    a job that is run again, on more rows or fewer, each task has the ids of a few of the earlier tasks."""
    tasks = options.tasks or 1  # That run at a time: there are hardly fewer.
    run, is_far = run_of(options, time.time_ns() // 1_000_000), F.lit(False)
    if options.stages and columns.has("delay_seconds"):
        is_far = spelled(columns, "delay_seconds") > (run.after_ms - run.began_ms) / 1000
    elif options.stages:
        is_far = spelled(columns, "due_at").cast("double") > run.after_ms / 1000
    everything, far = map(int, rows.agg(F.count(F.lit(1)), F.count_if(is_far)).collect()[0])
    wanted = max(1, -(-far // STAGED_PER_TASK), min(tasks, -(-far // _WORTH_A_TASK)))
    if everything > far or not options.stages:
        wanted = max(wanted, tasks, -(-(everything - far) // ROWS_PER_TASK))
    parts = 2 ** round(math.log2(wanted))
    return rows.repartition(parts, message_id(columns, options)), replace(options, parts=parts)


def spelled(columns: Columns, name: str) -> Column:
    """One of our columns, as the table spells it."""
    theirs = {ours: theirs for theirs, ours in columns.spelled.items()}
    return F.col(f"`{theirs.get(name, name)}`")


def message_id(columns: Columns, options: Options) -> Column:
    """As `sqsdelay.spark.sink.rows.derived_id` makes it, where the row has none of its own."""
    own = F.lit(None).cast("string")
    if columns.has("message_id"):
        own = spelled(columns, "message_id")
    if columns.key is None:
        return own
    key = spelled(columns, columns.key).cast("string")
    return F.coalesce(own, F.sha2(F.concat(F.lit(f"{options.job}\0"), key), 256))


def send(rows: DataFrame, *, unique: bool = False, **options: Any) -> dict[str, Any]:
    """Send each row of a table as a delayed message.

    It needs no Python data source: Spark runs it as ``mapInArrow``, and what its tasks did comes
    back to this process, which keeps rejects and counts.

    Args:
        rows: the columns of the data source ``sqsdelay``. A stream's micro-batch within
            ``foreachBatch`` is one, too: give its number as ``batch``.
        unique: read all ids first, and refuse the table if one comes more than once.
        options: the data source's, see docs/fields.md.

    Returns:
        The counts, as the option ``summary`` keeps them.

    Raises:
        ConfigurationError, InvalidEndpoint, QueueMissing, QueueUnavailable, StoreMissing: nothing was sent.
        SqsDelayError: a task has failed, in one line why; tasks before it may have sent theirs.
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
    shared, sink = _checked(rows, unique, options)
    on_client = getattr(rows.sparkSession, "_sc", None) is None
    run, write_id = sink.begin(on_client=on_client), uuid4().hex
    done = shared.mapInArrow(partial(_task, sink, write_id, run), "report binary")
    try:
        reports: list[TaskReport | None] = [pickle.loads(row.report) for row in done.collect()]
    except BaseException as error:
        sink.abort([], [write_id])
        if isinstance(error, PySparkException | Py4JJavaError):
            told = failure(error)
            # Of what a worker has raised itself, the one line says all.
            raise told from (error if type(told) is SqsDelayError else None)
        raise
    return sink.commit(reports)


def _task(
    sink: Sink, write_id: str, run: Run, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a worker does: a row for what became of its own."""
    report = sink.send(batches, this_attempt(write_id, run), run)
    yield pa.RecordBatch.from_pydict({"report": pa.array([pickle.dumps(report)], pa.binary())})


def _checked(rows: DataFrame, unique: bool, given: Mapping[str, Any]) -> tuple[DataFrame, Sink]:
    """The rows, shared out among tasks, and what is to be done with them; raises ConfigurationError."""
    context = getattr(rows.sparkSession, "_sc", None)
    # On Spark Connect it cannot be known how many tasks run at a time.
    tasks = {} if context is None else {"tasks": int(context.defaultParallelism)}
    options = Options.parse(tasks | dict(given))
    columns = checked_columns(rows.schema, options)
    if unique:
        check_unique(rows, columns)
    shared, options = shared_out(rows, columns, options)
    return shared, Sink(options=options, columns=columns)


def save(rows: DataFrame, *, unique: bool = False, **options: Any) -> dict[str, Any]:
    """As `send`, by the data source where this Spark has it; ``options`` are without ``summary``. Raises
    PySparkException, Py4JJavaError."""
    # From 4.1 on Spark hands Arrow batches to Python data sources.
    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    if getattr(rows.sparkSession, "_sc", None) is None or version < (4, 1):
        return send(rows, unique=unique, **options)
    from sqsdelay.spark.sink.data_source import SqsDelayDataSource

    rows.sparkSession.dataSource.register(SqsDelayDataSource)
    rows, sink = _checked(rows, unique, options)
    with TemporaryDirectory(prefix="sqsdelay-") as folder:
        # Spark commits in a process of its own, on this machine.
        summary = Path(folder) / "summary.json"
        options |= {"tasks": sink.options.tasks, "parts": sink.options.parts}
        texts = {name: str(value) for name, value in options.items() if value is not None}
        rows.write.format("sqsdelay").options(**texts, summary=str(summary)).mode("append").save()
        return dict(json.loads(summary.read_text()))
