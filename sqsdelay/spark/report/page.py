"""The page: one HTML file with everything in it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sqsdelay.core.delay import utc
from sqsdelay.cost import dollars
from sqsdelay.spark.report.charts import cost_chart, lateness_chart, moments_chart, waiting_chart
from sqsdelay.spark.report.counted import WITHIN_MS
from sqsdelay.spark.report.figures import MOST_ENDPOINTS, MOST_LISTED, Content, duration

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
