"""A bill: quantities times unit prices, exact."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One position. ``fixed``: it falls due with any number of messages, for the whole delay."""

    what: str
    quantity: Fraction | int
    unit_price: Fraction
    fixed: bool = False

    @property
    def amount(self) -> Fraction:
        return self.quantity * self.unit_price


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What one way of delaying costs. ``impossible`` says why a service cannot do it at all."""

    strategy: str
    lines: tuple[Line, ...] = ()
    impossible: str | None = None

    @property
    def for_messages(self) -> Fraction:
        """What grows with the messages."""
        return sum((line.amount for line in self.lines if not line.fixed), Fraction(0))

    @property
    def fixed(self) -> Fraction:
        """What the running system costs meanwhile."""
        return sum((line.amount for line in self.lines if line.fixed), Fraction(0))

    @property
    def total(self) -> Fraction:
        return self.for_messages + self.fixed


def dollars(amount: Fraction) -> str:
    """An amount for people: cents from a dollar on, four significant digits below."""
    decimal = Decimal(amount.numerator) / Decimal(amount.denominator)
    if amount >= 1 or amount == 0:
        return f"{decimal:,.2f}"
    places = -decimal.adjusted() + 3
    text = f"{round(decimal, places):f}"
    return text.rstrip("0").rstrip(".")
