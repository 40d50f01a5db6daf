"""What delaying a table of messages costs, way by way and band by band."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from sqsdelay.cost import Prices
from sqsdelay.cost.recommendation import Way, rate
from sqsdelay.cost.workload import (
    BANDS,
    DELAY_ATTRIBUTES_BYTES,
    MAX_DELAY_SECONDS,
    MAX_MESSAGES,
    band_of,
)
from sqsdelay.errors import ConfigurationError
from sqsdelay.limits import DEFAULT_HOP_SECONDS, MAX_MESSAGE_BYTES

_HOP: Final = DEFAULT_HOP_SECONDS
_MAX_SIZE: Final = MAX_MESSAGE_BYTES - DELAY_ATTRIBUTES_BYTES
_MONEY: Final = "decimal(38,18)"
_WHOLE: Final = "decimal(38,0)"
_COUNTS: Final = ("messages", "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one way costs for the messages of one band of delays.

    ``cost`` leaves out what runs however few messages there are. ``impossible`` messages are too
    large for the way's service, and not in ``cost``. ``cheapest`` is the way of its band that costs
    least, among those that take all messages.
    """

    band: str
    way: str
    messages: int
    impossible: int
    cost: Decimal
    cheapest: bool = False


def estimate(rows: DataFrame, prices: Prices, compared: Sequence[Way]) -> list[Estimate]:
    """What each way costs for the messages of a table, by band of delays.

    Args:
        rows: columns ``delay_seconds`` and ``size`` (bytes of body and attributes), and if you like
            ``messages`` or ``count``: how many messages a row stands for.
        prices: what a request costs.
        compared: the ways, see `sqsdelay.cost.recommendation.ways`.

    Raises:
        ConfigurationError: a column is missing, rows hold values out of range, or there are none.
    """
    numbers = _numbers(rows)
    _refuse_unfit(numbers)
    edges = edges_of(compared)
    found: dict[tuple[int, int], Estimate] = {}
    for row in _totals(numbers, edges, prices, compared):
        band = band_of(edges[row.segment])
        here = Estimate(
            band=BANDS[band].name,
            way=compared[row.way].name,
            messages=int(row.messages),
            impossible=int(row.impossible or 0),
            cost=row.cost or Decimal(0),
        )
        before = found.get((band, row.way))
        found[band, row.way] = here if before is None else _together(before, here)
    if not found:
        raise ConfigurationError("the workload has no rows: there is nothing to estimate")
    return _with_cheapest([found[key] for key in sorted(found)])


def as_workload(rows: DataFrame) -> DataFrame:
    """The delays and sizes of a table of messages, as the data source ``sqsdelay`` takes it.

    ``due_at`` counts from now; what is past is due at once. Rows that could not be sent, for want of
    a body or a due time, cost nothing.
    """
    names = {name.lower(): F.col(f"`{name}`") for name in rows.columns}
    if "due_at" in names:
        due = names["due_at"].cast("double") - F.current_timestamp().cast("double")
        seconds = F.when(due < 0, F.lit(0.0)).otherwise(due)
    else:
        seconds = names["delay_seconds"]
    size = F.octet_length(names["body"])
    if "attributes" in names:
        texts = F.transform(
            F.map_entries(names["attributes"]),
            lambda entry: F.octet_length(entry.key) + F.octet_length(entry.value) + len("String"),
        )
        size += F.coalesce(F.aggregate(texts, F.lit(0), lambda total, each: total + each), F.lit(0))
    sized = rows.select(seconds.alias("delay_seconds"), size.alias("size"))
    return sized.where("delay_seconds >= 0 and size > 0")


def _numbers(rows: DataFrame) -> DataFrame:
    for name in ("delay_seconds", "size"):
        if name not in rows.columns:
            raise ConfigurationError(
                f"the workload has no column {name}, but {', '.join(rows.columns)}; "
                "it needs delay_seconds and size, and may have messages"
            )
    counts = [name for name in _COUNTS if name in rows.columns]
    given = F.col(counts[0]) if counts else F.lit(1)
    # A delay of half a second more is one of the next whole second.
    seconds = F.ceil(F.col("delay_seconds").try_cast("double"))
    return rows.select(
        seconds.alias("delay_seconds"),
        F.col("size").try_cast("bigint").alias("size"),
        given.try_cast("bigint").alias("messages"),
    )


def _refuse_unfit(numbers: DataFrame) -> None:
    fits = F.col("delay_seconds").between(0, MAX_DELAY_SECONDS)
    fits &= F.col("size").between(1, _MAX_SIZE) & F.col("messages").between(1, MAX_MESSAGES)
    unfit = numbers.where(~F.coalesce(fits, F.lit(False)))
    (row,) = unfit.agg(
        F.count(F.lit(1)).alias("rows"), F.min(F.struct(*numbers.columns)).alias("first")
    ).collect()
    if row.rows:
        example = ", ".join(f"{name}={value}" for name, value in row.first.asDict().items())
        raise ConfigurationError(
            f"{row.rows} rows of the workload cannot be priced, e.g. {example}; use delay_seconds of 0 "
            f"to {MAX_DELAY_SECONDS}, a size of 1 to {_MAX_SIZE} bytes, 1 to {MAX_MESSAGES} messages"
        )


def edges_of(compared: Iterable[Way]) -> list[int]:
    """Where a band ends or a way begins to park: between two of them all messages fare alike."""
    ends = {band.most_seconds for band in BANDS if band.most_seconds is not None}
    parks = {way.parks_above_seconds for way in compared if way.parks_above_seconds is not None}
    return sorted(ends | parks | {MAX_DELAY_SECONDS})


def _totals(
    numbers: DataFrame, edges: Sequence[int], prices: Prices, compared: Sequence[Way]
) -> list[Row]:
    """What each way costs in each segment."""
    amounts = F.udf(amounts_of(edges, prices, compared), f"array<{_MONEY}>", useArrow=False)
    priced = _grouped(numbers, edges).select(
        "segment",
        "messages",
        F.posexplode(amounts("segment", "size", "messages", "hops", "seconds")).alias(
            "way", "cost"
        ),
    )
    summed = priced.groupBy("segment", "way").agg(
        F.sum("messages").alias("messages"),
        F.sum(F.when(F.col("cost").isNull(), F.col("messages"))).alias("impossible"),
        F.sum("cost").alias("cost"),
    )
    return summed.collect()


def _grouped(numbers: DataFrame, edges: Sequence[int]) -> DataFrame:
    """By segment and size, the sums a bill depends on."""
    seconds = F.col("delay_seconds")
    segment: Column = F.lit(len(edges) - 1)
    for place in reversed(range(len(edges) - 1)):
        segment = F.when(seconds <= edges[place], place).otherwise(segment)
    messages = F.col("messages").cast("decimal(19,0)")
    return (
        numbers.withColumn("segment", segment)
        .groupBy("segment", "size")
        .agg(
            F.sum(messages).cast(_WHOLE).alias("messages"),
            F.sum(messages * hops_of(seconds)).cast(_WHOLE).alias("hops"),
            F.sum(messages * seconds.cast("decimal(18,0)")).cast(_WHOLE).alias("seconds"),
        )
    )


def hop_count(seconds: int) -> int:
    """`Workload.hops` of one delay."""
    return max(0, -(-seconds // _HOP) - 1)


def hops_of(seconds: Column) -> Column:
    """`Workload.hops` of a column of delays."""
    return F.greatest(F.ceil(seconds / _HOP) - 1, F.lit(0)).cast("decimal(18,0)")


def amounts_of(
    edges: Sequence[int], prices: Prices, compared: Sequence[Way]
) -> Callable[[int, int, Decimal, Decimal, Decimal], list[Decimal | None]]:
    """What each way costs for so many messages of a segment and a size; None where it is too large."""

    def amounts(
        segment: int, size: int, messages: Decimal, hops: Decimal, seconds: Decimal
    ) -> list[Decimal | None]:
        found: list[Decimal | None] = []
        longest = edges[segment]
        for way in compared:
            each = rate(way.strategy_of(longest), size, way.batch, prices, direct=longest <= _HOP)
            if each is None:
                found.append(None)
                continue
            cost = each.base * int(messages) + each.hop * int(hops) + each.second * int(seconds)
            found.append(round(Decimal(cost.numerator) / Decimal(cost.denominator), 18))
        return found

    return amounts


def _together(one: Estimate, other: Estimate) -> Estimate:
    return replace(
        one,
        messages=one.messages + other.messages,
        impossible=one.impossible + other.impossible,
        cost=one.cost + other.cost,
    )


def _with_cheapest(found: Sequence[Estimate]) -> list[Estimate]:
    best: dict[str, Estimate] = {}
    for each in found:
        if not each.impossible and (each.band not in best or each.cost < best[each.band].cost):
            best[each.band] = each
    return [replace(each, cheapest=best.get(each.band) is each) for each in found]
