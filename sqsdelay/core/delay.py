"""Delay arithmetic: what a caller gives becomes milliseconds, exactly, and is never rounded down."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sqsdelay.errors import InvalidDelay
from sqsdelay.limits import MAX_DUE_MS

Delay = timedelta | int | float
"""A delay: a ``timedelta``, or seconds, whole or fractional."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def delay_ms(delay: Delay) -> int:
    """Milliseconds of ``delay``, rounded up.

    Raises:
        InvalidDelay: negative, not finite, not a number of seconds, or past the year 9999.
    """
    if isinstance(delay, timedelta):
        milliseconds = -1 if delay < timedelta(0) else -(-(delay // _MICROSECOND) // 1000)
    elif isinstance(delay, bool) or not isinstance(delay, int | float):
        raise InvalidDelay(
            f"delay={delay!r} is a {type(delay).__name__}; give a timedelta or seconds (int or float)"
        )
    elif isinstance(delay, float) and not math.isfinite(delay):
        raise InvalidDelay(f"delay={delay!r} is not finite; give a timedelta or seconds")
    elif abs(delay) > MAX_DUE_MS:
        # Not shown as it is: Python refuses to print an int of more than 4,300 digits.
        raise InvalidDelay(
            f"delay of more than {MAX_DUE_MS} s ends after the year 9999; give a shorter delay"
            if delay > 0
            else "delay is negative; use 0 or more (a due_at in the past is sent at once)"
        )
    else:
        milliseconds = delay * 1000 if isinstance(delay, int) else math.ceil(delay * 1000)
    if milliseconds < 0 or (isinstance(delay, int | float) and delay < 0):
        raise InvalidDelay(
            f"delay={delay!r} is negative; use 0 or more (a due_at in the past is sent at once)"
        )
    if milliseconds > MAX_DUE_MS:
        raise InvalidDelay(
            f"delay={delay!r} is longer than {MAX_DUE_MS} ms, which ends after the year 9999; "
            "give a shorter delay"
        )
    return milliseconds


def due_at_ms(due_at: datetime) -> int:
    """Epoch milliseconds of an absolute due time, rounded up. A past one is fine: one before 1970
    is 0, since all are overdue alike.

    Raises:
        InvalidDelay: no time zone, or no ``datetime``.
    """
    if not isinstance(due_at, datetime):
        raise InvalidDelay(f"due_at={due_at!r} is a {type(due_at).__name__}; give a datetime")
    if due_at.utcoffset() is None:
        raise InvalidDelay(
            f"due_at={due_at.isoformat()} has no time zone; "
            "give one, e.g. datetime(..., tzinfo=timezone.utc)"
        )
    return max(0, -(-((due_at - EPOCH) // _MICROSECOND) // 1000))


def checked_due_ms(due_ms: int) -> int:
    """``due_ms`` itself, if some clock can still show it.

    Raises:
        InvalidDelay: it lies after the year 9999.
    """
    if due_ms > MAX_DUE_MS:
        raise InvalidDelay(
            f"due time {due_ms} ms is after the limit of {MAX_DUE_MS} ms (end of the year 9999); "
            "give a shorter delay"
        )
    return due_ms


def seconds_until(due_ms: int, now_ms: int) -> int:
    """Whole seconds from now until due, rounded up, 0 when it has passed."""
    return max(0, -((now_ms - due_ms) // 1000))


def utc(epoch_ms: int) -> datetime:
    """The aware UTC ``datetime`` of epoch milliseconds."""
    return EPOCH + timedelta(milliseconds=epoch_ms)


_UNIT_MS: Final = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)"
_COMPACT: Final = re.compile(
    "".join(f"(?:{_NUMBER}{unit})?" for unit in ("w", "d", "h", "m(?!s)", "s", "ms")), re.ASCII
)
_MONTHS: Final = re.compile(r"[\d.]M(?![sS])", re.ASCII)
"""``6M`` is six months to whoever writes it so, and would be six minutes."""
_ISO: Final = re.compile(
    rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.ASCII
)
_SECONDS: Final = re.compile(_NUMBER, re.ASCII)


def parse_delay(text: str) -> timedelta:
    """A delay as people write it: ``32m5s``, ``1d12h``, ``90`` (seconds), ``PT32M5S``, ``P30D``.

    Units are taken in capitals, too, but for ``M``, which ISO 8601 has for months and minutes alike.

    Raises:
        InvalidDelay: anything else; months and years have no fixed length and are refused.
    """
    stripped = text.strip()
    units = ["w", "d", "h", "m", "s", "ms"]
    if match := _SECONDS.fullmatch(stripped):
        parts = [("s", match.group(1))]
    elif (match := _ISO.fullmatch(stripped.upper())) or (
        match := None if _MONTHS.search(stripped) else _COMPACT.fullmatch(stripped.lower())
    ):
        parts = [
            (unit, number)
            for unit, number in zip(units, match.groups(), strict=False)
            if number is not None
        ]
    else:
        parts = []
    if not parts:
        raise InvalidDelay(
            f"delay {text!r} is not valid; use seconds (90), 32m5s (m: minutes), 1d12h, or "
            "ISO 8601 (PT32M5S); for months and years give a due time"
        )
    milliseconds = sum(_product_ms(number, _UNIT_MS[unit]) for unit, number in parts)
    if milliseconds > MAX_DUE_MS:
        raise InvalidDelay(f"delay {text!r} ends after the year 9999, the latest due time")
    return timedelta(milliseconds=milliseconds)


def _product_ms(number: str, unit_ms: int) -> int:
    """``number`` (decimal text) times ``unit_ms``, exact, rounded up to a millisecond."""
    whole, _, fraction = number.partition(".")
    scale: int = 10 ** len(fraction)
    return -(-(int(whole + fraction) * unit_ms) // scale)


def parse_due_at(text: str) -> datetime:
    """An ISO 8601 instant with its offset: ``2027-01-31T09:00:00Z``, ``…+02:00``.

    Raises:
        InvalidDelay: not ISO 8601, or no time zone.
    """
    try:
        due_at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidDelay(
            f"due time {text!r} is not ISO 8601; write e.g. 2027-01-31T09:00:00Z"
        ) from error
    if due_at.tzinfo is None:
        raise InvalidDelay(f"due time {text!r} has no time zone; write e.g. 2027-01-31T09:00:00Z")
    due_at_ms(due_at)
    return due_at
