"""How many messages waited, over time."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sqsdelay.spark.report.messages import LOST, PENDING

POINTS: Final = 200
"""Of the curve, whatever the time it spans."""

_SCHEMA: Final = "at_ms bigint, waiting bigint"


def waiting(messages: DataFrame, *, as_of_ms: int) -> DataFrame:
    """Instants from the first sending on, and how many messages had been sent by then and had not
    arrived."""
    spark = messages.sparkSession
    (first_ms,) = messages.agg(F.min("sent_ms")).collect()[0]
    if first_ms is None:
        return spark.createDataFrame([], _SCHEMA)
    step = max(1, -(-(as_of_ms - first_ms) // POINTS))

    def place(ms: Column) -> Column:
        return F.ceil((ms - first_ms) / step).cast("int")

    places = messages.where("sent_ms IS NOT NULL").select(
        place(F.col("sent_ms")).alias("began"), place(_ended_ms(as_of_ms)).alias("ended")
    )
    changes = Counter[int | None]()
    for row in places.groupBy("began", "ended").count().collect():
        changes[row.began] += row["count"]
        changes[row.ended] -= row["count"]
    last = -(-(as_of_ms - first_ms) // step)
    counts = accumulate(changes[place] for place in range(last + 1))
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
