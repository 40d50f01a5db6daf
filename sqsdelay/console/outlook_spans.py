"""The hours, days and months ahead, as the edges between which due messages are counted."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqsdelay.core.delay import due_at_ms, utc


class Span(StrEnum):
    """How far ahead to look."""

    HOURS = "hours"
    DAYS = "days"
    MONTHS = "months"


class When(StrEnum):
    """Which parked messages to list."""

    OVERDUE = "overdue"
    DAY = "day"


HOURS: Final = 24
DAYS: Final = 30
MONTHS: Final = 12


def edges_of(span: Span, now_ms: int) -> list[int]:
    """1970, now, and the ends of the hours, days or months ahead in UTC: what is overdue comes first."""
    now = utc(now_ms)
    if span is Span.HOURS:
        hour = now.replace(minute=0, second=0, microsecond=0)
        ends = [hour + timedelta(hours=n + 1) for n in range(HOURS)]
    elif span is Span.DAYS:
        day = now.replace(hour=0, minute=0, second=0, microsecond=0)
        ends = [day + timedelta(days=n + 1) for n in range(DAYS)]
    else:
        ends = [_month(now, n + 1) for n in range(MONTHS)]
    return [0, now_ms, *(due_at_ms(end) for end in ends)]


def bounds_of(when: When, now_ms: int) -> tuple[int, int]:
    """From which due time on, and before which: what the outlook counts as that."""
    edges = edges_of(Span.HOURS, now_ms)
    return (edges[0], edges[1]) if when is When.OVERDUE else (edges[1], edges[-1])


def _month(now: datetime, ahead: int) -> datetime:
    """The first of the month so many months ahead."""
    months = now.year * 12 + now.month - 1 + ahead
    return now.replace(
        year=months // 12, month=months % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0
    )
