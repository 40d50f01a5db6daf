"""What is to be delayed, what one request, item or invocation of it amounts to, and bands of delays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqsdelay.core.message import size_of, string
from sqsdelay.core.wire import DELAY_SECONDS, DUE_AT
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    MAX_BATCH_BYTES,
    MAX_BATCH_ENTRIES,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_TIMER_SECONDS,
)

CHUNK_BYTES: Final = 64 * 1024
"""Each chunk of a request's payload is billed as a request. Source: aws.amazon.com/sqs/pricing."""

DELAY_ATTRIBUTES_BYTES: Final = size_of(
    "", {DELAY_SECONDS: string("31536000"), DUE_AT: string("1767225600000")}
)
"""What the delay itself adds to a message in the delay queue."""

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR

MAX_MESSAGES: Final = 10**12
MAX_DELAY_SECONDS: Final = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Messages of one size, delayed equally long.

    Args:
        delay_seconds: the delay of each.
        messages: how many, 1 to 10^12.
        message_bytes: body and attributes of one, in UTF-8.
        batch: messages that share a request, 1 to 10. Ten at best, when many are due together;
            one when they are due apart.
        hop_seconds: the delay queue's delivery delay.
        infrequent_access: a store's table is of the class Standard-IA.

    Raises:
        ConfigurationError: a value out of range.
    """

    delay_seconds: int
    messages: int = 1
    message_bytes: int = 1024
    batch: int = 1
    hop_seconds: int = DEFAULT_HOP_SECONDS
    infrequent_access: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (
            ("delay_seconds", 0, MAX_DELAY_SECONDS),
            ("messages", 1, MAX_MESSAGES),
            ("message_bytes", 1, MAX_MESSAGE_BYTES - DELAY_ATTRIBUTES_BYTES),
            ("batch", 1, MAX_BATCH_ENTRIES),
            ("hop_seconds", 1, MAX_MESSAGE_TIMER_SECONDS),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InvalidSetting(f"{name}={value!r}; use a whole number, {least} to {most}")

    @property
    def hops(self) -> int:
        """Passes through the delay queue: all but what one message timer holds at the end."""
        return max(0, -(-self.delay_seconds // self.hop_seconds) - 1)

    @property
    def requests(self) -> int:
        """Requests that carry all messages once, each as full as ``batch`` and 1 MiB allow."""
        return -(-self.messages // self._per_request)

    @property
    def billed_requests(self) -> int:
        """The same requests as billed: one for each 64 KiB begun of a payload."""
        full, rest = divmod(self.messages, self._per_request)
        return full * self._chunks(self._per_request) + (self._chunks(rest) if rest else 0)

    @property
    def _bytes(self) -> int:
        return self.message_bytes + DELAY_ATTRIBUTES_BYTES

    @property
    def _per_request(self) -> int:
        return min(self.batch, MAX_BATCH_BYTES // self._bytes)

    def _chunks(self, messages: int) -> int:
        return -(-messages * self._bytes // CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class Band:
    """Delays above the band before it, up to ``most_seconds``; the last band has no end."""

    name: str
    most_seconds: int | None


BANDS: Final = (
    Band("up to 1 min", 60),
    Band("up to 15 min", MAX_MESSAGE_TIMER_SECONDS),
    Band("up to 1 h", _HOUR),
    Band("up to 6 h", 6 * _HOUR),
    Band("up to 1 day", _DAY),
    Band("up to 7 days", 7 * _DAY),
    Band("up to 30 days", 30 * _DAY),
    Band("up to 1 year", 365 * _DAY),
    Band("above 1 year", None),
)
"""The first two are message timers: they need no hop."""


def band_of(delay_seconds: int) -> int:
    """The position in ``BANDS`` of a delay."""
    return next(
        place
        for place, band in enumerate(BANDS)
        if band.most_seconds is None or delay_seconds <= band.most_seconds
    )
