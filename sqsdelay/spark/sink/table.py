"""A whole table before it is sent: its ids looked at, and its rows shared out among tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.sink.columns import MESSAGE_ID, Columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
            f"{found.ids:,} ids come more than once, in {found.rows:,} rows ({name} {found.worst!r} in "
            f"{found.most:,}): nothing was sent. Receivers would take such rows for copies; name a key "
            "that is unique, or drop the copies: dropDuplicates"
        )


def shared_out(rows: DataFrame, columns: Columns, *, tasks: int) -> DataFrame:
    """The rows in tasks of about `ROWS_PER_TASK`, all rows of one id in the same task.

    Args:
        tasks: how many run at a time: there are not fewer.
    """
    partitions = max(tasks, -(-rows.count() // ROWS_PER_TASK))
    return rows.repartition(partitions, _identity(columns))


def _identity(columns: Columns) -> Column:
    """What tells messages apart, as text: a row's own id, else its key."""
    spelled = {ours: name for name, ours in columns.spelled.items()}
    names = [MESSAGE_ID] if columns.has(MESSAGE_ID) else []
    names += [] if columns.key is None else [columns.key]
    return F.coalesce(*(F.col(f"`{spelled.get(name, name)}`").cast("string") for name in names))
