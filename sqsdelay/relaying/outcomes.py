"""What a relay is told, and what it tells: its settings, and the outcome of each copy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqsdelay.core.delay import check_hop, check_range, checked_max_delay
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.ledger.events import Ledger
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Tracing

DEFAULT_MAX_RECEIVES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """The settings of a delay consumer's relays; `sqsdelay.DelayConsumer` says what they mean. Raises
    ConfigurationError: a setting out of range."""

    hop_seconds: int = DEFAULT_HOP_SECONDS
    max_receives: int = DEFAULT_MAX_RECEIVES
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS
    parking: ParkingSettings | None = None
    ledger: Ledger | None = None
    tracing: Tracing | None = None

    def __post_init__(self) -> None:
        check_hop(self.hop_seconds)
        checked_max_delay(self.max_delay_seconds)
        check_range(1, max_receives=self.max_receives)


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
