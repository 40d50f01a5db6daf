"""The tables of a report: messages counted by endpoint, hour and band of delays, and what that adds up to.

The messages are read twice, and not once for each table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate
from typing import Final

from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as F

from sqsdelay.cost import Prices, Workload, bill
from sqsdelay.cost.strategies import OF_STORE
from sqsdelay.cost.workload import BANDS, DELAY_ATTRIBUTES_BYTES, Line, invocation_cost
from sqsdelay.limits import MAX_MESSAGE_BYTES
from sqsdelay.spark.report.messages import ARRIVED, CANCELLED, LOST, OPEN, PENDING, STATUSES
from sqsdelay.spark.report.requests import SHARES

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
    # Early by less is as good as late by less. Lost, rejected and overdue messages are not within; what
    # was cancelled is owed to nobody.
    owed = ~F.col("status").isin(CANCELLED, *ARRIVED)
    for name, most_ms in WITHIN_MS.items():
        conditions[name] = late.between(-most_ms, most_ms)
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


_MONEY: Final = "decimal(38,15)"


def summary(arrivals: DataFrame) -> DataFrame:
    """A row for each endpoint, and one for all, whose ``endpoint`` is null."""
    return _of(arrivals, ENDPOINT).select(
        "endpoint",
        *ARRIVALS,
        "hops",
        _whole(F.col("fifo_shares")).alias("fifo_requests"),
        _whole(F.col("standard_shares")).alias("standard_requests"),
    )


def lateness(arrivals: DataFrame) -> DataFrame:
    """The arrivals of each endpoint, and of all (a null), by the hour (UTC) from which they are late."""
    hour = F.timestamp_millis(F.col("hour") * HOUR_MS).alias("hour")
    return _of(arrivals, HOUR).select("endpoint", hour, *ARRIVALS)


def cohorts(arrivals: DataFrame) -> DataFrame:
    """The arrivals of each endpoint, and of all (a null), by band of delays."""
    return _of(arrivals, BAND).select("endpoint", "band", _delay(), *ARRIVALS)


def _of(arrivals: DataFrame, table: str) -> DataFrame:
    by_key = [F.col("endpoint").asc_nulls_first(), F.col("hour"), F.col("band")]
    return arrivals.where(F.col("table") == table).coalesce(1).sortWithinPartitions(*by_key)


def _delay() -> Column:
    return F.get(F.lit([band.name for band in BANDS]), F.col("band")).alias("delay")


def last_seen(messages: DataFrame) -> DataFrame:
    """Where the messages that have not arrived were seen last."""
    key = ("endpoint", "status", "last_seen")
    not_arrived = messages.where(F.col("status").isin(*OPEN)).groupBy(*key)
    return not_arrived.agg(
        F.count(F.lit(1)).alias("messages"),
        F.min("due_ms").alias("first_due_ms"),
        F.max("due_ms").alias("last_due_ms"),
        F.max("last_event_ms").alias("last_event_ms"),
    ).sort(*key)


NAMES: Final = {
    "dynamodb": "DynamoDB",
    "s3": "S3",
    "scheduler": "EventBridge",
    "postgresql": "PostgreSQL",
    "sqlite": "SQLite",
}
"""Of the stores, by the word that their URLs begin with."""


_LEAST_PARKED_SECONDS: Final = 7200


def _lines(store: str, load: Workload, prices: Prices) -> Sequence[Line]:
    """What keeping messages costs, for each of them."""
    # It was parked, whatever a deployment's setting is.
    least = max(load.delay_seconds, _LEAST_PARKED_SECONDS)
    load = replace(load, delay_seconds=least, park_after_seconds=0)
    lines = bill(OF_STORE[store], load, prices).lines if store in OF_STORE else ()
    return [line for line in lines if not line.fixed and line.what.startswith(NAMES[store])]


def cost(
    messages: DataFrame, arrivals: DataFrame, prices: Prices, *, as_of_ms: int, store: str
) -> DataFrame:
    """What the requests cost per endpoint and band of delays, in the currency of ``prices``.

    ``sqs_cost`` is for the requests the ledger shows. ``lambda_cost`` is what the consumer's and the
    dispatcher's batches cost if they ran on Lambda, ``store_cost`` what parked messages cost in
    ``store``.
    """
    key = ("endpoint", "band")
    sums = arrivals.where((F.col("table") == BAND) & F.col("endpoint").isNotNull())
    stored = _store_costs(messages, prices, as_of_ms=as_of_ms, store=store)
    both = sums.join(
        stored, [F.equal_null(sums[name], stored[f"stored_{name}"]) for name in key], "left"
    )
    fifo, standard, invoked = (
        _whole(F.col(f"{name}_shares")) for name in ("fifo", "standard", "invocation")
    )
    invocation = invocation_cost(prices)
    sqs = fifo * float(prices.sqs_fifo_request) + standard * float(prices.sqs_standard_request)
    return both.select(
        *key,
        _delay(),
        "messages",
        "hops",
        "parked",
        fifo.alias("fifo_requests"),
        standard.alias("standard_requests"),
        invoked.alias("invocations"),
        sqs.alias("sqs_cost"),
        (invoked * float(invocation)).alias("lambda_cost"),
        F.coalesce(F.col("store_cost").cast("double"), F.lit(0.0)).alias("store_cost"),
    ).sort(*key)


def _store_costs(messages: DataFrame, prices: Prices, *, as_of_ms: int, store: str) -> DataFrame:
    """By the cost model, which is asked once for each size: it is linear in the time parked."""

    def amount(parked: int, size: int | None, seconds: int) -> Decimal:
        most = MAX_MESSAGE_BYTES - DELAY_ATTRIBUTES_BYTES
        load = Workload(
            delay_seconds=seconds, messages=parked, message_bytes=min(max(1, size or 1), most)
        )
        total = sum((line.amount for line in _lines(store, load, prices)), Fraction(0))
        return round(Decimal(total.numerator) / Decimal(total.denominator), 15)

    until = F.least(F.coalesce(F.col("released_ms"), F.lit(as_of_ms)), F.lit(as_of_ms))
    parked_ms = F.greatest(until - F.col("parked_ms"), F.lit(0))
    sized = messages.where("parked_ms IS NOT NULL").groupBy("endpoint", "band", "size")
    groups = sized.agg(
        F.count(F.lit(1)).alias("parked"),
        F.floor(F.sum(parked_ms) / F.count(F.lit(1)) / 1000).cast("bigint").alias("seconds"),
    )
    of_group = F.udf(amount, _MONEY, useArrow=False)("parked", "size", "seconds")
    return groups.groupBy(
        F.col("endpoint").alias("stored_endpoint"), F.col("band").alias("stored_band")
    ).agg(F.sum(of_group).alias("store_cost"))


def _whole(shares: Column) -> Column:
    return shares / F.lit(SHARES).cast("bigint")


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
