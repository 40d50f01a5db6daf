"""What delaying a table of messages costs: of a workload by Spark, way by way and band by band, and of a plan
by the tasks that would send it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import inf
from operator import mul
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sqsdelay.core import limits
from sqsdelay.core.message import Message, Route, size_of, string
from sqsdelay.cost import Prices, shipped_prices, workload
from sqsdelay.cost.strategies import RELAYED_ON_TIME, Way, rate, ways
from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.run import Counts
from sqsdelay.stores import s3_settings_of, split

_MAX_SIZE: Final = limits.MAX_MESSAGE_BYTES - workload.DELAY_ATTRIBUTES_BYTES


def estimate(rows: DataFrame, prices: Prices, compared: Sequence[Way]) -> list[dict[str, Any]]:
    """What each ``way`` costs for the ``messages`` of each ``band`` of delays, without what runs however few
    they are, of a table with the columns ``delay_seconds``, ``size`` (bytes of body and attributes) and maybe
    ``messages`` or ``count``. ``impossible`` ones are too large for the way's service, and not in ``cost``;
    ``cheapest`` is the way of its band that costs least, among those that take all messages. Raises
    ConfigurationError."""
    messages, impossible = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    costs: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    # A row for each segment and size: they are priced one after the other, and not kept.
    for longest, size, *sums in _grouped(_numbers(rows), edges_of(compared)).toLocalIterator():
        band, whole = workload.band_of(longest), [int(each) for each in sums]
        for place, way in enumerate(compared):
            key, cost = (band, place), cost_of(way, longest, size, whole, prices)
            messages[key] += whole[0]
            impossible[key] += whole[0] if cost is None else 0
            costs[key] += cost or 0
    if not messages:
        raise ConfigurationError("the workload has no rows: there is nothing to estimate")
    found: list[dict[str, Any]] = [
        {
            "band": workload.BANDS[key[0]].name,
            "way": compared[key[1]].name,
            "messages": messages[key],
            "impossible": impossible[key],
            "cost": round(Decimal(total.numerator) / total.denominator, 18),
        }
        for key, total in sorted(costs.items())
    ]
    best = dict[str, dict[str, Any]]()
    for each in sorted(found, key=lambda each: each["cost"]):
        if not each["impossible"]:
            best.setdefault(each["band"], each)
    return [each | {"cheapest": best.get(each["band"]) is each} for each in found]


def _numbers(rows: DataFrame) -> DataFrame:
    """The columns that count, as whole numbers. Raises ConfigurationError for what cannot be priced."""
    for name in ("delay_seconds", "size"):
        if name not in rows.columns:
            raise ConfigurationError(
                f"the workload has no column {name}, but {', '.join(rows.columns)}; "
                "it needs delay_seconds and size, and may have messages. A table of messages is priced by "
                "schedule --plan"
            )
    messages = next((name for name in ("messages", "count") if name in rows.columns), "1")
    numbers = rows.selectExpr(
        # A delay of half a second more is one of the next whole second.
        "ceil(try_cast(delay_seconds AS double)) AS delay_seconds",
        "try_cast(size AS bigint) AS size",
        f"try_cast({messages} AS bigint) AS messages",
    )
    unfit = numbers.where(
        f"NOT coalesce(delay_seconds BETWEEN 0 AND {workload.MAX_DELAY_SECONDS} "
        f"AND size BETWEEN 1 AND {_MAX_SIZE} AND messages BETWEEN 1 AND {workload.MAX_MESSAGES}, false)"
    )
    first = F.min(F.struct(*numbers.columns)).alias("first")
    (row,) = unfit.agg(F.count(F.lit(1)).alias("rows"), first).collect()
    if row.rows:
        example = ", ".join(f"{name}={value}" for name, value in row.first.asDict().items())
        raise ConfigurationError(
            f"{row.rows} rows of the workload cannot be priced, e.g. {example}; use delay_seconds of 0 "
            f"to {workload.MAX_DELAY_SECONDS}, a size of 1 to {_MAX_SIZE} bytes, "
            f"1 to {workload.MAX_MESSAGES} messages"
        )
    return numbers


def edges_of(compared: Iterable[Way]) -> list[int]:
    """Where a band ends or a way begins to park: between two of them all messages fare alike."""
    ends = {band.most_seconds for band in workload.BANDS if band.most_seconds is not None}
    parks = {way.parks_above_seconds for way in compared if way.parks_above_seconds is not None}
    return sorted(ends | parks | {workload.MAX_DELAY_SECONDS})


def cost_of(
    way: Way, delay_seconds: int, size: int, sums: Iterable[int], prices: Prices
) -> Fraction | None:
    """What messages of a size, delayed about so long, cost by one way; None if they are too large for it.
    ``sums`` are how many they are, their hops, and their delays in seconds."""
    each = rate(way.strategy_of(delay_seconds), size, way.batch, prices, own_ids=way.own_ids)
    return None if each is None else sum(map(mul, each, sums), Fraction(0))


def _grouped(numbers: DataFrame, edges: Sequence[int]) -> DataFrame:
    """By the longest delay of their segment and by size, the sums a bill depends on."""
    ends = " ".join(f"WHEN delay_seconds <= {end} THEN {end}" for end in edges)
    messages, seconds = (F.col(n).cast("decimal(19,0)") for n in ("messages", "delay_seconds"))
    # As `Workload.hops` has them.
    spans = F.ceil(F.col("delay_seconds") / limits.DEFAULT_HOP_SECONDS)
    hops = F.greatest(spans - 1, F.lit(0)).cast("decimal(18,0)")
    sums = {"messages": messages, "hops": messages * hops}
    sums["seconds"] = messages * seconds.cast("decimal(18,0)")
    totals = (F.sum(each).cast("decimal(38,0)").alias(name) for name, each in sums.items())
    return numbers.groupBy(F.expr(f"CASE {ends} END"), "size").agg(*totals)


_MESSAGES_A_SECOND: Final = 2_400 * limits.MAX_BATCH_ENTRIES
"""A FIFO queue with high throughput, in most regions. Source: docs/capacity.md, "Quoted"."""


class Planned:
    """What a task would send, summed up so that any way of delaying it can be priced: what is due after
    ``now_ms`` is delayed."""

    def __init__(self, options: Options, now_ms: int) -> None:
        self._compared, self._chosen = _compared(options)
        self._edges = edges_of(self._compared)
        self._prices = shipped_prices()
        self._now_ms = now_ms
        self._sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])

    def add(self, message: Message, messages: int = 1) -> bool:
        """Count a message, or as many like it; whether the job would store it at once."""
        assert message.due_at is not None, "rows have a due time"
        late_ms = round(message.due_at.timestamp() * 1000) - self._now_ms
        seconds = max(0, -(-late_ms // 1000))
        longest = self._edges[bisect_left(self._edges, seconds)]
        attributes = {name: string(str(value)) for name, value in message.attributes.items()}
        sums = self._sums[longest, size_of(message.body, attributes)]
        hops = max(0, -(-seconds // limits.DEFAULT_HOP_SECONDS) - 1)
        for place, each in enumerate((1, hops, seconds)):
            sums[place] += each * messages
        return self._chosen.strategy_of(longest) != "relay"

    def price(self, counts: Counts) -> None:
        """Add what it costs each way, and how many are relayed: a few numbers, whatever was planned."""
        for (longest, size), sums in self._sums.items():
            for way in self._compared:
                cost = cost_of(way, longest, size, sums, self._prices)
                counts.costs[way.name] += inf if cost is None else cost
            relays = self._chosen.strategy_of(longest) == "relay"
            if relays and longest > limits.MAX_MESSAGE_TIMER_SECONDS:
                counts.relayed += sums[0]


def plan_of(counts: Counts, options: Options) -> dict[str, Any]:
    """What each way costs, how long sending takes, whether the relay holds it; warnings."""
    compared, chosen = _compared(options)
    costs = {way.name: counts.costs[way.name] for way in compared}
    cheapest = min(costs, key=lambda name: costs[name])
    mine, least = costs[chosen.name], costs[cheapest]
    currency, warnings = shipped_prices().currency, []
    if mine < inf and mine - least > 1 and mine > 2 * least:
        parks = "give a store (--store) to park messages due far ahead"
        warnings.append(
            f"{chosen.name} costs {float(mine):.2f} {currency}, {cheapest} {float(least):.2f}: "
            + ("docs/cost.md compares the stores" if options.store else parks)
        )
    if counts.relayed > RELAYED_ON_TIME:
        warnings.append(
            f"{counts.relayed:,} messages are relayed, and the deployed function holds {RELAYED_ON_TIME:,} "
            "on time: raise its max_concurrency, or give a store (docs/capacity.md)"
        )
    return {
        "currency": currency,
        "costs": {n: None if cost == inf else f"{float(cost):.2f}" for n, cost in costs.items()},
        "way": chosen.name,
        "cheapest": None if least == inf else cheapest,
        "seconds_at_quota": -(-counts.routes[Route.DELAY_QUEUE] // _MESSAGES_A_SECOND),
        "relayed": counts.relayed,
        "relay_holds": RELAYED_ON_TIME,
        "warnings": warnings,
    }


def _compared(options: Options) -> tuple[list[Way], Way]:
    """The ways that are priced, and the job's own."""
    compared = ways([options.park_after])
    _, relayed, parked, _ = compared
    if options.store is None:
        return compared, relayed
    if split(options.store).scheme != "s3":
        return compared, parked
    ahead = max(options.park_after, options.hop_seconds)
    stored = replace(
        parked,
        name=f"S3, parked by the sender after {ahead / 3600:g} h",
        parks_above_seconds=max(limits.DEFAULT_HOP_SECONDS, ahead),
        stored="stored-in-s3",
        own_ids=s3_settings_of(options.store).get("lookup", False),
    )
    return [*compared, stored], stored
