"""Prices: one dated file, shipped with the package, and the user's own in the same shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from importlib.resources import files
from typing import Any, Final

from sqsdelay.errors import InvalidSetting

_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What one unit costs, exactly, in ``currency``; where and when the prices were read."""

    read_on: date
    region: str
    currency: str
    sqs_standard_request: Fraction
    sqs_fifo_request: Fraction
    lambda_request: Fraction
    lambda_arm64_gb_second: Fraction
    dynamodb_write_unit: Fraction
    dynamodb_read_unit: Fraction
    dynamodb_gb_month: Fraction
    s3_put: Fraction
    s3_get: Fraction
    s3_gb_month: Fraction
    dynamodb_ia_write_unit: Fraction
    dynamodb_ia_read_unit: Fraction
    dynamodb_ia_gb_month: Fraction
    cloudwatch_metric_month: Fraction
    cloudwatch_alarm_month: Fraction
    cloudwatch_dashboard_month: Fraction
    eventbridge_scheduler_invocation: Fraction
    step_functions_transition: Fraction


_PER_MILLION: Final = {
    "sqs_standard_request": "sqs_standard_million_requests",
    "sqs_fifo_request": "sqs_fifo_million_requests",
    "lambda_request": "lambda_million_requests",
    "dynamodb_write_unit": "dynamodb_million_write_units",
    "dynamodb_read_unit": "dynamodb_million_read_units",
    "s3_put": "s3_million_puts",
    "s3_get": "s3_million_gets",
    "dynamodb_ia_write_unit": "dynamodb_ia_million_write_units",
    "dynamodb_ia_read_unit": "dynamodb_ia_million_read_units",
    "eventbridge_scheduler_invocation": "eventbridge_scheduler_million_invocations",
    "step_functions_transition": "step_functions_million_transitions",
}
_ABOUT: Final = frozenset({"read_on", "region", "currency"})


def shipped_prices() -> Prices:
    """The prices that come with sqsdelay, from ``sqsdelay/cost/prices.json``."""
    return parse_prices(shipped_text(), "sqsdelay/cost/prices.json")


def shipped_text() -> str:
    """The shipped price file, as a start for your own."""
    return (files("sqsdelay.cost") / "prices.json").read_text(encoding="utf-8")


def parse_prices(text: str, source: str) -> Prices:
    """The prices of a file's text.

    Args:
        text: JSON in the shape of the shipped file; every price is a decimal number in quotes.
        source: the file's name, for errors.

    Raises:
        ConfigurationError: what is missing or wrong in it.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSetting(f"price file {source} is not JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("prices"), dict):
        raise InvalidSetting(
            f'price file {source} has no object "prices"; see sqsdelay cost --show-prices'
        )
    listed = data["prices"]
    names = {f.name: _PER_MILLION.get(f.name, f.name) for f in fields(Prices)}
    units = {name: listed_as for name, listed_as in names.items() if name not in _ABOUT}
    if unknown := sorted(set(listed) - set(units.values())):
        raise InvalidSetting(
            f"price file {source} names {unknown[0]!r}; known are {', '.join(units.values())}"
        )
    return Prices(
        read_on=_date(data, source),
        region=_text(data, "region", source),
        currency=_text(data, "currency", source),
        **{name: _price(listed, name, listed_as, source) for name, listed_as in units.items()},
    )


def _price(listed: Mapping[str, Any], name: str, listed_as: str, source: str) -> Fraction:
    given = listed.get(listed_as)
    if given is None:
        raise InvalidSetting(f"price file {source} has no {listed_as!r}; add it")
    try:
        # Not a JSON number: 0.0000133334 would lose digits on its way through a float.
        price = Decimal(given) if isinstance(given, str) else Decimal("NaN")
    except InvalidOperation:
        price = Decimal("NaN")
    if not price.is_finite() or price < 0:
        raise InvalidSetting(
            f'price file {source}: {listed_as} is {given!r}; write a decimal in quotes, e.g. "0.40"'
        )
    return Fraction(price) / (_MILLION if name in _PER_MILLION else 1)


def _text(data: Mapping[str, Any], name: str, source: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidSetting(f"price file {source}: {name} is {value!r}; write it as text")
    return value


def _date(data: Mapping[str, Any], source: str) -> date:
    value = data.get("read_on")
    try:
        return date.fromisoformat(value if isinstance(value, str) else "")
    except ValueError as error:
        raise InvalidSetting(
            f'price file {source}: read_on is {value!r}; write the day they were read, "2026-11-20"'
        ) from error
