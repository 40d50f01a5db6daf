"""Charts as SVG paths in a box of 100 by 100, which the page stretches; their labels are text beside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from sqsdelay.console.costs import DELAYS, Series, in_words
from sqsdelay.console.rendering import at
from sqsdelay.console.schemas import OutlookView, Span
from sqsdelay.core.readable import age


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: where it stands, how high it is, what it says."""

    x: float
    width: float
    height: float
    label: str
    overdue: bool


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars, the number at the top of the scale, and labels under the first, the middle and the last."""

    bars: list[Bar]
    top: int
    labels: list[str]
    summary: str


def outlook_chart(view: OutlookView) -> BarChart | None:
    """Messages due over time; None where nothing is known."""
    if not view.bars:
        return None
    top = _round_up(max((bar.count for bar in view.bars), default=0))
    step = 100 / len(view.bars)
    bars = [
        Bar(
            x=round(n * step + step * 0.1, 3),
            width=round(step * 0.8, 3),
            # One message among thousands must still be seen.
            height=round(max(2.0, 100 * bar.count / top), 3) if bar.count else 0,
            label=f"{'overdue' if bar.overdue else _from(bar.start, view.span)}: {bar.count:,}",
            overdue=bar.overdue,
        )
        for n, bar in enumerate(view.bars)
    ]
    ahead = view.bars[1:]
    middle = ahead[len(ahead) // 2]
    total = sum(bar.count for bar in ahead)
    late = view.bars[0].count
    summary = (
        f"{total:,} messages due in the coming {len(ahead)} {view.span.value}, {late:,} overdue"
    )
    labels = ["now", _from(middle.start, view.span), _from(ahead[-1].end, view.span)]
    return BarChart(bars, top, labels, summary)


def _from(instant: str, span: Span) -> str:
    shown = at(instant)
    return {Span.HOURS: shown[5:16], Span.DAYS: shown[5:10], Span.MONTHS: shown[:7]}[span]


def _round_up(number: int) -> int:
    """The top of a scale: 1, 2 or 5 times a power of ten."""
    if number <= 1:
        return 1
    power: int = 10 ** int(math.log10(number))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= number)


@dataclass(frozen=True, slots=True)
class Line:
    """A strategy's curve."""

    strategy: str
    number: int
    path: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """Curves over delay, both axes logarithmic; ``now`` is where the chosen delay is."""

    lines: list[Line]
    rows: list[tuple[float, str]]
    columns: list[tuple[float, str]]
    now: float


def cost_chart(found: Sequence[Series], delay_seconds: int) -> LineChart:
    """Price of a message over its delay, one curve a strategy."""
    prices = [price for each in found for price in each.prices if price]
    low, high = math.floor(_log(min(prices))), math.ceil(_log(max(prices)))
    first, last = math.log10(DELAYS[0]), math.log10(DELAYS[-1])

    def x(seconds: int) -> float:
        return round(100 * (math.log10(seconds) - first) / (last - first), 3)

    def y(price: Fraction) -> float:
        return round(100 * (high - _log(price)) / (high - low), 3)

    lines = []
    for number, each in enumerate(found):
        path, pen = [], "M"
        for seconds, price in zip(DELAYS, each.prices, strict=True):
            if not price:
                pen = "M"
                continue
            path.append(f"{pen}{x(seconds)} {y(price)}")
            pen = "L"
        lines.append(Line(each.strategy, number, " ".join(path)))
    rows = [
        (round(100 * (high - power) / (high - low), 3), in_words(Fraction(10) ** power))
        for power in range(high, low - 1, -1)
    ]
    marks = (900, 6 * 3600, 86_400, 30 * 86_400, 364 * 86_400, DELAYS[-1])
    columns = [(x(seconds), age(seconds).split(" ")[0] + _unit(seconds)) for seconds in marks]
    chosen = min(max(delay_seconds, DELAYS[0]), DELAYS[-1])
    return LineChart(lines, rows, columns, x(chosen))


def _unit(seconds: int) -> str:
    return " " + age(seconds).split(" ")[1]


def _log(price: Fraction) -> float:
    return math.log10(price.numerator) - math.log10(price.denominator)
