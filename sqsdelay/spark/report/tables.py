"""The tables of a report, from the one of messages."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sqsdelay.cost import Prices, Workload
from sqsdelay.cost.strategies import store_lines
from sqsdelay.cost.workload import BANDS, DELAY_ATTRIBUTES_BYTES, function_lines
from sqsdelay.limits import MAX_MESSAGE_BYTES
from sqsdelay.spark.report.counted import ARRIVALS, BAND, ENDPOINT, HOUR, HOUR_MS
from sqsdelay.spark.report.messages import OPEN
from sqsdelay.spark.report.requests import SHARES

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


def cost(messages: DataFrame, arrivals: DataFrame, prices: Prices, *, as_of_ms: int) -> DataFrame:
    """What the requests cost per endpoint and band of delays, in the currency of ``prices``.

    ``sqs_cost`` is for the requests the ledger shows. ``lambda_cost`` is what the consumer's and the
    dispatcher's batches cost if they ran on Lambda, ``store_cost`` what parked messages cost if the
    store is DynamoDB.
    """
    key = ("endpoint", "band")
    sums = arrivals.where((F.col("table") == BAND) & F.col("endpoint").isNotNull())
    stored = _store_costs(messages, prices, as_of_ms=as_of_ms)
    both = sums.join(
        stored, [F.equal_null(sums[name], stored[f"stored_{name}"]) for name in key], "left"
    )
    fifo, standard, invoked = (
        _whole(F.col(f"{name}_shares")) for name in ("fifo", "standard", "invocation")
    )
    invocation = sum((line.amount for line in function_lines("", 1, prices)), Fraction(0))
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


def _whole(shares: Column) -> Column:
    return shares / F.lit(SHARES).cast("bigint")
