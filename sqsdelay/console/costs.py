"""What delays cost, for the Cost page and for a message about to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Final

from sqsdelay.console.schemas import CostBill, CostLine, CostView
from sqsdelay.cost import Bill, Prices, Workload, bills, dollars, recommend, shipped_prices

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR

DELAYS: Final = (
    900, 1800, _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 3 * _DAY, 7 * _DAY,
    14 * _DAY, 30 * _DAY, 60 * _DAY, 90 * _DAY, 180 * _DAY, 364 * _DAY, 730 * _DAY, 1825 * _DAY,
    3650 * _DAY,
)  # fmt: skip
"""The stops of the slider, and the points of the plot, in seconds. A year less a day: a Step Functions
execution may take a year at most."""

COUNTS: Final = tuple(10**n for n in range(10))
SIZES: Final = (256, 512, 1024, 2048, 4096, 16_384, 65_536, 262_144, 1_000_000)


@cache
def prices() -> Prices:
    """The shipped ones."""
    return shipped_prices()


def cost_view(load: Workload) -> CostView:
    """The bill of every strategy."""
    used = prices()
    return CostView(
        delay_seconds=load.delay_seconds,
        messages=load.messages,
        message_bytes=load.message_bytes,
        batch=load.batch,
        currency=used.currency,
        region=used.region,
        prices_read_on=used.read_on.isoformat(),
        recommended=recommend(load, used).deploy,
        bills=[_bill(bill, load.messages) for bill in bills(load, used)],
    )


def _bill(bill: Bill, messages: int) -> CostBill:
    if bill.impossible is not None:
        return CostBill(strategy=bill.strategy, impossible=bill.impossible)
    return CostBill(
        strategy=bill.strategy,
        for_messages=dollars(bill.for_messages),
        fixed=dollars(bill.fixed),
        total=dollars(bill.total),
        a_message=dollars(bill.for_messages / messages),
        lines=[
            CostLine(
                what=line.what,
                quantity=f"{float(line.quantity):,.6g}",
                unit_price=dollars(line.unit_price),
                amount=dollars(line.amount),
                fixed=line.fixed,
            )
            for line in bill.lines
        ],
    )


@dataclass(frozen=True, slots=True)
class Series:
    """Of one strategy what a message costs at each of `DELAYS`; None where it cannot do that."""

    strategy: str
    prices: tuple[Fraction | None, ...]


def series(load: Workload, left_out: Sequence[str] = ("formula",)) -> list[Series]:
    """Price of a message over its delay, fixed cost not included.

    Args:
        left_out: strategies that nobody can use.
    """
    found: dict[str, list[Fraction | None]] = {}
    for seconds in DELAYS:
        at = Workload(
            delay_seconds=seconds,
            messages=load.messages,
            message_bytes=load.message_bytes,
            batch=load.batch,
            infrequent_access=load.infrequent_access,
        )
        for bill in bills(at, prices()):
            if bill.strategy not in left_out:
                price = None if bill.impossible else bill.for_messages / load.messages
                found.setdefault(bill.strategy, []).append(price)
    return [Series(strategy, tuple(points)) for strategy, points in found.items()]


def price_of_one(strategy: str, *, seconds: int, size: int) -> str | None:
    """What one message costs in a strategy; None where there is no such strategy."""
    load = Workload(delay_seconds=seconds, messages=1, message_bytes=max(1, size))
    for bill in bills(load, prices()):
        if bill.strategy == strategy and bill.impossible is None:
            return dollars(bill.for_messages)
    return None


def in_words(price: Fraction) -> str:
    """A price of a message as people compare them: dollars for a million."""
    million = price * 10**6
    decimal = Decimal(million.numerator) / Decimal(million.denominator)
    return f"${decimal:,.0f}" if million >= 1 else f"${decimal:,.2f}"
