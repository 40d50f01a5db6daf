"""How many messages waited, over time."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sqsdelay.spark.report.messages import LOST, PENDING

POINTS: Final = 200
"""Of the curve, whatever the time it spans."""

_SCHEMA: Final = "at_ms bigint, waiting bigint"


def waiting(messages: DataFrame, *, first_ms: int | None, as_of_ms: int) -> DataFrame:
    """Instants from the first sending on, and how many messages had been sent by then and had not
    arrived."""
    spark = messages.sparkSession
    if first_ms is None:
        return spark.createDataFrame([], _SCHEMA)
    step = max(1, -(-(as_of_ms - first_ms) // POINTS))

    def place(ms: Column) -> Column:
        return F.ceil((ms - first_ms) / step).cast("int")

    steps = F.array(
        F.struct(place(F.col("sent_ms")).alias("place"), F.lit(1).alias("change")),
        F.struct(place(_ended_ms(as_of_ms)).alias("place"), F.lit(-1).alias("change")),
    )
    moved = messages.where("sent_ms IS NOT NULL").select(F.inline(steps))
    summed = moved.where("place IS NOT NULL").groupBy("place").agg(F.sum("change").alias("change"))
    changes = {row.place: row.change for row in summed.collect()}
    last = -(-(as_of_ms - first_ms) // step)
    counts = accumulate(changes.get(place, 0) for place in range(last + 1))
    points = [(min(first_ms + n * step, as_of_ms), count) for n, count in enumerate(counts)]
    return spark.createDataFrame(points, _SCHEMA)


def _ended_ms(as_of_ms: int) -> Column:
    """When a message stopped waiting; null while it does."""
    ended = F.coalesce(
        F.col("received_ms"),
        F.col("rejected_ms"),
        F.col("cancelled_ms"),
        F.least(F.col("at_destination_ms"), F.lit(as_of_ms)),
    )
    over = ~F.col("status").isin(PENDING, LOST)
    return F.when(over, F.greatest(ended, F.col("sent_ms")))
