"""The page: one HTML file, with few figures and short lists, whatever the size of the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from sqsdelay.spark.report.charts import cost_chart, lateness_chart, moments_chart, waiting_chart
from sqsdelay.spark.report.messages import LOST, PENDING, REJECTED, UNKNOWN
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
    def of(cls, tables: Mapping[str, DataFrame], **known: Any) -> Figures:
        """The summary's row of all endpoints, where messages were seen last, and what is ``known`` of the
        lines."""
        (row,) = tables["summary"].where("endpoint IS NULL").collect()
        known |= {name: row[name] for name in cls.__slots__ if name in row}
        worst = F.array_position(F.lit([LOST, UNKNOWN, PENDING]), F.col("status"))
        worst_first = tables["last_seen"].sort(worst, F.desc("messages"), "endpoint", "last_seen")
        return cls(last_seen=_rows(worst_first, MOST_LISTED), **known)

    @property
    def arrived(self) -> int:
        """How many the destination queues have shown."""
        return self.delivered + self.handed_over


def render(
    figures: Figures,
    tables: Mapping[str, DataFrame],
    prices: Prices,
    ledger: str,
    *,
    moment_hours: int,
    store: str,
) -> str:
    """The page's text. What stands in the ledger is shown as text, whatever it is."""
    moment_ms = moment_hours * HOUR_MS
    cohorts = tables["cohorts"].where("endpoint IS NULL").sort("band")
    sums = [F.sum(name).alias(name) for name in _COSTS[1:]]
    by_band = tables["cost"].groupBy("band", "delay").agg(*sums)
    by_size = tables["summary"].where("endpoint IS NOT NULL").sort(F.desc("messages"), "endpoint")
    asked: Sequence[Callable[[], Any]] = (
        lambda: _lateness(tables["spread"], figures),
        lambda: tables["arrivals"].where(F.col("table") == MOMENT).sort("hour").collect(),
        lambda: tables["waiting"].sort("at_ms").collect(),
        lambda: _rows(by_band.sort(F.asc_nulls_last("band")), len(BANDS) + 1),
        lambda: _troubles(tables["messages"], figures),
        lambda: _rows(by_size, MOST_ENDPOINTS),
        lambda: _rows(cohorts, len(BANDS) + 1),
        lambda: _rows(tables["bad_lines"], MOST_LISTED) if figures.bad_lines else [],
    )
    # Side by side: each is a small job, and most of its time is Spark's planning.
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda ask: ask(), asked)
        lateness, moments, waiting, costs, troubles, by_endpoint, by_delay, bad_lines = found
    environment = Environment(
        loader=PackageLoader("sqsdelay.spark.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"whole": _whole, "ms": _ms, "share": _share, "money": _money}
    bands = [(band["delay"], [band[name] for name in _COSTS[-3:]]) for band in costs]
    moments = [row.asDict() | {"at_ms": row.hour * moment_ms} for row in moments]
    charts = {
        "lateness": lateness,
        "moments": moments_chart(moments, moment_ms=moment_ms, within=WITHIN),
        "waiting": waiting_chart([(row.at_ms, row.waiting) for row in waiting]),
        "cost": cost_chart(bands, prices.currency, store),
    }
    # Of what there is none of, no column.
    there = ["lost", *[name for name in _RARE if getattr(figures, name)], *_ARRIVALS]
    return environment.get_template("report.html").render(
        ledger=ledger,
        figures=figures,
        prices=prices,
        store=store,
        grace=duration(figures.grace_seconds * 1000),
        moment=duration(moment_ms),
        within=WITHIN,
        most_listed=MOST_LISTED,
        most_endpoints=MOST_ENDPOINTS,
        texts=_TEXTS,
        not_arrived=_grid(figures.last_seen, _NOT_ARRIVED),
        by_endpoint=_grid(by_endpoint, ["endpoint", "messages", *there]),
        by_delay=_grid(by_delay, ["delay", "messages", *there]),
        costs=_grid(costs, _COSTS, store_cost=store),
        totals={name: sum(band[name] for band in costs) for name in _COSTS[1:]},
        troubles={
            kind: _grid(rows, [*_TROUBLE, "reason"] if kind == "rejected" else _TROUBLE)
            for kind, rows in troubles.items()
        },
        bad_lines=_grid(bad_lines, ("line", "reason", "file")),
        charts=charts,
    )


def _rows(table: DataFrame, most: int) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.limit(most).collect()]


def _lateness(spread: DataFrame, figures: Figures) -> Markup:
    reach_ms = max(0, figures.p99_ms or 0)
    width_ms = next((ms for ms in _BIN_MS if reach_ms < MOST_BINS * ms), _BIN_MS[-1])
    number = reach_ms // width_ms + 1
    place = F.floor(F.greatest(F.col("value"), F.lit(-1)) / width_ms)
    by_place = spread.where("figure = 'late_ms'").groupBy(F.least(place, F.lit(number)))
    counts = by_place.agg(F.sum("number")).collect()
    return lateness_chart({row[0]: row[1] for row in counts}, width_ms, number)


def hours_of_a_moment(hours: int) -> int:
    """As long a span as makes few of so many hours."""
    return next((n for n in _MOMENT_HOURS if hours < MOST_MOMENTS * n), _MOMENT_HOURS[-1])


def duration(ms: int) -> str:
    """Milliseconds in the largest unit that they fill whole."""
    if ms > _DAY_MS and ms % _DAY_MS == 0:
        return f"{ms // _DAY_MS} days"
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


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


def _money(amount: Any) -> str:
    return dollars(Fraction(amount))


def _text(name: str, value: Any) -> str:
    """A value of a table, by its column."""
    if value in (None, ""):
        return "unknown" if name == "delay" else _NONE
    if name in _INSTANTS:
        return f"{utc(value):%Y-%m-%d %H:%M:%S}"
    if name == "line":
        return value if len(value) <= 200 else f"{value[:200]}…"
    if name == "status":
        return str(value).capitalize()
    if isinstance(value, str):
        return value
    if name in WITHIN:
        return _share(value)
    return (_ms if name.endswith("_ms") else _money if name.endswith("_cost") else _whole)(value)


_NONE: Final = "-"
WITHIN: Final = {name: f"within {duration(ms)}" for name, ms in WITHIN_MS.items()}

_TITLES: Final = {
    "last_seen": "Last seen in", "last_event_ms": "Newest event", "last_event": "Newest event",
    "message_id": "Message", "late_ms": "Late by", "fifo_requests": "FIFO requests", "sqs_cost": "SQS",
    "lambda_cost": "Lambda", "p50_ms": "p50", "p90_ms": "p90", "p99_ms": "p99", "max_ms": "max",
    "waited_p50_ms": "waited", "waited_max_ms": "most",
    **{name: limit.capitalize().replace("1 ", "1\u00a0") for name, limit in WITHIN.items()},
}  # fmt: skip
"""Of columns that are not titled as they are named."""
_TEXTS: Final = ("Status", "Endpoint", "Last seen in", "Delay", "Message", "Reason", "Line", "File")
_INSTANTS: Final = (
    "first_due_ms", "last_due_ms", "last_event_ms", "sent_ms", "due_ms", "received_ms",
)  # fmt: skip
_BAD: Final = ("lost", "unknown", "duplicated", "early", "rejected")
_RARE: Final = (*_BAD[1:], "handed_over", "cancelled")
_ARRIVALS: Final = (
    "delivered", "pending", *WITHIN, "p50_ms", "p90_ms", "p99_ms", "max_ms", "waited_p50_ms", "waited_max_ms",
)  # fmt: skip
_NOT_ARRIVED: Final = (
    "status", "endpoint", "last_seen", "messages", "first_due_ms", "last_due_ms", "last_event_ms",
)  # fmt: skip
_COSTS: Final = (
    "delay", "messages", "parked", "hops", "fifo_requests", "standard_requests", "sqs_cost", "lambda_cost",
    "store_cost",
)  # fmt: skip
_TROUBLE: Final = (
    "message_id", "endpoint", "sent_ms", "due_ms", "received_ms", "late_ms", "waited_ms", "copies",
    "last_seen", "last_event",
)  # fmt: skip


def _grid(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], **titles: str
) -> tuple[list[str], list[tuple[set[int], list[str]]]]:
    """A table's titles, and of each row what is bad in it and its texts."""

    def bad(row: Mapping[str, Any]) -> set[int]:
        if row.get("status") in _BAD and "first_due_ms" in row:
            return {0, 3}
        return {n for n, name in enumerate(names) if name in _BAD and row[name]}

    known = _TITLES | titles
    own = {name: name.removesuffix("_ms").replace("_", " ").capitalize() for name in names}
    texts = [(bad(row), [_text(name, row[name]) for name in names]) for row in rows]
    return [known.get(name, own[name]) for name in names], texts
