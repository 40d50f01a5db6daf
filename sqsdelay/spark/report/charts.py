"""The page's plots: SVG that takes its colours from the page, and loads nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from markupsafe import Markup

from sqsdelay.core.delay import utc
from sqsdelay.core.limits import MAX_DUE_MS

_TOP, _BOTTOM, _LEFT, _RIGHT, _HEIGHT = 34, 268, 66, 14, 296
_NARROW, _WIDE = 690, 1280
_MOST_LABELS: Final = 6
_TEXT: Final = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="var(--faint)">{}</text>')
_RULE: Final = Markup('<path d="M{:.1f} {:.1f}H{:.1f}" stroke="var(--line)"/>')
_BAR: Final = Markup('<path d="M{:.1f} {:.1f}V{:.1f}H{:.1f}V{:.1f}z" fill="var(--{})"/>')
_LINE: Final = Markup('<path d="{}" fill="none" stroke="var(--{})" stroke-width="{}"/>')
_PIECE: Final = "M{:.1f} {:.1f}L{:.1f} {:.1f}"
_DOT: Final = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="var(--{})"/>')
_DRAWING: Final = Markup(
    '<svg viewBox="0 0 {width} {height}" id="chart-{name}" role="img" font-size="13" '
    'aria-labelledby="{name}-title {name}-text"><title id="{name}-title">{title}</title>'
    '<desc id="{name}-text">{text}</desc>{parts}</svg>'
)
_Series = tuple[str, str, Sequence[float | None]]
"""What its values are, the page's colour for it, and a value for each place along the axis."""


def _chart(
    name: str,
    title: str,
    text: str,
    unit: str,
    labels: Sequence[str],
    series: Sequence[_Series],
    *,
    lines: bool = False,
    linear: float | None = None,
    wide: bool = False,
) -> Markup:
    """Bars that stand on one another, or lines; ``linear``: above this number heights are logarithmic."""
    values = [value for _, _, each in series for value in each if value is not None]
    totals = [sum(filter(None, place)) for place in zip(*[s[2] for s in series], strict=True)]
    low, high = min([0.0, *values]), max([0.0, *(values if lines else totals)]) * 1.08 or 1.0
    width = _WIDE if wide else _NARROW
    each = (width - _LEFT - _RIGHT) / len(labels)

    def up(value: float) -> float:
        all_ = [low, value, high]
        least, at, most = all_ if linear is None else [math.asinh(each / linear) for each in all_]
        return _BOTTOM - (at - least) / (most - least) * (_BOTTOM - _TOP)

    parts = [_TEXT.format(4, 16, "start", unit)]
    for tick in _ticks(low, high, linear):
        parts.append(_RULE.format(_LEFT, up(tick), width - _RIGHT))
        parts.append(_TEXT.format(_LEFT - 6, up(tick) + 4, "end", f"{tick:,.10g}"))
    for n in range(0, len(labels), math.ceil(len(labels) / (width // 100))):
        parts.append(_TEXT.format(_LEFT + (n + 0.5) * each, _BOTTOM + 20, "middle", labels[n]))
    at = _LEFT + 9.0 * len(unit)
    for named, colour, _ in series if len(series) > 1 else ():
        parts += [_DOT.format(at, 12, 4, colour), _TEXT.format(at + 9, 16, "start", named)]
        at += 8 * len(named) + 30
    below = [0.0] * len(labels)
    for _, colour, heights in series:
        if lines:
            places = enumerate(heights)
            points = [None if h is None else (_LEFT + (n + 0.5) * each, up(h)) for n, h in places]
            path = "".join(_PIECE.format(*a, *b) for a, b in pairwise(points) if a and b)
            parts.append(_LINE.format(path, colour, 1.6))
            parts += [_DOT.format(*point, 2.2, colour) for point in points if point]
            continue
        for n, height in enumerate(heights):
            if height:
                left, start = _LEFT + n * each, up(below[n])
                below[n] += height
                end, right = up(below[n]), left + each * (0.94 if len(labels) < _NARROW / 8 else 1)
                parts.append(_BAR.format(left, start, end, right, start, colour))
    told = {"name": name, "title": title, "text": text, "parts": Markup("").join(parts)}
    return _DRAWING.format(width=width, height=_HEIGHT, **told)


def _ticks(low: float, high: float, linear: float | None) -> list[float]:
    """Round numbers: powers of ten where heights are logarithmic."""
    if linear is not None:
        tens = range(math.ceil(math.log10(linear)), math.floor(math.log10(max(high, -low))) + 1)
        powers = [10.0**n for n in tens if n % math.ceil(len(tens) / _MOST_LABELS) == 0]
        return [each for each in (0.0, *powers, *[-n for n in powers]) if low <= each <= high]
    least = high / _MOST_LABELS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= least * 0.999)
    return [round(n * step, 12) for n in range(math.floor(high / step) + 1)]


def _unit(ms: float) -> tuple[str, int]:
    """What a length of time is named in, and how many milliseconds that is."""
    units = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))
    return next(((name, size) for name, size in units if ms >= 2 * size), ("ms", 1))


def _dated(instants: Sequence[int]) -> list[str]:
    """In as many words as tell them apart."""
    span = instants[-1] - instants[0]
    shape = "%b %d %H:%M" if span > 600_000 else "%H:%M:%S"
    return [f"{utc(ms):{'%Y-%m-%d' if span > 20 * 86_400_000 else shape}}" for ms in instants]


def lateness_chart(counts: Mapping[int, int], width: int, ends: int) -> Markup:
    """Which share of the arrivals was how late: ``counts`` are by the number of the bin, each of so many
    milliseconds; -1 is before the due time, ``ends`` later than all bins."""
    arrived = sum(counts.values())
    if not arrived:
        return Markup()
    before, *shares, after = (100 * counts.get(n, 0) / arrived for n in range(-1, ends + 1))
    unit, size = _unit(width * ends)
    series: list[_Series] = [
        (f"by {unit} late", "good", [0, *shares, 0]),
        (f"early {before:.3g} %", "bad", [before, *[0] * (ends + 1)]),
        (f"later {after:.3g} %", "third", [*[0] * (ends + 1), after]),
    ]
    labels = ["early", *[f"{n * width / size:,.10g}" for n in range(ends)], "later"]
    found = sorted((n, c) for n, c in counts.items() if 0 <= n < ends)
    bins = "".join(f"{width * n:,} to {width * (n + 1):,} ms: {c:,}, " for n, c in found)
    text = f"Of {arrived:,} messages that arrived. early: {counts.get(-1, 0):,}, {bins}"
    text += f"later: {counts.get(ends, 0):,}."
    return _chart("lateness", "Lateness of arrivals", text, "% of all arrivals", labels, series)


def moments_chart(
    moments: Sequence[Mapping[str, Any]], *, moment_ms: int, within: Mapping[str, str]
) -> Markup:
    """Over time: how late half and 99 of 100 arrivals were, and the share that came soon enough of
    those that should have."""
    if not moments:
        return Markup()
    known = {row["at_ms"]: row for row in moments}
    times = range(moments[0]["at_ms"], moments[-1]["at_ms"] + 1, moment_ms)
    labels = _dated([*times, min(times[-1] + moment_ms, MAX_DUE_MS)])[:-1]
    unit, size = _unit(max(row["p99_ms"] or 0 for row in moments))
    # The median is a thousandth of the 99th percentile on a bad day, and both are to be seen.
    least = min((abs(row["p50_ms"]) for row in moments if row["p50_ms"]), default=size)
    linear = min(least, size) / size

    def series(label: str, colour: str, name: str, factor: float) -> _Series:
        found = [known.get(ms, {}).get(name) for ms in times]
        return label, colour, [None if value is None else value * factor for value in found]

    told = (("99 of 100", "third", "p99_ms"), ("half", "good", "p50_ms"))
    late = [series(*each, 1 / size) for each in told]
    colours = zip(within.items(), ("good", "second"), strict=True)
    shares = [series(label, colour, name, 100) for (name, label), colour in colours]
    first, last = (f"{utc(ms):%Y-%m-%d %H:%M}" for ms in (times[0], times[-1]))
    text = f"{len(moments)} spans, the first of {first}, the last of {last}; "
    text += f"{sum(row['lost'] for row in moments):,} messages were lost in them."
    title, level, what = "Lateness over time", "Service level over time", "% of those owed"
    drawn = _chart("moments", title, text, f"{unit} late", labels, late, lines=True, linear=linear)
    return drawn + _chart("service", level, text, what, labels, shares, lines=True)


def waiting_chart(points: Sequence[Mapping[str, int]]) -> Markup:
    if not points:
        return Markup()
    times, counts = ([point[name] for point in points] for name in ("at_ms", "waiting"))
    first, last = (utc(ms).isoformat(timespec="seconds") for ms in (times[0], times[-1]))
    text = f"Messages sent and not yet arrived, from {first} to {last}: at most {max(counts):,}, "
    text += f"{counts[-1]:,} at the end."
    series: list[_Series] = [("", "good", counts)]
    return _chart("waiting", "Pending over time", text, "waiting", _dated(times), series)


def cost_chart(
    bands: Sequence[tuple[str | None, Sequence[float]]], currency: str, store: str
) -> Markup:
    """What each band of delays cost: SQS requests, Lambda, the store."""
    if not bands:
        return Markup()
    names = [name or "unknown" for name, _ in bands]
    parts = (("SQS requests", "good"), ("Lambda", "second"), (store, "third"))
    series = [(*part, [amounts[n] for _, amounts in bands]) for n, part in enumerate(parts)]
    totals = ", ".join(f"{n}: {sum(band[1]):.4g}" for n, band in zip(names, bands, strict=True))
    text = f"Cost in {currency} by delay. {totals}."
    return _chart("cost", "Cost by delay", text, currency, names, series, wide=True)
