"""How long a dispatcher sleeps, and how it is woken."""

from __future__ import annotations

import threading
from typing import Final

BUSY_PAUSE_SECONDS: Final = 0.1
OUTAGE_PAUSE_SECONDS: Final = 1.0
_STOP_LOOK_SECONDS: Final = 0.5


def seconds_to_sleep(
    next_due_ms: int | None, now_ms: int, *, ahead_ms: int, at_most: float
) -> float:
    """How long a dispatcher that found nothing may sleep: until the next is due, never negative.

    If something is already due, another dispatcher has it: look again shortly.
    """
    if next_due_ms is None:
        return at_most
    remaining = (next_due_ms - ahead_ms - now_ms) / 1000
    return min(at_most, remaining if remaining > 0 else BUSY_PAUSE_SECONDS)


def wait_for(wake: threading.Event, stop: threading.Event, seconds: float) -> None:
    """Sleep, checking now and then whether to stop. Setting the system clock has no effect."""
    while seconds > 0 and not stop.is_set():
        if wake.wait(min(seconds, _STOP_LOOK_SECONDS)):
            return
        seconds -= _STOP_LOOK_SECONDS
