"""What delays cost: exact arithmetic on dated prices."""

from __future__ import annotations

from sqsdelay.cost.prices import Prices, parse_prices, shipped_prices, shipped_text
from sqsdelay.cost.strategies import (
    Recommendation,
    bill,
    bills,
    break_even_seconds,
    documented_formula,
    recommend,
)
from sqsdelay.cost.workload import Bill, Line, Workload, dollars

__all__ = [
    "Bill",
    "Line",
    "Prices",
    "Recommendation",
    "Workload",
    "bill",
    "bills",
    "break_even_seconds",
    "documented_formula",
    "dollars",
    "parse_prices",
    "recommend",
    "shipped_prices",
    "shipped_text",
]
