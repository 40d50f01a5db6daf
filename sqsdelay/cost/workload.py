"""What is to be delayed, what one request, item or invocation of it amounts to, and bands of delays."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Final, NamedTuple

from sqsdelay.core import limits
from sqsdelay.core.message import DELAY_SECONDS, DUE_AT, size_of, string
from sqsdelay.cost.prices import Prices
from sqsdelay.errors import InvalidSetting
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS

CHUNK_BYTES: Final = 64 * 1024
"""Each chunk of a request's payload is billed as a request. Source: aws.amazon.com/sqs/pricing."""
DELAY_ATTRIBUTES_BYTES: Final = size_of(
    "", {DELAY_SECONDS: string("31536000"), DUE_AT: string("1767225600000")}
)
"""What the delay itself adds to a message in the delay queue."""
_DAY: Final = 86_400
TOGETHER: Final = 1_000
"""Messages that fall due in the same minute, where they are sent in tens and it is not said."""
MAX_MESSAGES: Final = 10**12
MAX_DELAY_SECONDS: Final = limits.MAX_DUE_MS // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Messages of one size, delayed equally long.

    Args:
        delay_seconds: the delay of each.
        messages: how many, 1 to 10^12.
        message_bytes: body and attributes of one, in UTF-8.
        batch: messages that are sent in one request, 1 to 10.
        due_together: how many fall due in the same minute (in an S3 store, in the same ten minutes), and
            are released together; 1 where they are due apart. When left out, `TOGETHER` for those sent
            in tens, else as many as ``batch``.
        hop_seconds: the delay queue's delivery delay.
        park_after_seconds: what has more than this remaining is parked where there is a store.
        own_ids: the senders name the messages' ids, which then do not tell their due times.
        infrequent_access: a store's table is of the class Standard-IA.

    Raises:
        ConfigurationError: a value out of range.
    """

    delay_seconds: int
    messages: int = 1
    message_bytes: int = 1024
    batch: int = 1
    due_together: int | None = None
    hop_seconds: int = limits.DEFAULT_HOP_SECONDS
    park_after_seconds: int = DEFAULT_PARK_AFTER_SECONDS
    own_ids: bool = False
    infrequent_access: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (
            ("delay_seconds", 0, MAX_DELAY_SECONDS),
            ("messages", 1, MAX_MESSAGES),
            ("message_bytes", 1, limits.MAX_MESSAGE_BYTES - DELAY_ATTRIBUTES_BYTES),
            ("batch", 1, limits.MAX_BATCH_ENTRIES),
            ("due_together", 1, MAX_MESSAGES),
            ("hop_seconds", 1, limits.MAX_MESSAGE_TIMER_SECONDS),
            ("park_after_seconds", 0, MAX_DELAY_SECONDS),
        ):
            value = getattr(self, name)
            if value is None and name == "due_together":
                continue
            if type(value) is not int or not least <= value <= most:
                raise InvalidSetting(f"use a whole number, {least} to {most}", **{name: value})

    @property
    def hops(self) -> int:
        """Passes through the delay queue: all but what one message timer holds at the end."""
        return max(0, -(-self.delay_seconds // self.hop_seconds) - 1)

    @property
    def billed_requests(self) -> int:
        """Sends of all, each as full as ``batch`` and 1 MiB allow: one for each 64 KiB begun of a payload."""
        return self._billed(min(self.batch, limits.MAX_BATCH_BYTES // self._bytes))

    @property
    def billed_receives(self) -> int:
        """Receives as billed: what was sent together is received together, whatever its size."""
        return self._billed(self.batch)

    @property
    def in_a_run(self) -> int:
        """Messages that a function is given at once: those received together, that an invocation holds."""
        return min(self.batch, limits.MAX_INVOCATION_BYTES // self._bytes)

    @property
    def runs(self) -> int:
        """Runs of a function that is given all messages once."""
        full, rest = divmod(self.messages, self.batch)
        return full * -(-self.batch // self.in_a_run) + -(-rest // self.in_a_run)

    @property
    def together(self) -> int:
        """Messages of one release."""
        return min(self.messages, self.due_together or (TOGETHER if self.in_tens else self.batch))

    @property
    def in_tens(self) -> bool:
        """Whether they are sent in full batches, which come with many others."""
        return self.batch == limits.MAX_BATCH_ENTRIES

    def arrivals(self, seconds: int) -> Fraction | int:
        """Into how many spans of so many seconds the requests fall: what is due in the same minute was sent
        in the same minute, evenly. Full batches come with so many others that it is not counted."""
        if self.in_tens:
            return 0
        requests = -(-self.together // self.batch)
        in_span = -(-seconds * requests // 60)
        return self.releases * -(-requests // in_span)

    @property
    def releases(self) -> Fraction:
        """How often so many are released."""
        return Fraction(self.messages, self.together)

    def billed_in_tens(self, messages: int) -> int:
        """Requests, as billed, of so many messages that share them as far as they can."""
        return replace(self, messages=messages, batch=limits.MAX_BATCH_ENTRIES).billed_requests

    def in_full_requests(self, messages: int) -> Fraction:
        """So many messages, or ten for each request as billed: what a rate in tens is for."""
        return Fraction(max(messages, self.billed_in_tens(messages) * limits.MAX_BATCH_ENTRIES))

    @property
    def _bytes(self) -> int:
        return self.message_bytes + DELAY_ATTRIBUTES_BYTES

    def _billed(self, at_once: int) -> int:
        full, rest = divmod(self.messages, at_once)
        chunks, of_rest = (-(-n * self._bytes // CHUNK_BYTES) for n in (at_once, rest))
        return full * chunks + of_rest


class Band(NamedTuple):
    """Delays above the band before it, up to ``most_seconds``; the last band has no end."""

    name: str
    most_seconds: int | None


BANDS: Final = (
    Band("up to 1 min", 60),
    Band("up to 15 min", limits.MAX_MESSAGE_TIMER_SECONDS),
    Band("up to 1 h", 3600),
    Band("up to 6 h", 6 * 3600),
    Band("up to 1 day", _DAY),
    Band("up to 7 days", 7 * _DAY),
    Band("up to 30 days", 30 * _DAY),
    Band("up to 1 year", 365 * _DAY),
    Band("above 1 year", None),
)


def band_of(delay_seconds: int) -> int:
    """The position in ``BANDS`` of a delay."""
    return bisect_left([band.most_seconds or MAX_DELAY_SECONDS for band in BANDS], delay_seconds)


@dataclass(frozen=True, slots=True)
class Line:
    """One position. ``fixed``: it falls due with any number of messages, for the whole delay."""

    what: str
    quantity: Fraction | int
    unit_price: Fraction
    fixed: bool = False

    @property
    def amount(self) -> Fraction:
        return self.quantity * self.unit_price


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What one way of delaying, named in words, costs. ``impossible`` says why it cannot be done,
    ``late_seconds`` how late the last message may be, and ``warnings`` what one has to know. Storage and
    compute are assumed, as the names of their lines say; the rest are requests, which can be counted."""

    strategy: str
    name: str
    lines: tuple[Line, ...] = ()
    impossible: str | None = None
    late_seconds: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def for_messages(self) -> Fraction:
        """What grows with the messages."""
        return sum((line.amount for line in self.lines if not line.fixed), Fraction(0))

    @property
    def fixed(self) -> Fraction:
        """What the running system costs meanwhile."""
        return sum((line.amount for line in self.lines if line.fixed), Fraction(0))

    @property
    def total(self) -> Fraction:
        return self.for_messages + self.fixed

    def part(self, unit: str) -> Fraction:
        """What the lines with a word come to, as ``GB-months`` of storage."""
        return sum((line.amount for line in self.lines if unit in line.what), Fraction(0))


def dollars(amount: Fraction) -> str:
    """An amount for people: cents from a dollar on, four significant digits below."""
    decimal = Decimal(amount.numerator) / Decimal(amount.denominator)
    if amount >= 1 or amount == 0:
        return f"{decimal:,.2f}"
    return f"{round(decimal, 3 - decimal.adjusted()):f}".rstrip("0").rstrip(".")


FUNCTION_MS: Final = 100
"""Assumed for a run that finds little to do: a few calls to AWS. Measure yours; the bill is linear in it."""
DISPATCH_MS: Final = 1
"""What each message adds to a run of the dispatcher: ``docs/capacity.md`` has 0.4 to 0.5 ms of a processor
measured, and tens of sends wait for their answers at once."""
LAMBDA_POLLERS: Final = 5
"""Long polls that Lambda keeps open on an idle queue. Source: Lambda guide, "Configuring scaling"."""


def invocation_cost(prices: Prices) -> Fraction:
    """Of the delay consumer for one batch, at the assumed time."""
    seconds = gb_seconds(limits.DELAY_CONSUMER_MEMORY_MB, FUNCTION_MS)
    return prices.lambda_request + seconds * prices.lambda_arm64_gb_second


def gb_seconds(memory_mb: int, milliseconds: int) -> Fraction:
    """What Lambda bills a run by, besides the request."""
    return Fraction(memory_mb, 1024) * Fraction(milliseconds, 1000)
