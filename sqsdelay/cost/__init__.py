"""What delays cost: exact arithmetic on dated prices."""

from __future__ import annotations

from sqsdelay.cost.prices import Prices, parse_prices, shipped_prices, shipped_text
from sqsdelay.cost.strategies import bill, bills, recommend
from sqsdelay.cost.workload import Bill, Line, Workload, dollars

__all__ = [
    "Bill",
    "Line",
    "Prices",
    "Workload",
    "bill",
    "bills",
    "dollars",
    "parse_prices",
    "recommend",
    "shipped_prices",
    "shipped_text",
]
