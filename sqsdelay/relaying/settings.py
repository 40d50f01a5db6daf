"""How a delay consumer relays; worker and function pass it on whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqsdelay.core.hop import check_hop, checked_max_delay
from sqsdelay.errors import InvalidSetting
from sqsdelay.ledger.events import Ledger
from sqsdelay.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.parking.settings import ParkingSettings
from sqsdelay.ports.tracing import Tracing

DEFAULT_MAX_RECEIVES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """The settings of a delay consumer's relays.

    Args:
        hop_seconds: the delay queue's delivery delay, 1 to 900.
        max_receives: receives after which a copy that SQS keeps refusing goes to the error queue.
        max_delay_seconds: messages due farther ahead go to the error queue.
        parking: where to park messages and look for amendments; without it neither is done.
        through_parking_queue: what is to be parked goes to the endpoint's parking queue, for a `Parker`
            to park many at once.
        ledger: where to record what became of copies; None records nothing.
        tracing: traces deliveries; None makes no spans.

    Raises:
        ConfigurationError: a setting out of range.
    """

    hop_seconds: int = DEFAULT_HOP_SECONDS
    max_receives: int = DEFAULT_MAX_RECEIVES
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS
    parking: ParkingSettings | None = None
    through_parking_queue: bool = False
    ledger: Ledger | None = None
    tracing: Tracing | None = None

    def __post_init__(self) -> None:
        check_hop(self.hop_seconds)
        checked_max_delay(self.max_delay_seconds)
        if self.max_receives < 1:
            raise InvalidSetting(f"max_receives={self.max_receives}; use 1 or more")
        if self.through_parking_queue and self.parking is None:
            raise InvalidSetting(
                "through_parking_queue has no effect without parking; give both, or neither"
            )
