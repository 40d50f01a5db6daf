"""A timeout manager's waits and limits, and what it tells of messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqsdelay.dispatching.dispatcher import DEFAULT_BATCH
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import MAX_RECEIVE_WAIT_SECONDS, STOP_SECONDS

DEFAULT_OUTAGE_SECONDS: Final = 120.0
"""NServiceBus raises a critical error when its timeout storage has failed for two minutes."""

DEFAULT_ANNOUNCE_AGAIN_SECONDS: Final = 300.0

DEFAULT_WAIT_SECONDS: Final = STOP_SECONDS
"""A stop waits for the poll in hand, since what SQS hands out to a process that has ended comes back three
minutes late. Two receivers so ask 1.3 million times a month (0.52 USD in us-east-1)."""

DEFAULT_RETRIES: Final = 7
"""After 1, 2, 4 … 60 s, so about two minutes: as long as the storage may fail. The seeds name no number."""


class TimeoutStatus(StrEnum):
    """What became of messages."""

    STORED = "stored"
    SENT_ON = "sent-on"
    """Due when it arrived."""
    ANNOUNCED = "announced"
    DISPATCHED = "dispatched"
    DROPPED = "dropped"
    """Announced, but no longer there, or moved to a later due time."""
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """Waits and limits.

    Args:
        outage_seconds: how long the storage may fail before that is a critical error.
        announce_again_seconds: a message that was announced but has not been dispatched for this
            long is dispatched straight from the store.
        number_of_retries: further attempts on a message that its destination refused, or whose
            destination does not exist, before it goes to the error queue; counted in the store.
            An outage of the destination counts as no attempt.
        batch_size: due messages announced at once.
        poll_seconds: the longest sleep between looks for due messages; the store's own if left out.
        wait_seconds: long poll of the receivers, 0 to 20; a stop waits for the one in hand.

    Raises:
        ConfigurationError: a value out of range.
    """

    outage_seconds: float = DEFAULT_OUTAGE_SECONDS
    announce_again_seconds: float = DEFAULT_ANNOUNCE_AGAIN_SECONDS
    number_of_retries: int = DEFAULT_RETRIES
    batch_size: int = DEFAULT_BATCH
    poll_seconds: float | None = None
    wait_seconds: int = DEFAULT_WAIT_SECONDS

    def __post_init__(self) -> None:
        for name in ("outage_seconds", "announce_again_seconds", "batch_size", "poll_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidSetting("use more than 0", **{name: value})
        if self.number_of_retries < 0:
            raise InvalidSetting("use 0 or more", number_of_retries=self.number_of_retries)
        if not 0 <= self.wait_seconds <= MAX_RECEIVE_WAIT_SECONDS:
            raise InvalidSetting(
                f"use 0 to {MAX_RECEIVE_WAIT_SECONDS}", wait_seconds=self.wait_seconds
            )
