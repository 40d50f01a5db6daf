"""What delays cost: exact arithmetic on dated prices."""

from __future__ import annotations

from sqsdelay.cost.bill import Bill, Line, dollars
from sqsdelay.cost.break_even import break_even_seconds
from sqsdelay.cost.prices import Prices, parse_prices, shipped_prices, shipped_text
from sqsdelay.cost.recommendation import Recommendation, recommend
from sqsdelay.cost.strategies import bills, documented_formula
from sqsdelay.cost.workload import Workload

__all__ = [
    "Bill",
    "Line",
    "Prices",
    "Recommendation",
    "Workload",
    "bills",
    "break_even_seconds",
    "documented_formula",
    "dollars",
    "parse_prices",
    "recommend",
    "shipped_prices",
    "shipped_text",
]
