"""A whole table before it is sent: its ids looked at, and its rows shared out among tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.sink.columns import DELAY, DUE_AT, MESSAGE_ID, Columns
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.run import Run, run_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STAGED_PER_TASK: Final = 250_000
_WORTH_A_TASK: Final = 50_000

ROWS_PER_TASK: Final = 20_000
"""A task that fails sends few rows again, and a bar of tasks moves; starting one costs little beside."""


def check_unique(rows: DataFrame, columns: Columns) -> None:
    """Read the ids of the whole table.

    Raises:
        ConfigurationError: some come more than once; with how many, and an example.
    """
    identity = _identity(columns).alias("id")
    counted = rows.select(identity).where("id is not null").groupBy("id").count()
    repeated = counted.where("count > 1")
    (found,) = repeated.agg(
        F.count(F.lit(1)).alias("ids"),
        F.sum("count").alias("rows"),
        F.max_by("id", "count").alias("worst"),
        F.max("count").alias("most"),
    ).collect()
    if found.ids:
        name = MESSAGE_ID if columns.key is None else columns.key
        raise ConfigurationError(
            f"{found.ids:,} ids occur more than once, in {found.rows:,} rows ({name} {found.worst!r} in "
            f"{found.most:,}): nothing was sent. Receivers would take such rows for copies; name a key "
            "that is unique, or drop the copies: dropDuplicates"
        )


def shared_out(
    rows: DataFrame, columns: Columns, *, tasks: int, options: Options | None = None
) -> DataFrame:
    """The rows in tasks of about `ROWS_PER_TASK`, all rows of one id in the same task.

    Rows that are staged in an S3 store are shared out among fewer tasks: each writes an object for every
    slot it meets, and few large ones are wanted.

    Args:
        tasks: how many run at a time: there are not fewer.
        options: of the write.
    """
    run = None if options is None else run_of(options, time.time_ns() // 1_000_000)
    if run is None:
        return rows.repartition(_share(rows.count(), tasks), _identity(columns))
    found = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(F.when(_is_far(rows, columns, run), F.lit(1))).alias("far"),
    ).collect()[0]
    near = _share(found.rows - found.far, tasks) if found.rows > found.far else 1
    far = max(-(-found.far // STAGED_PER_TASK), min(tasks, -(-found.far // _WORTH_A_TASK)))
    return rows.repartition(max(near, far), _identity(columns))


def _share(rows: int, tasks: int) -> int:
    return max(tasks, -(-rows // ROWS_PER_TASK))


def _is_far(rows: DataFrame, columns: Columns, run: Run) -> Column:
    spelled = {ours: name for name, ours in columns.spelled.items()}
    if columns.has(DELAY):
        delays = rows[f"`{spelled.get(DELAY, DELAY)}`"]
        return delays > (run.after_ms - run.now_ms) / 1000
    return rows[f"`{spelled.get(DUE_AT, DUE_AT)}`"].cast("double") > run.after_ms / 1000


def _identity(columns: Columns) -> Column:
    """What tells messages apart, as text: a row's own id, else its key."""
    spelled = {ours: name for name, ours in columns.spelled.items()}
    names = [MESSAGE_ID] if columns.has(MESSAGE_ID) else []
    names += [] if columns.key is None else [columns.key]
    return F.coalesce(*(F.col(f"`{spelled.get(name, name)}`").cast("string") for name in names))
