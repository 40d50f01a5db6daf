"""Which messages wait in a store, and in which one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.ports.stores import ParkingPlace

DEFAULT_PARK_AFTER_SECONDS: Final = 9 * DEFAULT_HOP_SECONDS
"""Where hops begin to cost more than a store: with 8 hops and a last message timer ahead, 2.25 hours.

It is ``sqsdelay.cost.break_even_seconds`` at the shipped prices, for a message of 1 KiB, hops in full
batches of ten (at their cheapest) and a DynamoDB store; a test keeps it so. Looking for amendments, a
read unit or more for each hop of a batch, makes hops dearer still: parking from here on never costs more."""

StoreOf = Callable[[str], ParkingPlace]
"""From an endpoint's name to its store."""


@dataclass(frozen=True, slots=True)
class ParkingSettings:
    """Where messages are parked, and which.

    Args:
        store: an endpoint's store, or a function from an endpoint's name to its store.
        after_seconds: messages with more than this remaining are parked.

    Raises:
        ConfigurationError: ``after_seconds`` below 0.
    """

    store: ParkingPlace | StoreOf
    after_seconds: int = DEFAULT_PARK_AFTER_SECONDS

    def __post_init__(self) -> None:
        if self.after_seconds < 0:
            raise InvalidSetting(f"park_after_seconds={self.after_seconds}; use 0 or more")


def parking_settings(
    store: ParkingPlace | StoreOf | None, park_after_seconds: int
) -> ParkingSettings | None:
    """The settings as users give them; None without a store.

    Raises:
        ConfigurationError: ``park_after_seconds`` below 0, or given without a store.
    """
    if store is not None:
        return ParkingSettings(store, park_after_seconds)
    if park_after_seconds != DEFAULT_PARK_AFTER_SECONDS:
        raise InvalidSetting(
            f"park_after_seconds={park_after_seconds} has no effect without a store; give a store, or "
            "leave it out"
        )
    return None
