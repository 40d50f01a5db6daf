"""How a sender sends; its public constructors make one of their arguments and pass it on whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqsdelay.core.coalescing import checked_linger
from sqsdelay.core.hop import check_hop, checked_max_delay
from sqsdelay.errors import InvalidSetting
from sqsdelay.ledger.events import Ledger
from sqsdelay.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.parking.settings import ParkingSettings
from sqsdelay.ports.queues import LargeBodies
from sqsdelay.ports.tracing import Tracing

DEFAULT_CONCURRENCY: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """The settings of a sender; `sqsdelay.DelaySender` says what they mean.

    With a store it is idempotent in any case: it sees what was cancelled or rescheduled.

    Raises:
        ConfigurationError: a setting out of range, or a hop without a delay queue.
    """

    unrestricted: bool = True
    hop_seconds: int = DEFAULT_HOP_SECONDS
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS
    concurrency: int = DEFAULT_CONCURRENCY
    parking: ParkingSettings | None = None
    large_bodies: LargeBodies | None = None
    idempotent: bool = False
    ledger: Ledger | None = None
    linger_ms: float = 0
    tracing: Tracing | None = None

    def __post_init__(self) -> None:
        check_hop(self.hop_seconds)
        checked_max_delay(self.max_delay_seconds)
        checked_linger(self.linger_ms)
        if self.concurrency < 1:
            raise InvalidSetting(f"concurrency={self.concurrency}; use 1 or more")
        if not self.unrestricted and self.hop_seconds != DEFAULT_HOP_SECONDS:
            raise InvalidSetting(
                f"hop_seconds={self.hop_seconds} with unrestricted=False; "
                "without a delay queue there is no hop; leave hop_seconds out"
            )
