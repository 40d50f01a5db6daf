"""The page: one HTML file, with few figures and short lists, whatever the size of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sqsdelay.core.delay import utc
from sqsdelay.core.readable import age
from sqsdelay.cost import Prices, dollars
from sqsdelay.spark.report import charts
from sqsdelay.spark.report.tables import HOUR_MS, WITHIN_MS, side_by_side

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

WITHIN: Final = {name: f"within {age(ms // 1000)}" for name, ms in WITHIN_MS.items()}
_TITLES: Final = {
    "last_seen": "Last seen in", "last_event_ms": "Newest event", "last_event": "Newest event",
    "message_id": "Message", "late_ms": "Late by", "fifo_requests": "FIFO requests", "sqs_cost": "SQS",
    "lambda_cost": "Lambda", "p50_ms": "p50", "p90_ms": "p90", "p99_ms": "p99", "max_ms": "max",
    "waited_p50_ms": "waited", "waited_max_ms": "most",
    **{name: limit.capitalize().replace("1 ", "1\u00a0") for name, limit in WITHIN.items()},
}  # fmt: skip
"""Of columns that are not titled as they are named."""
_TEXTS: Final = ("Status", "Endpoint", "Last seen in", "Delay", "Message", "Reason", "Line", "File")
_INSTANTS: Final = ("due_ms", "event_ms", "sent_ms", "received_ms")
"""How their names end; other milliseconds are a length of time."""
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
_TROUBLES: Final = {
    "lost": "status = 'lost'", "duplicated": "duplicated", "early": "early",
    "rejected": "status = 'rejected'",
}  # fmt: skip


def figures_of(tables: Mapping[str, DataFrame]) -> dict[str, Any]:
    """The summary's row of all endpoints, and where messages that have not arrived were seen last."""
    (row,) = _rows(tables["summary"].where("endpoint IS NULL").drop("endpoint"))
    worst = F.expr("array_position(array('lost', 'unknown', 'pending'), status)")
    worst_first = tables["last_seen"].sort(worst, F.desc("messages"), "endpoint", "last_seen")
    return row | {"last_seen": _rows(worst_first.limit(MOST_LISTED))}


def render(
    figures: Mapping[str, Any],
    tables: Mapping[str, DataFrame],
    prices: Prices,
    ledger: str,
    *,
    moment_hours: int,
    store: str,
) -> str:
    """The page's text. What stands in the ledger is shown as text, whatever it is."""
    reach_ms = max(0, figures["p99_ms"] or 0)
    width_ms = next((ms for ms in _BIN_MS if reach_ms < MOST_BINS * ms), _BIN_MS[-1])
    ends = reach_ms // width_ms + 1
    place = F.expr(f"least(floor(greatest(value, -1) / {width_ms}), {ends}) AS place")
    late = tables["spread"].where("figure = 'late_ms'").groupBy(place)
    moment_ms = moment_hours * HOUR_MS
    moments = tables["arrivals"].where("table = 'moments'").sort("hour")
    by_band = tables["cost"].groupBy("band", "delay").agg(*[F.sum(n).alias(n) for n in _COSTS[1:]])
    by_size = tables["summary"].where("endpoint IS NOT NULL").sort(F.desc("messages"), "endpoint")
    first = tables["messages"].sort("due_ms", "endpoint", "message_id")
    asked = {
        "late": late.agg(F.sum("number").alias("number")),
        "moments": moments.selectExpr("*", f"hour * {moment_ms} AS at_ms"),
        "waiting": tables["waiting"].sort("at_ms"),
        "costs": by_band.sort(F.asc_nulls_last("band")),
        "by_endpoint": by_size.limit(MOST_ENDPOINTS),
        "by_delay": tables["cohorts"].where("endpoint IS NULL").sort("band"),
        "bad_lines": tables["bad_lines"].limit(MOST_LISTED),
    }
    # None is looked for where there is none.
    kinds = {name: told for name, told in _TROUBLES.items() if figures[name]}
    asked |= {name: first.where(told).limit(MOST_LISTED) for name, told in kinds.items()}
    rows = side_by_side(lambda name: _rows(asked[name]), asked)
    loader = PackageLoader("sqsdelay.spark.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters["text"] = _text
    counts = {row["place"]: row["number"] for row in rows["late"]}
    bands = [(band["delay"], [band[name] for name in _COSTS[-3:]]) for band in rows["costs"]]
    # Of what there is none of, no column.
    there = ["messages", "lost", *[name for name in _RARE if figures[name]], *_ARRIVALS]
    return environment.get_template("report.html").render(
        ledger=ledger,
        figures=figures,
        prices=prices,
        store=store,
        grace=f"{figures['grace_seconds']:,} s",
        moment=age(moment_ms // 1000),
        within=WITHIN,
        most_listed=MOST_LISTED,
        most_endpoints=MOST_ENDPOINTS,
        texts=_TEXTS,
        not_arrived=_grid(figures["last_seen"], _NOT_ARRIVED),
        by_endpoint=_grid(rows["by_endpoint"], ["endpoint", *there]),
        by_delay=_grid(rows["by_delay"], ["delay", *there]),
        costs=_grid(rows["costs"], _COSTS, store_cost=store),
        sqs_cost=sum(band["sqs_cost"] for band in rows["costs"]),
        troubles={
            name: _grid(rows[name], [*_TROUBLE, "reason"] if name == "rejected" else _TROUBLE)
            for name in kinds
        },
        bad_lines=_grid(rows["bad_lines"], ("line", "reason", "file")),
        charts={
            "lateness": charts.lateness_chart(counts, width_ms, ends),
            "moments": charts.moments_chart(rows["moments"], moment_ms=moment_ms, within=WITHIN),
            "waiting": charts.waiting_chart(rows["waiting"]),
            "cost": charts.cost_chart(bands, prices.currency, store),
        },
    )


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.collect()]


def _text(value: Any, name: str = "") -> str:
    """A value of a table for people, by its column."""
    if value in (None, ""):
        return "unknown" if name == "delay" else "-"
    if isinstance(value, str):
        shown = value if name != "line" or len(value) <= 200 else f"{value[:200]}…"
        return shown.capitalize() if name == "status" else shown
    if name.endswith(_INSTANTS):
        return f"{utc(value):%Y-%m-%d %H:%M:%S}"
    if name in WITHIN:  # Not 100 % unless it is all.
        return f"{math.floor(value * 10_000) / 100:.2f} %" if value < 1 else "100 %"
    if name.endswith("_cost"):
        return dollars(Fraction(value))
    if not name.endswith("_ms"):
        return f"{value:,.0f}"
    return f"{value:,.0f} ms" if abs(value) < 10_000 else f"{value / 1000:,.1f} s"


def _grid(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], **titles: str
) -> tuple[list[str], list[list[tuple[str, bool]]]]:
    """A table's titles, and of each row the texts, and whether they are bad."""

    def bad(row: Mapping[str, Any], name: str) -> bool:
        counted = name in _BAD and bool(row[name])
        return row.get("status") in _BAD if name in ("status", "messages") else counted

    known = {name: name.removesuffix("_ms").replace("_", " ").capitalize() for name in names}
    known |= _TITLES | titles
    texts = [[(_text(row[name], name), bad(row, name)) for name in names] for row in rows]
    return [known[name] for name in names], texts
