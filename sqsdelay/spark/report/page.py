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
    by_size = tables["summary"].where("endpoint IS NOT NULL").sort(F.desc("messages"), "endpoint")
    # Side by side: each is a small job, and most of its time is Spark's planning.
    with ThreadPoolExecutor() as pool:
        moments = pool.submit(_moments, tables["arrivals"], moment_ms)
        lateness = pool.submit(_lateness, tables["spread"], figures)
        troubles = pool.submit(_troubles, tables["messages"], figures)
        costs = pool.submit(_costs, tables["cost"])
        waiting = pool.submit(tables["waiting"].sort("at_ms").collect)
        endpoints = pool.submit(_rows, by_size, MOST_ENDPOINTS)
        cohorts = _rows(tables["cohorts"].where("endpoint IS NULL").sort("band"), len(BANDS) + 1)
        bad_lines = _rows(tables["bad_lines"], MOST_LISTED) if figures.bad_lines else []
    blocks: dict[str, Any] = {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "undefined": StrictUndefined,
    }
    loader = PackageLoader("sqsdelay.spark.report")
    environment = Environment(loader=loader, autoescape=True, **blocks)
    environment.filters |= {"whole": _whole, "ms": _ms, "share": _share, "money": _money}
    parts = ("sqs_cost", "lambda_cost", "store_cost")
    bands = [(band["delay"], [band[name] for name in parts]) for band in costs.result()]
    charts = {
        "lateness": lateness.result(),
        "moments": moments_chart(moments.result(), moment_ms=moment_ms, within=WITHIN),
        "waiting": waiting_chart([(row.at_ms, row.waiting) for row in waiting.result()]),
        "cost": cost_chart(bands, prices.currency, store),
    }
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
        by_endpoint=_grid(endpoints.result(), _arrivals("Endpoint", "endpoint", figures)),
        by_delay=_grid(cohorts, _arrivals("Delay", "delay", figures)),
        costs=_grid(costs.result(), [*_COSTS, (store, "store_cost", _money)]),
        totals={name: sum(band[name] for band in costs.result()) for name in _SUMMED},
        troubles={
            kind: _grid(rows, [*_TROUBLE, *_REASON] if kind == "rejected" else _TROUBLE)
            for kind, rows in troubles.result().items()
        },
        bad_lines=_grid(bad_lines, [*_of(_short, "line"), *_REASON, *_of(str, "file")]),
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


def _costs(cost: DataFrame) -> list[dict[str, Any]]:
    grouped = cost.groupBy("band", "delay").agg(*[F.sum(name).alias(name) for name in _SUMMED])
    return _rows(grouped.sort(F.asc_nulls_last("band")), len(BANDS) + 1)


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


def _instant(ms: int | None) -> str:
    return _NONE if ms is None else f"{utc(ms):%Y-%m-%d %H:%M:%S}"


def _money(amount: Any) -> str:
    return dollars(Fraction(amount))


def _named(text: str | None) -> str:
    return text or "unknown"


def _known(text: str | None) -> str:
    return text or _NONE


def _short(line: str) -> str:
    return line if len(line) <= 200 else f"{line[:200]}…"


_NONE: Final = "-"
WITHIN: Final = {name: f"within {duration(ms)}" for name, ms in WITHIN_MS.items()}

_Column = tuple[str, str, Callable[[Any], str]]
"""Title, name in the row, and how it is shown."""

_TEXTS: Final = (
    "Status", "Endpoint", "Last seen in", "Delay", "Message", "Last seen", "Reason", "Line", "File",
)  # fmt: skip
_BAD: Final = ("lost", "unknown", "duplicated", "early", "rejected")


def _of(show: Callable[[Any], str], *names: str) -> list[_Column]:
    """Columns under their own names."""
    titles = (name.removesuffix("_ms").replace("_", " ").capitalize() for name in names)
    return [(title, name, show) for title, name in zip(titles, names, strict=True)]


_NOT_ARRIVED: Final[Sequence[_Column]] = (
    *_of(str.capitalize, "status"), *_of(str, "endpoint"), ("Last seen in", "last_seen", _known),
    *_of(_whole, "messages"), *_of(_instant, "first_due_ms", "last_due_ms"),
    ("Newest event", "last_event_ms", _instant),
)  # fmt: skip
_COSTS: Final[Sequence[_Column]] = (
    *_of(_named, "delay"), *_of(_whole, "messages", "parked", "hops"),
    ("FIFO requests", "fifo_requests", _whole), *_of(_whole, "standard_requests"),
    ("SQS", "sqs_cost", _money), ("Lambda", "lambda_cost", _money),
)  # fmt: skip
_SUMMED: Final = (*[name for _, name, _ in _COSTS[1:]], "store_cost")
_REASON: Final = _of(_known, "reason")
_TROUBLE: Final[Sequence[_Column]] = (
    ("Message", "message_id", str), *_of(str, "endpoint"), *_of(_instant, "sent_ms", "due_ms", "received_ms"),
    ("Late by", "late_ms", _ms), *_of(_ms, "waited_ms"), *_of(_whole, "copies"),
    *_of(_known, "last_seen"), ("Newest event", "last_event", str),
)  # fmt: skip


def _arrivals(title: str, name: str, figures: Figures) -> list[_Column]:
    """Columns of what came of messages; of what there is none of, none."""
    rare = [*_BAD[1:], "handed_over", "cancelled"]
    there = ["lost", *[each for each in rare if getattr(figures, each)], "delivered", "pending"]
    late = {"p50": "p50_ms", "p90": "p90_ms", "p99": "p99_ms", "max": "max_ms"}
    late |= {"waited": "waited_p50_ms", "most": "waited_max_ms"}
    return [
        (title, name, _named),
        *_of(_whole, "messages", *there),
        *[(limit.capitalize().replace("1 ", "1\u00a0"), n, _share) for n, limit in WITHIN.items()],
        *[(short, each, _ms) for short, each in late.items()],
    ]


def _grid(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[_Column]
) -> tuple[list[str], list[tuple[set[int], list[str]]]]:
    """A table's titles, and of each row what is bad in it and its texts."""

    def bad(row: Mapping[str, Any]) -> set[int]:
        if row.get("status") in _BAD and "first_due_ms" in row:
            return {0, 3}
        return {n for n, (_, name, _) in enumerate(columns) if name in _BAD and row[name]}

    texts = [(bad(row), [show(row[name]) for _, name, show in columns]) for row in rows]
    return [title for title, _, _ in columns], texts
