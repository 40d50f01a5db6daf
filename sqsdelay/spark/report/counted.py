"""Messages counted by endpoint, hour and band of delays: what the tables add up.

The messages are read twice, and not once for each table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as F

from sqsdelay.spark.report.messages import ARRIVED, CANCELLED, STATUSES

PERCENTILES: Final = {"p50_ms": 50, "p90_ms": 90, "p99_ms": 99, "max_ms": 100}
WITHIN_MS: Final = {"within_1s": 1000, "within_60s": 60_000}
"""The service levels shown: how soon after its due time a message should arrive."""
HOUR_MS: Final = 3_600_000
SUMMED: Final = ("parked", "hops", "fifo_shares", "standard_shares", "invocation_shares")

ENDPOINT: Final = "endpoint"
HOUR: Final = "hour"
BAND: Final = "band"
MOMENT: Final = "moment"

_LATE: Final = "late_ms"
_WAITED: Final = "waited_ms"
_VALUES: Final = {name: (_LATE, percent) for name, percent in PERCENTILES.items()} | {
    f"waited_{name}": (_WAITED, percent)
    for name, percent in PERCENTILES.items()
    if name != "p90_ms"
}
_STATUSES: Final = {status.replace("-", "_"): status for status in STATUSES}
_NUMBERS: Final = ("messages", *_STATUSES, "duplicated", "early")
ARRIVALS: Final = (*_NUMBERS, *WITHIN_MS, *_VALUES)
"""The columns that tables have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Messages by endpoint, band of delays, and hour from which they are late.

    ``counts`` has a row of sums for each, and for those that are late ``by_now``. ``spread`` has one for each
    ``value`` of each ``figure`` of theirs, lateness and wait, and the ``number`` of messages that have it.
    """

    counts: DataFrame
    spread: DataFrame

    def hours(self) -> int:
        """From the first hour from which messages are late until now."""
        by_now = self.counts.where("by_now")
        (span,) = by_now.agg(F.max("hour") - F.min("hour")).collect()
        return int(span[0] or 0)

    def arrivals(self, moment_hours: int) -> DataFrame:
        """How many messages there are of each status, how late those that arrived did, the share of
        those that should have arrived by now that did so soon enough, and `SUMMED`.

        By ``table``: by `ENDPOINT`, endpoint and `HOUR`, endpoint and `BAND`, whose null endpoints are all
        endpoints; and by `MOMENT`, of messages that are late by now: so many hours, counted by ``hour``.
        """
        by = _by_table(moment_hours)
        sums = (
            self.counts.select("*", by).where("key.table IS NOT NULL").groupBy("key").agg(*_sums())
        )
        # Neither has the other's columns: the maximum of each is the one that is there.
        both = sums.unionByName(self._percentiles(by), allowMissingColumns=True)
        names = (*ARRIVALS, *SUMMED)
        found = both.groupBy("key").agg(*[F.max(name).alias(name) for name in names])
        return found.select("key.*", *names)

    def _percentiles(self, by: Column) -> DataFrame:
        """Each one that some message had: the least that so many of all do not exceed."""
        placed = self.spread.select("*", by).where("key.table IS NOT NULL")
        found = placed.groupBy("key", "figure", "value").agg(F.sum("number").alias("number"))
        of_figure = Window.partitionBy("key", "figure")
        upwards = of_figure.orderBy("value").rowsBetween(Window.unboundedPreceding, 0)
        reckoned = found.select(
            "*",
            F.sum("number").over(of_figure).alias("all"),
            F.sum("number").over(upwards).alias("upto"),
        )

        def reached(figure: str, percent: int) -> Column:
            # In whole numbers: a product of fractions may be a little more than it should.
            rank = F.expr(f"(`all` * {percent} + 99) div 100")
            at = F.col("upto").between(rank, rank + F.col("number") - 1)
            return (F.col("figure") == figure) & at

        values = {
            name: F.max(F.when(reached(*of), F.col("value"))).alias(name)
            for name, of in _VALUES.items()
        }
        return reckoned.groupBy("key").agg(*values.values())


def _by_table(moment_hours: int) -> Column:
    """A row for each table that a message counts in."""
    nothing = F.lit(None)
    moment = F.when(F.col("by_now"), F.floor(F.col("hour") / moment_hours))

    def key(table: str, endpoint: Column, band: Column = nothing, hour: Column = nothing) -> Column:
        known = {
            "table": F.when(hour.isNotNull(), table) if hour is not nothing else F.lit(table),
            "endpoint": endpoint.cast("string"),
            "band": band.cast("int"),
            "hour": hour.cast("bigint"),
        }
        return F.struct(*[column.alias(name) for name, column in known.items()])

    keys = [key(MOMENT, nothing, hour=moment)]
    for endpoint in (F.col("endpoint"), nothing):
        keys.append(key(ENDPOINT, endpoint))
        keys.append(key(HOUR, endpoint, hour=F.col("hour")))
        keys.append(key(BAND, endpoint, band=F.col("band")))
    return F.explode(F.array(*keys)).alias("key")


def counts(messages: DataFrame, *, as_of_ms: int) -> DataFrame:
    """`Counted.counts` of messages."""
    late = F.col(_LATE)
    conditions = {name: F.col("status") == status for name, status in _STATUSES.items()}
    conditions |= {"duplicated": F.col("duplicated"), "early": F.col("early")}
    # Early, lost, rejected and overdue messages are not within; what was cancelled is owed to nobody.
    owed = ~F.col("status").isin(CANCELLED, *ARRIVED)
    for name, most_ms in WITHIN_MS.items():
        conditions[name] = late.between(0, most_ms)
        missed = owed & (F.col("late_from_ms") + most_ms < as_of_ms)
        conditions[f"owed_{name}"] = late.isNotNull() | missed
    return _by(messages, as_of_ms).agg(
        F.count(F.lit(1)).alias("messages"),
        *[F.count_if(condition).alias(name) for name, condition in conditions.items()],
        F.count("parked_ms").alias("parked"),
        *[F.sum(name).alias(name) for name in SUMMED if name != "parked"],
    )


def spread(messages: DataFrame, *, as_of_ms: int) -> DataFrame:
    """`Counted.spread` of messages."""
    figures = [
        F.struct(F.lit(name).alias("figure"), F.col(name).alias("value"))
        for name in (_LATE, _WAITED)
    ]
    valued = messages.select("endpoint", "band", "late_from_ms", F.inline(F.array(*figures)))
    known = valued.where("value IS NOT NULL")
    return _by(known, as_of_ms, "figure", "value").agg(F.count(F.lit(1)).alias("number"))


def _by(messages: DataFrame, as_of_ms: int, *more: str) -> GroupedData:
    late_from = F.col("late_from_ms")
    hour = F.floor(late_from / HOUR_MS).alias("hour")
    by_now = F.coalesce(late_from <= as_of_ms, F.lit(False)).alias("by_now")
    return messages.groupBy("endpoint", "band", hour, by_now, *more)


def _sums() -> list[Column]:
    shares = {name: F.sum(name) / F.nullif(F.sum(f"owed_{name}"), F.lit(0)) for name in WITHIN_MS}
    return [
        *[F.sum(name).alias(name) for name in (*_NUMBERS, *SUMMED)],
        *[share.alias(name) for name, share in shares.items()],
    ]
