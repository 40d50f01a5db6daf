"""What a page shows: few figures and short lists, whatever the size of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sqsdelay.cost import Prices
from sqsdelay.cost.workload import BANDS
from sqsdelay.spark.report.messages import LOST, REJECTED

MOST_LISTED: Final = 20
"""Messages listed of each trouble; all are in the table of messages."""

MOST_ENDPOINTS: Final = 50
"""Endpoints shown, those with the most messages; all are in the summary."""

LATENESS_MS: Final = (
    0, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000, 600_000, 3_600_000
)  # fmt: skip
"""Where the bars of the distribution begin; before the first it is early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the lines were, and what became of the messages; times are UTC."""

    as_of: str
    grace_seconds: int
    lines: int
    bad_lines: int
    messages: int
    delivered: int
    handed_over: int
    pending: int
    lost: int
    cancelled: int
    rejected: int
    duplicated: int
    early: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None

    @classmethod
    def of(
        cls, summary: DataFrame, *, as_of: str, grace_seconds: int, lines: int, bad_lines: int
    ) -> Figures:
        """The row of all endpoints, and what is known of the lines."""
        (row,) = summary.where("endpoint IS NULL").collect()
        known = {name: row[name] for name in cls.__slots__ if name in summary.columns}
        return cls(
            as_of=as_of, grace_seconds=grace_seconds, lines=lines, bad_lines=bad_lines, **known
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What one band of delays cost, in all endpoints."""

    delay: str
    messages: int
    hops: int
    parked: int
    fifo_requests: float
    standard_requests: float
    sqs_cost: float
    lambda_cost: float
    store_cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All that a page shows."""

    ledger: str
    figures: Figures
    endpoints: Sequence[Mapping[str, Any]]
    lateness: Sequence[tuple[str, int]]
    waiting: Sequence[tuple[int, int]]
    costs: Sequence[Costs]
    troubles: Mapping[str, Sequence[Mapping[str, Any]]]
    bad_lines: Sequence[Mapping[str, Any]]
    prices: Prices


def contents(
    figures: Figures,
    messages: DataFrame,
    tables: Mapping[str, DataFrame],
    prices: Prices,
    ledger: str,
) -> Content:
    """Gather what the page shows from the tables."""
    by_size = tables["summary"].where("endpoint IS NOT NULL")
    return Content(
        ledger=ledger,
        figures=figures,
        endpoints=_rows(by_size.sort(F.desc("messages"), "endpoint"), MOST_ENDPOINTS),
        lateness=_distribution(messages),
        waiting=[(row.at_ms, row.waiting) for row in tables["waiting"].sort("at_ms").collect()],
        costs=_costs(tables["cost"]),
        troubles=_troubles(messages, figures),
        bad_lines=_rows(tables["bad_lines"], MOST_LISTED) if figures.bad_lines else [],
        prices=prices,
    )


def _rows(table: DataFrame, most: int) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.limit(most).collect()]


def _distribution(messages: DataFrame) -> list[tuple[str, int]]:
    """Names of the bars, and how many messages each has."""
    reached = [(F.col("late_ms") >= edge).cast("int") for edge in LATENESS_MS]
    place = reduce(Column.__add__, reached).alias("place")
    counted = messages.where("late_ms IS NOT NULL").groupBy(place).count()
    found = {row.place: row["count"] for row in counted.collect()}
    return [(name, found.get(place, 0)) for place, name in enumerate(_bar_names())]


def _bar_names() -> list[str]:
    edges = [duration(edge) for edge in LATENESS_MS]
    between = [f"{low} to {high}" for low, high in pairwise(edges)]
    return ["early", *between, f"above {edges[-1]}"]


def duration(ms: int) -> str:
    """Milliseconds in the largest unit that they fill whole."""
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def _costs(cost: DataFrame) -> list[Costs]:
    names = [name for name in Costs.__slots__ if name != "delay"]
    grouped = cost.groupBy("band").agg(*[F.sum(name).alias(name) for name in names]).collect()
    ordered = sorted(grouped, key=lambda row: len(BANDS) if row.band is None else row.band)
    return [
        Costs(
            delay="unknown" if row.band is None else BANDS[row.band].name,
            **{name: row[name] for name in names},
        )
        for row in ordered
    ]


def _troubles(messages: DataFrame, figures: Figures) -> dict[str, list[dict[str, Any]]]:
    """The first of each kind, by due time; none is looked for where there is none."""
    kinds = {
        "lost": (figures.lost, F.col("status") == LOST),
        "duplicated": (figures.duplicated, F.col("duplicated")),
        "early": (figures.early, F.col("early")),
        "rejected": (figures.rejected, F.col("status") == REJECTED),
    }
    return {
        name: _rows(messages.where(condition).sort("due_ms", "endpoint", "message_id"), MOST_LISTED)
        for name, (count, condition) in kinds.items()
        if count
    }
