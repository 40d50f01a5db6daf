"""Delay arithmetic: what a caller gives becomes milliseconds, never rounded down; when a message is due, what
a hop does with it, and when a schedule fires."""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqsdelay.errors import InvalidDelay, InvalidSetting
from sqsdelay.limits import MAX_DUE_MS, MAX_MESSAGE_TIMER_SECONDS

Delay = timedelta | int | float
"""A delay: a ``timedelta``, or seconds, whole or fractional."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def delay_ms(delay: Delay) -> int:
    """Milliseconds of ``delay``, rounded up. Raises InvalidDelay: negative, not finite, not a number of
    seconds, or past the year 9999."""
    if isinstance(delay, timedelta):
        milliseconds = -1 if delay < timedelta(0) else -(-(delay // _MICROSECOND) // 1000)
    elif isinstance(delay, bool) or not isinstance(delay, int | float):
        raise InvalidDelay(
            f"is a {type(delay).__name__}; give a timedelta or seconds (int or float)", delay=delay
        )
    elif isinstance(delay, float) and not math.isfinite(delay):
        raise InvalidDelay("is not finite; give a timedelta or seconds", delay=delay)
    elif abs(delay) > MAX_DUE_MS:
        # Not shown as it is: Python refuses to print an int of more than 4,300 digits.
        raise InvalidDelay(
            f"delay of more than {MAX_DUE_MS} s ends after the year 9999; give a shorter delay"
            if delay > 0
            else "delay is negative; use 0 or more (what was due in the past is sent at once)"
        )
    else:
        milliseconds = delay * 1000 if isinstance(delay, int) else math.ceil(delay * 1000)
    if milliseconds < 0 or (isinstance(delay, int | float) and delay < 0):
        raise InvalidDelay(
            "is negative; use 0 or more (what was due in the past is sent at once)", delay=delay
        )
    if milliseconds > MAX_DUE_MS:
        raise InvalidDelay(
            f"is longer than {MAX_DUE_MS} ms, which ends after the year 9999; give a shorter delay",
            delay=delay,
        )
    return milliseconds


def due_at_ms(due_at: datetime) -> int:
    """Epoch milliseconds of an absolute due time, rounded up. A past one is fine: one before 1970 is 0, since
    all are overdue alike. Raises InvalidDelay: no time zone, or no ``datetime``."""
    if not isinstance(due_at, datetime):
        raise InvalidDelay(f"is a {type(due_at).__name__}; give a datetime", due_at=due_at)
    if due_at.utcoffset() is None:
        raise InvalidDelay(
            "has no time zone; give one, e.g. datetime(..., tzinfo=timezone.utc)",
            due_at=due_at.isoformat(),
        )
    return max(0, -(-((due_at - EPOCH) // _MICROSECOND) // 1000))


def checked_due_ms(due_ms: int) -> int:
    """``due_ms`` itself, if some clock can still show it. Raises InvalidDelay: it lies after the year
    9999."""
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

    Units are taken in capitals, too, but for ``M``, which ISO 8601 has for months and minutes alike. Raises
    InvalidDelay: anything else; months and years have no fixed length and are refused."""
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
    """An ISO 8601 instant with its offset: ``2027-01-31T09:00:00Z``, ``…+02:00``. Raises InvalidDelay: not
    ISO 8601, or no time zone."""
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


@dataclass(frozen=True, slots=True)
class DueTime:
    """A delay counted from a now, or an absolute time; with neither, the message is due at once."""

    delay_ms: int | None = None
    at_ms: int | None = None

    @property
    def given(self) -> bool:
        """Whether the sender gave either."""
        return self.delay_ms is not None or self.absolute

    @property
    def absolute(self) -> bool:
        """Whether it is independent of the now it is counted from."""
        return self.at_ms is not None

    def due_ms(self, now_ms: int) -> int:
        """Epoch milliseconds, counted from ``now_ms``. Raises InvalidDelay: it lies after the year 9999."""
        return checked_due_ms(now_ms + (self.delay_ms or 0) if self.at_ms is None else self.at_ms)


def due_time(delay: Delay | None, due_at: datetime | None) -> DueTime:
    """What a sender gave; see `Message` for the arguments. Raises InvalidDelay: both are given, or the one
    given is not valid."""
    if delay is not None and due_at is not None:
        raise InvalidDelay("delay and due_at are both given; give only one")
    return DueTime(
        None if delay is None else delay_ms(delay), None if due_at is None else due_at_ms(due_at)
    )


@dataclass(frozen=True, slots=True)
class HandOver:
    """Send to the endpoint's own queue with this message timer."""

    delay_seconds: int


@dataclass(frozen=True, slots=True)
class Requeue:
    """Send back to the delay queue for another hop."""

    remaining_seconds: int


@dataclass(frozen=True, slots=True)
class Park:
    """Move to the store, which costs less than the hops that remain."""

    remaining_seconds: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Move to the error queue: the message does not say when it is due."""

    reason: str


Decision = HandOver | Requeue | Park


def check_hop(hop_seconds: int) -> None:
    """Refuse a hop length that no delay queue can have. Raises ConfigurationError: outside 1 to 900
    seconds."""
    if not 1 <= hop_seconds <= MAX_MESSAGE_TIMER_SECONDS:
        raise InvalidSetting(
            f"use 1 to {MAX_MESSAGE_TIMER_SECONDS}, the delay queue's delivery delay",
            hop_seconds=hop_seconds,
        )


def checked_max_delay(seconds: int) -> int:
    """``seconds`` itself, if an endpoint can be limited to it. Raises ConfigurationError: below what one
    message timer holds, or past the year 9999; no whole number."""
    most = MAX_DUE_MS // 1000
    # From a settings file it may be anything.
    whole = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not whole or not MAX_MESSAGE_TIMER_SECONDS <= seconds <= most:
        raise InvalidSetting(
            f"use {MAX_MESSAGE_TIMER_SECONDS} (what plain SQS delays) to {most} (the year 9999)",
            max_delay_seconds=seconds,
        )
    return seconds


def too_far(due_ms: int, now_ms: int, max_delay_seconds: int) -> str | None:
    """Why a due time is farther ahead than an endpoint accepts; None if it is not."""
    remaining = seconds_until(due_ms, now_ms)
    if remaining <= max_delay_seconds:
        return None
    return (
        f"due in {remaining} s, at {due_ms} ms; this endpoint allows delays of up to {max_delay_seconds} s; "
        "shorten it, or raise max_delay_seconds of both the sender and the delay consumer "
        "(consume --max-delay, -c maxDelay=)"
    )


def decide(
    due_ms: int, now_ms: int, *, hop_seconds: int, park_after_seconds: int | None = None
) -> Decision:
    """Hand over when what remains, in whole seconds rounded up, fits one message timer of a hop. Both times
    are the broker's. Park what remains longer than ``park_after_seconds``, None where there is no store."""
    remaining = seconds_until(due_ms, now_ms)
    if remaining <= hop_seconds:
        return HandOver(remaining)
    if park_after_seconds is not None and remaining > park_after_seconds:
        return Park(remaining)
    return Requeue(remaining)


CREATION_SECONDS: Final = 60
"""No schedule fires earlier than this after it was made: the time until it takes effect is not
documented."""

VISIBLE_SECONDS: Final = 840
"""So long before it is due, what a schedule has sent becomes visible in the parking queue: what is left
fits a message timer, and a run that fails is made up for by the next. A schedule fires up to a minute
late. Source: EventBridge Scheduler User Guide, "Schedule types": 60 seconds of precision."""

SOONEST_SECONDS: Final = VISIBLE_SECONDS + MAX_MESSAGE_TIMER_SECONDS + CREATION_SECONDS
"""How far ahead a message must be due to wait as a schedule: half an hour."""


def firing_second(message_id: str, due_ms: int) -> int:
    """When the schedule of a message fires, epoch seconds.

    Spread by the hash of the id over what a message timer holds, which hides the message until
    `VISIBLE_SECONDS` before it is due: a million due in one second need 1,111 invocations a second.
    """
    spread = zlib.crc32(message_id.encode("utf-8", "surrogatepass")) % MAX_MESSAGE_TIMER_SECONDS
    return due_ms // 1000 - VISIBLE_SECONDS - spread


def hidden_seconds(due_ms: int, *, fires_at: int) -> int:
    """The message timer of what a schedule sends when it fires at this epoch second."""
    return max(0, due_ms // 1000 - VISIBLE_SECONDS - fires_at)
