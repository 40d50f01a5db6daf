"""What a million messages cost by their delay, in each place they can wait: a table and a plot.

Rewrites them in docs/cost.md and docs/cost-by-delay.svg, from sqsdelay's own price file: the same each time.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from benchmarks.support.blocks import rewritten
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS
from sqsdelay.cost import Prices, Workload, bill, shipped_prices

DOCS: Final = Path(__file__).parents[1] / "docs"
DOCUMENT: Final = DOCS / "cost.md"
PLOT: Final = DOCS / "cost-by-delay.svg"
SCRIPT: Final = "benchmarks.cost_by_delay"

HOP: Final = DEFAULT_HOP_SECONDS
HOUR: Final = 3600
DAY: Final = 24 * HOUR
YEAR: Final = 365 * DAY
MESSAGE_BYTES: Final = 200
MILLION: Final = 10**6

WAYS: Final[Mapping[str, tuple[str, bool]]] = {
    "hops": ("relay", False),
    "DynamoDB": ("parked", False),
    "DynamoDB, Standard-IA": ("parked", True),
    "S3": ("parked-in-s3-by-functions", False),
    "Scheduler": ("scheduled", False),
    "Scheduler, by the sender": ("scheduled-by-sender", False),
    "EventBridge Scheduler alone": ("eventbridge-scheduler", False),
}
"""Each way's strategy, and whether its table is of the class for infrequent access."""

DELAYS: Final = {
    "30 min": HOUR // 2,
    "1 h": HOUR,
    "3 h": 3 * HOUR,
    "1 day": DAY,
    "30 days": 30 * DAY,
    "1 year": YEAR,
    "5 years": 5 * YEAR,
}
CROSSINGS: Final = (
    ("DynamoDB", "hops"),
    ("S3", "hops"),
    ("DynamoDB, Standard-IA", "DynamoDB"),
    ("Scheduler", "DynamoDB"),
    ("Scheduler", "DynamoDB, Standard-IA"),
)
"""The cheaper one of each pair in the long run, and the other."""

_PLOTTED: Final = [round(10 ** (step / 8)) for step in range(24, 66)]
"""From a quarter of an hour to four years."""

_TICKS: Final = {900: "15 min", HOUR: "1 h", DAY: "1 day", 30 * DAY: "30 days", YEAR: "1 year"}


def paid(
    way: str, delay_seconds: int, prices: Prices, *, batch: int = 10
) -> tuple[Fraction, Fraction]:
    """Dollars for a million messages, and for what runs meanwhile."""
    strategy, infrequent_access = WAYS[way]
    load = Workload(
        delay_seconds=delay_seconds,
        messages=MILLION,
        message_bytes=MESSAGE_BYTES,
        batch=batch,
        infrequent_access=infrequent_access,
    )
    found = bill(strategy, load, prices)
    return found.for_messages, found.fixed


def tables(prices: Prices) -> dict[str, str]:
    """Every table by the name of its block."""
    return {
        "together": by_delay(prices, batch=10),
        "apart": by_delay(prices, batch=1),
        "crossings": crossings(prices),
        "parking": parking(prices),
    }


def by_delay(prices: Prices, *, batch: int) -> str:
    """A line for each delay, the cheapest in bold; and what runs, for a month."""
    lines = ["| | " + " | ".join(WAYS) + " |", "|---|" + "--:|" * len(WAYS)]
    for name, delay_seconds in DELAYS.items():
        amounts = [paid(way, delay_seconds, prices, batch=batch)[0] for way in WAYS]
        least = min(amounts)
        cells = [f"**{_usd(a)}**" if a == least else _usd(a) for a in amounts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    month = [_usd(paid(way, YEAR, prices, batch=batch)[1] / 12) for way in WAYS]
    lines.append("| *besides, a month* | " + " | ".join(month) + " |")
    return "\n".join(lines)


def crossings(prices: Prices) -> str:
    """From which delay on one way costs less than another, due together and apart."""
    lines = ["| cheaper | than | due together | due apart |", "|---|---|--:|--:|"]
    for cheaper, than in CROSSINGS:
        found = [_first_cheaper(cheaper, than, prices, batch=batch) for batch in (10, 1)]
        lines.append(f"| {cheaper} | {than} | {found[0]} | {found[1]} |")
    return "\n".join(lines)


def parking(prices: Prices) -> str:
    """From which remaining delay on parking pays, by size."""
    lines = ["| message | hops one at a time | hops in batches of 10 |", "|---|---|---|"]
    for size, name in ((200, "200 bytes"), (1024, "1 KiB"), (4096, "4 KiB"), (65_536, "64 KiB")):
        hours = [break_even_seconds(prices, message_bytes=size, batch=b) / HOUR for b in (1, 10)]
        lines.append(f"| {name} | {hours[0]:g} h | {hours[1]:g} h |")
    return "\n".join(lines)


def _first_cheaper(cheaper: str, than: str, prices: Prices, *, batch: int) -> str:
    """The least delay, in hours up to two days, else in days; none within ten years is "never"."""
    delays = [*range(HOUR, 2 * DAY, HOUR), *range(2 * DAY, 10 * YEAR, DAY)]

    def pays(delay_seconds: int) -> bool:
        ours, theirs = (paid(way, delay_seconds, prices, batch=batch)[0] for way in (cheaper, than))
        return ours < theirs

    first = bisect_left(delays, True, key=pays)
    if first == len(delays):
        return "never"
    hours = delays[first] // HOUR
    return f"{hours} h" if hours < 48 else f"{hours // 24} days"


def break_even_seconds(prices: Prices, *, message_bytes: int = 1024, batch: int = 10) -> int:
    """The shortest remaining delay, in whole hops, at which further hops cost more than a DynamoDB store,
    without what runs anyway, and without logs: of full batches and a store of any sort parking from there on
    never costs more."""
    for delay_seconds in range(2 * HOP, YEAR, HOP):
        load = Workload(
            delay_seconds=delay_seconds,
            messages=1_000,
            message_bytes=message_bytes,
            batch=batch,
            park_after_seconds=0,
        )
        stored, hops = (bill(code, load, prices) for code in ("stored", "relay"))
        if stored.for_messages < hops.for_messages - hops.part("Logs"):
            return delay_seconds
    raise ValueError("at these prices hops cost less than a store for a year; do not park")


def _usd(amount: Fraction) -> str:
    return f"{float(amount):,.2f}" if amount < 100 else f"{float(amount):,.0f}"


def draw(prices: Prices, file: Path) -> None:
    """Write the plot."""
    import matplotlib as mpl  # half a second, which the tables do without
    from matplotlib.figure import Figure

    # Text as text keeps the file small; the salt makes its ids the same each time.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": file.stem, "font.size": 9}):
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        axes: Any = figure.subplots()
        for way, style in zip(WAYS, ("-", "-", "--", "-", "-", "-.", ":"), strict=True):
            amounts = [float(paid(way, delay, prices)[0]) for delay in _PLOTTED]
            axes.plot(_PLOTTED, amounts, style, label=way, linewidth=1.6)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(0.1, 100)
        axes.set_xticks(list(_TICKS), list(_TICKS.values()))
        axes.minorticks_off()
        axes.set_xlabel("delay")
        axes.set_ylabel(f"{prices.currency} for a million messages")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", fontsize=8, frameon=False)
        figure.savefig(file, metadata={"Date": None, "Creator": None})


def main() -> int:
    prices = shipped_prices()
    document = DOCUMENT.read_text()
    for name, made in tables(prices).items():
        print(f"{name}\n\n{made}\n")
        document = rewritten(document, SCRIPT, name, made)
    DOCUMENT.write_text(document)
    draw(prices, PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
