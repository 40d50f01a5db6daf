"""The page's plots: SVG that takes its colours from the page, and loads nothing."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import nan
from typing import Any, Final
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sqsdelay.core.delay import utc

_COLOURS: Final = {
    "#010101": "ink",
    "#020202": "faint",
    "#030303": "line",
    "#040404": "good",
    "#050505": "bad",
    "#060606": "second",
    "#070707": "third",
}
"""Stand-ins in the drawing for the page's own colours, which differ by day and by night."""
_OF: Final = {name: stand_in for stand_in, name in _COLOURS.items()}

_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sqsdelay",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": _OF["ink"],
    "text.parse_math": False,
    "axes.edgecolor": _OF["line"],
    "axes.labelcolor": _OF["faint"],
    "axes.axisbelow": True,
    "xtick.color": _OF["faint"],
    "ytick.color": _OF["faint"],
    "grid.color": _OF["line"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "timezone": "UTC",
}
_INCHES: Final = (7.2, 3.2)
_WIDE_INCHES: Final = (13.0, 3.4)
_ROOM_ABOVE: Final = 1.15
"""Of the highest bar, for its figure."""
_LABEL_BARS: Final = 3
"""Bars that the label of the first or the last reaches over, where there are many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Arrivals by lateness: before the due time, in bins of equal width from it, and later."""

    width_ms: int
    early: int
    bins: Sequence[int]
    later: int


def lateness_chart(histogram: Histogram) -> str:
    """Which share of the arrivals was how late, in bins of equal width."""
    counts = [histogram.early, *histogram.bins, histogram.later]
    arrived = sum(counts)
    if not arrived:
        return ""
    width, ends = histogram.width_ms, len(histogram.bins)
    unit, size = _unit(width * ends)

    def draw(axes: Axes) -> None:
        colours = [_OF["bad"], *[_OF["good"]] * ends, _OF["third"]]
        places = range(-1, ends + 1)
        shown = [(p, n, c) for p, n, c in zip(places, counts, colours, strict=True) if n]
        axes.bar(
            [place * width / size for place, _, _ in shown],
            [100 * count / arrived for _, count, _ in shown],
            width=0.94 * width / size,
            align="edge",
            color=[colour for _, _, colour in shown],
        )
        axes.set_xlim(
            -(1.2 if histogram.early else 0.2) * width / size, (ends + 1.2) * width / size
        )
        axes.set_ylim(0, 100 * max(counts) / arrived * _ROOM_ABOVE)
        axes.set_ylabel("of all arrivals")
        axes.set_xlabel(f"{unit} late")
        axes.xaxis.set_major_locator(MaxNLocator(8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g} %"))
        for place, count, name in (
            (-1, histogram.early, "early"),
            (ends, histogram.later, "later"),
        ):
            if count:
                # Above the bars that it reaches over, too.
                near = counts[:_LABEL_BARS] if place < 0 else counts[-_LABEL_BARS:]
                axes.annotate(
                    f"{name}\n{100 * count / arrived:.3g} %",
                    ((place + 0.5) * width / size, 100 * max(near) / arrived),
                    (0, 3),
                    textcoords="offset points",
                    ha="center",
                )

    bins = [
        f"{width * n:,} to {width * (n + 1):,} ms: {c:,}" for n, c in enumerate(counts[1:-1]) if c
    ]
    bins = [f"early: {histogram.early:,}", *bins, f"later: {histogram.later:,}"]
    text = f"Of {arrived:,} messages that arrived. {', '.join(bins)}."
    return _svg("lateness", "Lateness of arrivals", text, draw)


def moments_chart(
    moments: Sequence[Mapping[str, Any]], *, moment_ms: int, within: Mapping[str, str]
) -> str:
    """Over time: how late half and 99 of 100 arrivals were, and the share that came soon enough of
    those that should have."""
    if not moments:
        return ""
    times = [utc(row["at_ms"] + moment_ms // 2) for row in moments]
    unit, size = _unit(max([row["p99_ms"] or 0 for row in moments]))

    def draw(late: Axes, service: Axes) -> None:
        for name, label, colour in (("p99_ms", "99 of 100", "third"), ("p50_ms", "half", "good")):
            values = [nan if row[name] is None else row[name] / size for row in moments]
            late.plot(times, values, color=_OF[colour], label=label, **_POINTS)  # type: ignore[arg-type]
        late.set_ylabel(f"{unit} late, at most")
        # The median is a thousandth of the 99th percentile on a bad day, and both are to be seen.
        least = min((abs(row["p50_ms"]) for row in moments if row["p50_ms"]), default=size)
        late.set_yscale("symlog", linthresh=min(least, size) / size)
        late.set_ylim(bottom=min(0, late.get_ylim()[0]))
        late.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.3g}"))
        for (name, label), colour in zip(within.items(), ("good", "second"), strict=True):
            values = [nan if row[name] is None else 100 * row[name] for row in moments]
            service.plot(times, values, color=_OF[colour], label=label, **_POINTS)  # type: ignore[arg-type]
        service.set_ylabel("of those owed")
        service.set_ylim(-4, 104)
        service.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g} %"))
        half = timedelta(milliseconds=moment_ms / 2)
        for axes in (late, service):
            axes.set_xlim(times[0] - half, times[-1] + half)  # type: ignore[arg-type]
            _dated(axes)
            axes.legend(
                frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0
            )

    missed = sum(row["lost"] for row in moments)
    text = (
        f"{len(moments)} spans, the first of {utc(moments[0]['at_ms']):%Y-%m-%d %H:%M}, the last of "
        f"{utc(moments[-1]['at_ms']):%Y-%m-%d %H:%M}; {missed:,} messages were lost in them."
    )
    return _svg(
        "moments", "Lateness and service level over time", text, draw, _WIDE_INCHES, columns=2
    )


_POINTS: Final[dict[str, Any]] = {"marker": "o", "markersize": 3, "linewidth": 1.6}


def _dated(axes: Axes) -> None:
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlabel("UTC")


def _unit(ms: int) -> tuple[str, int]:
    """What a length of time is named in, and how many milliseconds that is."""
    units = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))
    return next(((name, size) for name, size in units if ms >= 2 * size), ("ms", 1))


def waiting_chart(points: Sequence[tuple[int, int]]) -> str:
    """How many messages waited, over time."""
    if not points:
        return ""
    most = max(count for _, count in points)

    def draw(axes: Axes) -> None:
        times = [utc(at_ms) for at_ms, _ in points]
        counts = [count for _, count in points]
        axes.fill_between(times, counts, step="post", color=_OF["good"], alpha=0.25, linewidth=0)  # type: ignore[arg-type]
        axes.step(times, counts, where="post", color=_OF["good"], linewidth=1.6)  # type: ignore[arg-type]
        _dated(axes)
        axes.set_ylim(0, max(1, most) * _ROOM_ABOVE)
        axes.set_ylabel("waiting")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))

    first, last = (
        utc(at_ms).isoformat(timespec="seconds") for at_ms in (points[0][0], points[-1][0])
    )
    summary = f"Messages sent and not yet arrived, from {first} to {last}: at most {most:,}, "
    return _svg("waiting", "Pending over time", f"{summary}{points[-1][1]:,} at the end.", draw)


def cost_chart(
    bands: Sequence[tuple[str | None, Sequence[float]]], currency: str, store: str
) -> str:
    """What each band of delays cost: SQS requests, Lambda, the store."""
    if not bands:
        return ""
    names = [name or "unknown" for name, _ in bands]
    parts = (("SQS requests", "good"), ("Lambda", "second"), (store, "third"))
    totals = [sum(amounts) for _, amounts in bands]

    def draw(axes: Axes) -> None:
        below = [0.0] * len(bands)
        for place, (part, colour) in enumerate(parts):
            amounts = [each[place] for _, each in bands]
            axes.bar(names, amounts, bottom=below, color=_OF[colour], label=part)
            below = [low + amount for low, amount in zip(below, amounts, strict=True)]
        axes.set_ylim(0, max(totals) * _ROOM_ABOVE or 1)
        axes.set_ylabel(currency)
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)

    summary = ", ".join(f"{name}: {total:.4g}" for name, total in zip(names, totals, strict=True))
    return _svg(
        "cost", "Cost by delay", f"Cost in {currency} by delay. {summary}.", draw, _WIDE_INCHES
    )


def _svg(
    name: str,
    title: str,
    description: str,
    draw: Callable[..., None],
    inches: tuple[float, float] = _INCHES,
    columns: int = 1,
) -> str:
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=inches, layout="constrained")
        figure.patch.set_alpha(0)
        plots = figure.subplots(1, columns, squeeze=False)[0]
        for axes in plots:
            axes.patch.set_alpha(0)
            axes.grid(axis="y", linewidth=0.8)
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        draw(*plots)
        drawn = io.StringIO()
        FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None, "Creator": None})
    return _inlined(drawn.getvalue(), name, title, description)


def _inlined(svg: str, name: str, title: str, description: str) -> str:
    """The drawing as part of a page: named for readers, with ids and colours of its own."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", body)
    for stand_in, colour in _COLOURS.items():
        body = body.replace(stand_in, f"var(--{colour})")
    opening, rest = body.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', opening)
    assert box is not None, "matplotlib's SVG has no viewBox"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box[0]} id="chart-{name}" role="img" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-text">{escape(description)}</desc>{rest}'
    )
