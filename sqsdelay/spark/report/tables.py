"""The tables of a report, all from the one of messages."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sqsdelay.cost import Prices, Workload
from sqsdelay.cost.lines import function_lines
from sqsdelay.cost.stored_message import store_lines
from sqsdelay.cost.workload import BANDS, DELAY_ATTRIBUTES_BYTES
from sqsdelay.limits import MAX_MESSAGE_BYTES
from sqsdelay.spark.report.messages import ARRIVED, CANCELLED, OPEN, STATUSES
from sqsdelay.spark.report.requests import SHARES

PERCENTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
WITHIN_MS: Final = {"within_1s": 1000, "within_60s": 60_000}
"""The service levels shown: how soon after its due time a message should arrive."""
HOUR_MS: Final = 3_600_000
_MONEY: Final = "decimal(38,15)"


def summary(messages: DataFrame, *, as_of_ms: int) -> DataFrame:
    """A row for each endpoint, and one for all, whose ``endpoint`` is null."""
    totals = [
        *arrivals(as_of_ms),
        F.sum("hops").alias("hops"),
        _requests("fifo_shares").alias("fifo_requests"),
        _requests("standard_shares").alias("standard_requests"),
    ]
    return messages.rollup("endpoint").agg(*totals).sort(F.col("endpoint").asc_nulls_first())


def lateness(messages: DataFrame, *, as_of_ms: int) -> DataFrame:
    """The arrivals of each endpoint, and of all (a null), by the hour (UTC) from which they are late."""
    hour = started("late_from_ms", HOUR_MS).alias("hour")
    known = messages.where("late_from_ms IS NOT NULL").select("*", hour)
    return _of_each_and_all(known, "hour", as_of_ms=as_of_ms)


def cohorts(messages: DataFrame, *, as_of_ms: int) -> DataFrame:
    """The arrivals of each endpoint, and of all (a null), by band of delays."""
    delay = F.get(F.lit([band.name for band in BANDS]), F.col("band")).alias("delay")
    return _of_each_and_all(messages.select("*", delay), "band", "delay", as_of_ms=as_of_ms)


def _of_each_and_all(messages: DataFrame, *key: str, as_of_ms: int) -> DataFrame:
    of_each_or_all = F.grouping_id() < 2
    rolled = messages.select("*", F.struct(*key).alias("key")).rollup("key", "endpoint")
    found = rolled.agg(of_each_or_all.alias("_kept"), *arrivals(as_of_ms)).where("_kept")
    columns = [name for name in found.columns if name not in ("key", "endpoint", "_kept")]
    return found.select("endpoint", "key.*", *columns).sort(
        F.col("endpoint").asc_nulls_first(), *key
    )


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


def started(name: str, step_ms: int) -> Column:
    """The beginning of the hour, or another span, in which an instant is."""
    return F.timestamp_millis(F.floor(F.col(name) / step_ms) * step_ms)


def arrivals(as_of_ms: int) -> list[Column]:
    """How many messages there are of each status, how late those that arrived did, and the share of
    those that should have arrived by now that did so soon enough."""
    counted = F.count(F.lit(1)).alias("messages")
    statuses = [
        F.count_if(F.col("status") == status).alias(status.replace("-", "_")) for status in STATUSES
    ]
    within = [_within(most_ms, as_of_ms).alias(name) for name, most_ms in WITHIN_MS.items()]
    waited = [
        column.alias(f"waited_{name}")
        for name, column in zip(PERCENTILES, _percentiles("waited_ms"), strict=True)
        if name != "p90_ms"
    ]
    return [
        counted,
        *statuses,
        F.count_if("duplicated").alias("duplicated"),
        F.count_if("early").alias("early"),
        *within,
        *[
            each.alias(name)
            for name, each in zip(PERCENTILES, _percentiles("late_ms"), strict=True)
        ],
        *waited,
    ]


def _within(most_ms: int, as_of_ms: int) -> Column:
    """Early, lost, rejected and overdue messages are not within; what was cancelled is owed to nobody."""
    arrived = F.col("late_ms").isNotNull()
    owed = ~F.col("status").isin(CANCELLED, *ARRIVED)
    missed = owed & (F.col("late_from_ms") + most_ms < as_of_ms)
    return F.count_if(F.col("late_ms").between(0, most_ms)) / F.nullif(
        F.count_if(arrived | missed), F.lit(0)
    )


def cost(messages: DataFrame, prices: Prices, *, as_of_ms: int) -> DataFrame:
    """What the requests cost per endpoint and band of delays, in the currency of ``prices``.

    ``sqs_cost`` is for the requests the ledger shows. ``lambda_cost`` is what the consumer's and the
    dispatcher's batches cost if they ran on Lambda, ``store_cost`` what parked messages cost if the
    store is DynamoDB.
    """
    key = ("endpoint", "band")
    sums = messages.groupBy(*key).agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum("hops").alias("hops"),
        F.count("parked_ms").alias("parked"),
        *[F.sum(f"{name}_shares").alias(f"{name}_shares") for name in _SHARED],
    )
    stored = _store_costs(messages, prices, as_of_ms=as_of_ms)
    both = sums.join(
        stored, [F.equal_null(sums[name], stored[f"stored_{name}"]) for name in key], "left"
    )
    fifo, standard, invoked = (_whole(F.col(f"{name}_shares")) for name in _SHARED)
    invocation = sum((line.amount for line in function_lines("", 1, prices)), Fraction(0))
    sqs = fifo * float(prices.sqs_fifo_request) + standard * float(prices.sqs_standard_request)
    return both.select(
        *key,
        F.get(F.lit([band.name for band in BANDS]), F.col("band")).alias("delay"),
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


_SHARED: Final = ("fifo", "standard", "invocation")


def _store_costs(messages: DataFrame, prices: Prices, *, as_of_ms: int) -> DataFrame:
    """By the cost model, which is asked once for each size: it is linear in the time parked."""

    def amount(parked: int, size: int | None, seconds: int) -> Decimal:
        most = MAX_MESSAGE_BYTES - DELAY_ATTRIBUTES_BYTES
        load = Workload(
            delay_seconds=seconds, messages=parked, message_bytes=min(max(1, size or 1), most)
        )
        total = sum((line.amount for line in store_lines(load, prices)), Fraction(0))
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


def _requests(shares: str) -> Column:
    return _whole(F.sum(shares))


def _whole(shares: Column) -> Column:
    return shares / F.lit(SHARES).cast("bigint")


def _percentiles(name: str) -> list[Column]:
    """Each one that some message had: the least that so many of all do not exceed."""
    shares = ", ".join(map(str, PERCENTILES.values()))
    found = F.expr(f"percentile_disc(array({shares})) WITHIN GROUP (ORDER BY {name})")
    return [F.get(found, place).cast("bigint") for place in range(len(PERCENTILES))]
