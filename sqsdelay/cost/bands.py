"""Bands of delays: what a report and an estimate sum up by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR


@dataclass(frozen=True, slots=True)
class Band:
    """Delays above the band before it, up to ``most_seconds``; the last band has no end."""

    name: str
    most_seconds: int | None


BANDS: Final = (
    Band("up to 1 min", 60),
    Band("up to 15 min", MAX_MESSAGE_TIMER_SECONDS),
    Band("up to 1 h", _HOUR),
    Band("up to 6 h", 6 * _HOUR),
    Band("up to 1 day", _DAY),
    Band("up to 7 days", 7 * _DAY),
    Band("up to 30 days", 30 * _DAY),
    Band("up to 1 year", 365 * _DAY),
    Band("above 1 year", None),
)
"""The first two are message timers: they need no hop."""


def band_of(delay_seconds: int) -> int:
    """The position in ``BANDS`` of a delay."""
    return next(
        place
        for place, band in enumerate(BANDS)
        if band.most_seconds is None or delay_seconds <= band.most_seconds
    )
