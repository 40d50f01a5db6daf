"""How a dispatcher works: retries, release ahead, circuit breakers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqsdelay.dispatching.circuit_breakers import (
    DEFAULT_FAILURES_PER_SECOND,
    DEFAULT_TRIGGER_SECONDS,
)
from sqsdelay.errors import InvalidSetting

DEFAULT_BATCH: Final = 500
MAX_POLL_SECONDS: Final = 3600
"""What is due later than this need not wake anyone: PostgreSQL's store counts on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """How a dispatcher works; the defaults are NServiceBus's where it has any.

    Args:
        number_of_retries: further attempts on a message that its destination refused, before it
            goes to the error queue. An outage of the destination counts as no attempt.
        release_ahead_seconds: how long before its due time a message is sent, with a message timer
            for the rest; a released message can no longer be cancelled. The transport's most (900
            on SQS) when left out.
        batch_size: messages claimed at once.
        poll_seconds: the longest sleep; by default the store's own.
        maximum_recovery_failures_per_second: failed attempts to count a message's failure, above
            which the recovery circuit breaker triggers.
        store_breaker_seconds, fetch_breaker_seconds, dispatch_breaker_seconds: how long storing,
            fetching and sending may fail before their circuit breaker triggers.

    Raises:
        ConfigurationError: a value out of range.
    """

    number_of_retries: int = 0
    release_ahead_seconds: int | None = None
    batch_size: int = DEFAULT_BATCH
    poll_seconds: float | None = None
    maximum_recovery_failures_per_second: int = DEFAULT_FAILURES_PER_SECOND
    store_breaker_seconds: float = DEFAULT_TRIGGER_SECONDS
    fetch_breaker_seconds: float = DEFAULT_TRIGGER_SECONDS
    dispatch_breaker_seconds: float = DEFAULT_TRIGGER_SECONDS

    def __post_init__(self) -> None:
        if self.number_of_retries < 0:
            raise InvalidSetting(f"number_of_retries={self.number_of_retries}; use 0 or more")
        if self.batch_size < 1:
            raise InvalidSetting(f"batch_size={self.batch_size}; use 1 or more")
        if self.poll_seconds is not None and not 0 < self.poll_seconds <= MAX_POLL_SECONDS:
            raise InvalidSetting(
                f"poll_seconds={self.poll_seconds}; use more than 0, at most {MAX_POLL_SECONDS}"
            )
