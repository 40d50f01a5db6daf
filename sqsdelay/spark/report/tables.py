"""The tables of a report, all from the one of messages."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sqsdelay.cost import Prices, Workload
from sqsdelay.cost.stored_message import store_lines
from sqsdelay.cost.strategies import function_lines
from sqsdelay.cost.workload import BANDS, DELAY_ATTRIBUTES_BYTES
from sqsdelay.limits import MAX_MESSAGE_BYTES
from sqsdelay.spark.report.messages import STATUSES
from sqsdelay.spark.report.requests import SHARES

PERCENTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
_HOUR_MS: Final = 3_600_000
_MONEY: Final = "decimal(38,15)"


def summary(messages: DataFrame) -> DataFrame:
    """A row for each endpoint, and one for all, whose ``endpoint`` is null."""
    statuses = [
        F.count_if(F.col("status") == status).alias(status.replace("-", "_")) for status in STATUSES
    ]
    totals = [
        F.count(F.lit(1)).alias("messages"),
        *statuses,
        F.count_if("duplicated").alias("duplicated"),
        F.count_if("early").alias("early"),
        F.sum("hops").alias("hops"),
        _requests("fifo_shares").alias("fifo_requests"),
        _requests("standard_shares").alias("standard_requests"),
        *_percentiles("late_ms"),
    ]
    return messages.rollup("endpoint").agg(*totals).sort(F.col("endpoint").asc_nulls_first())


def lateness(messages: DataFrame) -> DataFrame:
    """Percentiles of lateness per endpoint and hour of the due time (UTC), and by what was measured:
    the reception, or the hand-over (the instant from which the destination shows the message)."""
    measures = F.array(
        F.struct(F.lit("received").alias("measure"), F.col("received_late_ms").alias("late_ms")),
        F.struct(
            F.lit("handed-over").alias("measure"), F.col("hand_over_late_ms").alias("late_ms")
        ),
    )
    hour = F.timestamp_millis(F.floor(F.col("due_ms") / _HOUR_MS) * _HOUR_MS)
    key = ("endpoint", "hour", "measure")
    each = messages.select("endpoint", hour.alias("hour"), F.inline(measures))
    measured = each.where("late_ms IS NOT NULL").groupBy(*key)
    return measured.agg(F.count(F.lit(1)).alias("messages"), *_percentiles("late_ms")).sort(*key)


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
    found = F.percentile(name, list(PERCENTILES.values()))
    return [F.get(found, place).alias(alias) for place, alias in enumerate(PERCENTILES)]
