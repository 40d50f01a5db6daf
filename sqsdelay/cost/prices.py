"""Prices: one dated file, shipped with the package, and the user's own in the same shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from importlib.resources import files
from typing import Any, Final

from sqsdelay.errors import InvalidSetting

_MILLION_OF: Final = "_million_"


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
    cloudwatch_logs_gb: Fraction
    eventbridge_scheduler_invocation: Fraction
    step_functions_transition: Fraction


def _unit(listed_as: str) -> str:
    """The one of which a file lists a million: ``s3_put`` of ``s3_million_puts``."""
    singular = listed_as.removesuffix("s") if _MILLION_OF in listed_as else listed_as
    return singular.replace(_MILLION_OF, "_")


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
        return _parsed(text)
    except ValueError as error:
        raise InvalidSetting(f"price file {source}{error}") from error


def _parsed(text: str) -> Prices:
    """The prices; ValueError says behind the file's name what is wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f" is not JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(listed := data.get("prices"), dict):
        raise ValueError(' has no object "prices"; see sqsdelay cost --show-prices')
    units = {_unit(listed_as): listed_as for listed_as in json.loads(shipped_text())["prices"]}
    if unknown := sorted(set(listed) - set(units.values())):
        raise ValueError(f" names {unknown[0]!r}; known are {', '.join(units.values())}")
    told: dict[str, Any] = {name: data.get(name) for name in ("read_on", "region", "currency")}
    for name, value in told.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f": {name} is {value!r}; write it as text")
    try:
        told["read_on"] = date.fromisoformat(data["read_on"])
    except ValueError as error:
        wrong = f": read_on is {data['read_on']!r}; write the day they were read"
        raise ValueError(f'{wrong}, "2026-11-20"') from error
    return Prices(**told | {name: _price(listed, listed_as) for name, listed_as in units.items()})


def _price(listed: Mapping[str, Any], listed_as: str) -> Fraction:
    given = listed.get(listed_as)
    if given is None:
        raise ValueError(f" has no {listed_as!r}; add it")
    try:
        # Not a JSON number: 0.0000133334 would lose digits on its way through a float.
        price = Decimal(given) if isinstance(given, str) else Decimal("NaN")
    except InvalidOperation:
        price = Decimal("NaN")
    if not price.is_finite() or price < 0:
        raise ValueError(f': {listed_as} is {given!r}; write a decimal in quotes, e.g. "0.40"')
    return Fraction(price) / (10**6 if _MILLION_OF in listed_as else 1)
