"""How many messages waited, over time."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sqsdelay.spark.messages import PENDING, LOST

POINTS: Final = 200
"""Of the curve, whatever the time it spans."""

SCHEMA: Final = "at_ms bigint, waiting bigint"


def waiting(messages: DataFrame, *, as_of_ms: int) -> list[tuple[int, int]]:
    """Instants and how many messages were sent by then and had not arrived."""
    sent = messages.where(F.col("sent_ms") <= as_of_ms)
    first_ms = sent.agg(F.min("sent_ms")).first()[0]
    if first_ms is None:
        return []
    step = max(1, -(-(as_of_ms - first_ms) // POINTS))

    def place(ms: Column) -> Column:
        return F.ceil((ms - F.lit(first_ms)) / step).cast("int")

    changes = [0] * (POINTS + 1)
    steps = F.array(
        F.struct(place(F.col("sent_ms")).alias("place"), F.lit(1).alias("change")),
        F.struct(place(_ended_ms(as_of_ms)).alias("place"), F.lit(-1).alias("change")),
    )
    for row in sent.select(F.inline(steps)).where("place IS NOT NULL").groupBy("place").sum("change").collect():
        changes[max(0, row[0])] += row[1]
    return [(first_ms + place * step, count) for place, count in enumerate(accumulate(changes)) if first_ms + (place-1) * step < as_of_ms]


def _ended_ms(as_of_ms: int) -> Column:
    """When a message stopped waiting; null while it does."""
    ended = F.coalesce(
        F.col("received_ms"), F.col("rejected_ms"), F.col("cancelled_ms"), F.col("at_destination_ms")
    )
    over = ~F.col("status").isin(PENDING, LOST)
    return F.when(over & (ended <= as_of_ms), F.greatest(ended, F.col("sent_ms")))
