"""When a message is due: its sender's ``delay`` or ``due_at``, read in one place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqsdelay.core.delay import Delay, checked_due_ms, delay_ms, due_at_ms
from sqsdelay.errors import InvalidDelay


@dataclass(frozen=True, slots=True)
class DueTime:
    """A delay counted from a now, or an absolute time; with neither, the message is due at once.

    Args:
        delay_ms: milliseconds.
        at_ms: epoch milliseconds.
    """

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
        """Epoch milliseconds, counted from ``now_ms``.

        Raises:
            InvalidDelay: it lies after the year 9999.
        """
        return checked_due_ms(now_ms + (self.delay_ms or 0) if self.at_ms is None else self.at_ms)


def due_time(delay: Delay | None, due_at: datetime | None) -> DueTime:
    """What a sender gave; see `Message` for the arguments.

    Raises:
        InvalidDelay: both are given, or the one given is not valid.
    """
    if delay is not None and due_at is not None:
        raise InvalidDelay("delay and due_at are both given; give only one")
    return DueTime(
        None if delay is None else delay_ms(delay), None if due_at is None else due_at_ms(due_at)
    )
