"""What became of a received copy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqsdelay.core.received_message import ReceivedMessage


class Status(StrEnum):
    """What became of a copy."""

    HANDED_OVER = "handed-over"
    REQUEUED = "requeued"
    DELIVERED = "delivered"
    FORWARDED = "forwarded"
    """To the parking queue, to be parked with others."""
    PARKED = "parked"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A copy's outcome: settled (the next queue or store confirmed it) or failed and to be received again.

    ``due_ms`` is None for a copy that does not say when it is due. ``delay_seconds`` is the message
    timer of a hand-over, ``late_ms`` how long after its due time the destination will show it (0 to
    999 from rounding up, more after an outage). ``error`` says why a copy failed or was rejected.
    """

    copy: ReceivedMessage
    status: Status
    due_ms: int | None = None
    delay_seconds: int | None = None
    late_ms: int | None = None
    error: str | None = None

    @property
    def settled(self) -> bool:
        return self.status is not Status.FAILED
