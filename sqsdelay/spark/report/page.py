"""The page: one HTML file, with few figures and short lists, whatever the size of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sqsdelay.core.delay import utc
from sqsdelay.cost import Prices, dollars
from sqsdelay.cost.workload import BANDS
from sqsdelay.spark.report.charts import (
    Histogram,
    cost_chart,
    lateness_chart,
    moments_chart,
    waiting_chart,
)
from sqsdelay.spark.report.messages import LOST, REJECTED
from sqsdelay.spark.report.tables import HOUR_MS, MOMENT, WITHIN_MS

MOST_LISTED: Final = 20
"""Messages listed of each trouble; all are in the table of messages."""

MOST_ENDPOINTS: Final = 50
"""Endpoints shown, those with the most messages; all are in the summary."""

MOST_BINS: Final = 25
"""Of equal width, up to the 99th percentile; one more has what was later."""

_BIN_MS: Final = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000,
    1_800_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000, 2_592_000_000, 31_536_000_000,
)  # fmt: skip
"""Widths that a reader can count with."""

MOST_MOMENTS: Final = 100
_DAY_MS: Final = 24 * HOUR_MS
_MOMENT_HOURS: Final = (1, 6, *(24 * days for days in (1, 7, 30, 365)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the lines were, and what became of the messages; times are UTC."""

    as_of: str
    grace_seconds: int
    lines: int
    bad_lines: int
    messages: int
    lost: int
    pending: int
    unknown: int
    delivered: int
    handed_over: int
    rejected: int
    cancelled: int
    duplicated: int
    early: int
    within_1s: float | None
    within_60s: float | None
    p50_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    waited_p50_ms: int | None
    waited_max_ms: int | None
    last_seen: Sequence[Mapping[str, Any]]

    @classmethod
    def of(
        cls,
        tables: Mapping[str, DataFrame],
        *,
        as_of: str,
        grace_seconds: int,
        lines: int,
        bad_lines: int,
    ) -> Figures:
        """The summary's row of all endpoints, where messages were seen last, and what is known of the
        lines."""
        (row,) = tables["summary"].where("endpoint IS NULL").collect()
        known = {name: row[name] for name in cls.__slots__ if name in row}
        most_first = tables["last_seen"].sort(F.desc("messages"), "endpoint", "status", "last_seen")
        return cls(
            as_of=as_of,
            grace_seconds=grace_seconds,
            lines=lines,
            bad_lines=bad_lines,
            last_seen=_rows(most_first, MOST_LISTED),
            **known,
        )

    @property
    def arrived(self) -> int:
        """How many the destination queues have shown."""
        return self.delivered + self.handed_over


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
    cohorts: Sequence[Mapping[str, Any]]
    lateness: Histogram
    moments: Sequence[Mapping[str, Any]]
    moment_ms: int
    waiting: Sequence[tuple[int, int]]
    costs: Sequence[Costs]
    troubles: Mapping[str, Sequence[Mapping[str, Any]]]
    bad_lines: Sequence[Mapping[str, Any]]
    prices: Prices


def contents(
    figures: Figures,
    tables: Mapping[str, DataFrame],
    prices: Prices,
    ledger: str,
    *,
    moment_hours: int,
) -> Content:
    """Gather what the page shows from the tables."""
    by_size = tables["summary"].where("endpoint IS NOT NULL")
    # Side by side: each is a small job, and most of its time is Spark's planning.
    with ThreadPoolExecutor() as pool:
        moments = pool.submit(_moments, tables["arrivals"], moment_hours * HOUR_MS)
        lateness = pool.submit(_histogram, tables["spread"], figures)
        troubles = pool.submit(_troubles, tables["messages"], figures)
        costs = pool.submit(_costs, tables["cost"])
        waiting = pool.submit(tables["waiting"].sort("at_ms").collect)
        endpoints = pool.submit(_rows, by_size.sort(F.desc("messages"), "endpoint"), MOST_ENDPOINTS)
        cohorts = tables["cohorts"].where("endpoint IS NULL").sort("band")
        return Content(
            ledger=ledger,
            figures=figures,
            cohorts=_rows(cohorts, len(BANDS) + 1),
            bad_lines=_rows(tables["bad_lines"], MOST_LISTED) if figures.bad_lines else [],
            endpoints=endpoints.result(),
            lateness=lateness.result(),
            moments=moments.result(),
            moment_ms=moment_hours * HOUR_MS,
            waiting=[(row.at_ms, row.waiting) for row in waiting.result()],
            costs=costs.result(),
            troubles=troubles.result(),
            prices=prices,
        )


def _rows(table: DataFrame, most: int) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.limit(most).collect()]


def _histogram(spread: DataFrame, figures: Figures) -> Histogram:
    reach_ms = max(0, figures.p99_ms or 0)
    width_ms = next((ms for ms in _BIN_MS if reach_ms < MOST_BINS * ms), _BIN_MS[-1])
    number = reach_ms // width_ms + 1
    place = F.floor(F.greatest(F.col("value"), F.lit(-1)) / width_ms)
    by_place = spread.where("figure = 'late_ms'").groupBy(
        F.least(place, F.lit(number)).alias("place")
    )
    counts = by_place.agg(F.sum("number").alias("messages")).collect()
    found = {row.place: row.messages for row in counts}
    return Histogram(
        width_ms=width_ms,
        early=found.get(-1, 0),
        bins=[found.get(place, 0) for place in range(number)],
        later=found.get(number, 0),
    )


def hours_of_a_moment(hours: int) -> int:
    """As long a span as makes few of so many hours."""
    return next((n for n in _MOMENT_HOURS if hours < MOST_MOMENTS * n), _MOMENT_HOURS[-1])


def _moments(arrivals: DataFrame, long_ms: int) -> list[dict[str, Any]]:
    """Lateness over time."""
    found = arrivals.where(F.col("table") == MOMENT).sort("hour").collect()
    return [row.asDict() | {"at_ms": row.hour * long_ms} for row in found]


def duration(ms: int) -> str:
    """Milliseconds in the largest unit that they fill whole."""
    if ms > _DAY_MS and ms % _DAY_MS == 0:
        return f"{ms // _DAY_MS} days"
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


PAGE: Final = "report.html"
_NONE: Final = "-"
WITHIN: Final = {name: f"within {duration(ms)}" for name, ms in WITHIN_MS.items()}


def render(content: Content) -> str:
    """The page's text. What stands in the ledger is shown as text, whatever it is."""
    environment = Environment(
        loader=PackageLoader("sqsdelay.spark.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "whole": _whole,
        "ms": _ms,
        "share": _share,
        "instant": _instant,
        "money": _money,
    }
    bands = [
        (band.delay, (band.sqs_cost, band.lambda_cost, band.store_cost)) for band in content.costs
    ]
    return environment.get_template("report.html").render(
        content=content,
        figures=content.figures,
        grace=duration(content.figures.grace_seconds * 1000),
        moment=duration(content.moment_ms),
        within=WITHIN,
        most_listed=MOST_LISTED,
        most_endpoints=MOST_ENDPOINTS,
        totals=_totals(content),
        # The only text that is not escaped: our own drawings, whose words are.
        charts={
            "lateness": Markup(lateness_chart(content.lateness)),
            "moments": Markup(
                moments_chart(content.moments, moment_ms=content.moment_ms, within=WITHIN)
            ),
            "waiting": Markup(waiting_chart(content.waiting)),
            "cost": Markup(cost_chart(bands, content.prices.currency)),
        },
    )


def _totals(content: Content) -> dict[str, float]:
    names = ("sqs_cost", "lambda_cost", "store_cost", "fifo_requests", "standard_requests", "hops")
    return {name: sum(getattr(band, name) for band in content.costs) for name in names}


def _whole(number: float | None) -> str:
    return _NONE if number is None else f"{number:,.0f}"


def _ms(ms: float | None) -> str:
    """A lateness for people."""
    if ms is None:
        return _NONE
    return f"{ms:,.0f} ms" if abs(ms) < 10_000 else f"{ms / 1000:,.1f} s"


def _share(share: float | None) -> str:
    """A part of all, which is not 100 % unless it is all."""
    if share is None:
        return _NONE
    return f"{math.floor(share * 10_000) / 100:.2f} %" if share < 1 else "100 %"


def _instant(ms: int | None) -> str:
    return _NONE if ms is None else f"{utc(ms):%Y-%m-%d %H:%M:%S}"


def _money(amount: Any) -> str:
    return dollars(Fraction(amount))
