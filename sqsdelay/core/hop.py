"""The decision at a hop: a pure function of due time, now and the hop's length."""

from __future__ import annotations

from dataclasses import dataclass

from sqsdelay.core.delay import seconds_until
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import MAX_DUE_MS, MAX_MESSAGE_TIMER_SECONDS


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
    """Refuse a hop length that no delay queue can have.

    Raises:
        ConfigurationError: outside 1 to 900 seconds.
    """
    if not 1 <= hop_seconds <= MAX_MESSAGE_TIMER_SECONDS:
        raise InvalidSetting(
            f"hop_seconds={hop_seconds}; use 1 to {MAX_MESSAGE_TIMER_SECONDS}, "
            "the delay queue's delivery delay"
        )


def checked_max_delay(seconds: int) -> int:
    """``seconds`` itself, if an endpoint can be limited to it.

    Raises:
        ConfigurationError: below what one message timer holds, or past the year 9999; no whole number.
    """
    most = MAX_DUE_MS // 1000
    # From a settings file it may be anything.
    whole = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not whole or not MAX_MESSAGE_TIMER_SECONDS <= seconds <= most:
        raise InvalidSetting(
            f"max_delay_seconds={seconds}; use {MAX_MESSAGE_TIMER_SECONDS} (what plain SQS delays) to "
            f"{most} (the year 9999)"
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
    """Hand over when what remains, in whole seconds rounded up, fits one message timer of a hop.

    Args:
        due_ms: when the message should arrive, epoch milliseconds, broker's clock.
        now_ms: the broker's now, epoch milliseconds.
        hop_seconds: the delay queue's delivery delay.
        park_after_seconds: park what remains longer than this; None where there is no store.
    """
    remaining = seconds_until(due_ms, now_ms)
    if remaining <= hop_seconds:
        return HandOver(remaining)
    if park_after_seconds is not None and remaining > park_after_seconds:
        return Park(remaining)
    return Requeue(remaining)
