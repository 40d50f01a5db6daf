"""The page's plots: SVG that takes its colours from the page, and loads nothing."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
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


def lateness_chart(bars: Sequence[tuple[str, int]]) -> str:
    """How many messages were how late, from the first bar with any to the last."""
    used = [place for place, (_, count) in enumerate(bars) if count]
    if not used:
        return ""
    shown = bars[min(used) : max(used) + 1]

    def draw(axes: Axes) -> None:
        colours = [_OF["bad"] if name == "early" else _OF["good"] for name, _ in shown]
        drawn = axes.bar([name for name, _ in shown], [count for _, count in shown], color=colours)
        axes.bar_label(drawn, [f"{count:,}" if count else "" for _, count in shown], padding=3)
        axes.set_ylim(0, max(count for _, count in shown) * _ROOM_ABOVE)
        axes.set_ylabel("messages")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        if len(shown) > 5:
            axes.tick_params("x", rotation=30)

    summary = ", ".join(f"{name}: {count:,}" for name, count in shown if count)
    return _svg("lateness", "Lateness distribution", f"Messages by lateness. {summary}.", draw)


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
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        axes.set_ylim(0, max(1, most) * _ROOM_ABOVE)
        axes.set_ylabel("waiting")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlabel("UTC")

    first, last = (
        utc(at_ms).isoformat(timespec="seconds") for at_ms in (points[0][0], points[-1][0])
    )
    summary = f"Messages sent and not yet arrived, from {first} to {last}: at most {most:,}, "
    return _svg("waiting", "Pending over time", f"{summary}{points[-1][1]:,} at the end.", draw)


def cost_chart(bands: Sequence[tuple[str, Sequence[float]]], currency: str) -> str:
    """What each band of delays cost: SQS requests, Lambda, the store."""
    if not bands:
        return ""
    names = [name for name, _ in bands]
    parts = (("SQS requests", "good"), ("Lambda", "second"), ("DynamoDB", "third"))
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
    draw: Callable[[Axes], None],
    inches: tuple[float, float] = _INCHES,
) -> str:
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=inches, layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        axes.grid(axis="y", linewidth=0.8)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        draw(axes)
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
