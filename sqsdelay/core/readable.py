"""Text for people. What they write: delays, due times, attributes. What they are shown, on a terminal, a page
or in a log: text that others wrote without what would act there, instants, ages, what a check finds wrong."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final, cast

from sqsdelay.core.delay import due_at_ms, utc
from sqsdelay.core.limits import MAX_DUE_MS
from sqsdelay.core.message import AttributeInput
from sqsdelay.errors import InvalidDelay, InvalidMessage, SqsDelayError

_TURNING: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that turn the direction of what stands around them: an id would read as another."""

_CONTROL: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    **{code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *_TURNING, *range(0xD800, 0xE000))},
}
"""Characters by which a terminal is told to do things, or that no encoding has: how they are shown."""

_CONTROL_IN_TEXT: Final = {
    code: shown for code, shown in _CONTROL.items() if chr(code) not in "\t\n"
}


def plain(text: str) -> str:
    """Somebody's text with its lines, and with control characters shown as ``\\x1b``."""
    return text.translate(_CONTROL_IN_TEXT)


def one_line(text: object) -> str:
    """``str(text)`` on one line: control characters and line ends as ``\\x1b``, ``\\x0a``."""
    return str(text).translate(_CONTROL)


def about(error: SqsDelayError, subject: str) -> str:
    """The limit and the remedy of an error about an argument, which is shown as ``subject``."""
    limit = f" {error.limit}" if error.limit else ""
    return f"{subject}{limit}; {error.remedy}"


def instant(epoch_ms: int) -> str:
    """Epoch milliseconds as an ISO 8601 instant; as they are where no calendar reaches so far."""
    try:
        return utc(epoch_ms).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{epoch_ms} ms"


def age(seconds: int | None) -> str:
    """An age for people: its two largest units."""
    if seconds is None:
        return "-"
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a check found wrong.

    Args:
        subject: what it is wrong with: a queue, an exchange, a binding, a store.
        text: what is wrong with it.
        remedy: the command or advice that fixes it.
        fatal: False for a warning: delays work regardless.
    """

    subject: str
    text: str
    remedy: str
    fatal: bool = True


_UNIT_MS: Final = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)"
_COMPACT: Final = re.compile(
    "".join(f"(?:{_NUMBER}{unit})?" for unit in ("w", "d", "h", "m(?!s)", "s", "ms")), re.ASCII
)
_MONTHS: Final = re.compile(r"[\d.]M(?![sS])", re.ASCII)
"""``6M`` is six months to whoever writes it so, and would be six minutes."""
_ISO: Final = re.compile(
    rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.ASCII
)
_SECONDS: Final = re.compile(_NUMBER, re.ASCII)


def parse_delay(text: str) -> timedelta:
    """A delay as people write it: ``32m5s``, ``1d12h``, ``90`` (seconds), ``PT32M5S``, ``P30D``.

    Units are taken in capitals, too, but for ``M``, which ISO 8601 has for months and minutes alike. Raises
    InvalidDelay: anything else; months and years have no fixed length and are refused."""
    stripped = text.strip()
    parts: list[tuple[str, str]] = []
    if match := _SECONDS.fullmatch(stripped):
        parts = [("s", match[1])]
    elif (match := _ISO.fullmatch(stripped.upper())) or (
        match := None if _MONTHS.search(stripped) else _COMPACT.fullmatch(stripped.lower())
    ):
        parts = [
            each for each in zip(_UNIT_MS, match.groups(), strict=False) if each[1] is not None
        ]
    if not parts:
        raise InvalidDelay(
            f"delay {text!r} is not valid; use seconds (90), 32m5s (m: minutes), 1d12h, or "
            "ISO 8601 (PT32M5S); for months and years give a due time"
        )
    milliseconds = sum(math.ceil(Fraction(number) * _UNIT_MS[unit]) for unit, number in parts)
    if milliseconds > MAX_DUE_MS:
        raise InvalidDelay(f"delay {text!r} ends after the year 9999, the latest due time")
    return timedelta(milliseconds=milliseconds)


def parse_due_at(text: str) -> datetime:
    """An ISO 8601 instant with its offset: ``2027-01-31T09:00:00Z``, ``…+02:00``. Raises InvalidDelay: not
    ISO 8601, or no time zone."""
    try:
        due_at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidDelay(
            f"due time {text!r} is not ISO 8601; write e.g. 2027-01-31T09:00:00Z"
        ) from error
    if due_at.tzinfo is None:
        raise InvalidDelay(f"due time {text!r} has no time zone; write e.g. 2027-01-31T09:00:00Z")
    due_at_ms(due_at)
    return due_at


def attributes_of_texts(texts: Iterable[str]) -> dict[str, AttributeInput]:
    """The attributes of ``NAME=VALUE`` and ``NAME:TYPE=VALUE``; a Binary value is base64. Raises
    InvalidMessage: it is neither, names one attribute twice, or is not base64."""
    found: dict[str, AttributeInput] = {}
    for text in texts:
        named, equals, value = text.partition("=")
        name, _, kind = named.partition(":")
        kind = kind or "String"
        if not name or not equals:
            raise InvalidMessage(
                f"{text!r} is not NAME=VALUE or NAME:TYPE=VALUE, such as tenant=acme or tries:Number=3"
            )
        if name in found:
            raise InvalidMessage(f"{name!r} is given twice")
        field = "BinaryValue" if kind.partition(".")[0] == "Binary" else "StringValue"
        found[name] = attribute_of(name, {"DataType": kind, field: value})
    return found


def attribute_of(name: str, value: Any) -> AttributeInput:
    """As in the AWS CLI: a BinaryValue is base64. Raises InvalidMessage: it is not."""
    if isinstance(value, dict) and isinstance(value.get("BinaryValue"), str):
        try:
            binary = base64.b64decode(value["BinaryValue"], validate=True)
        except ValueError as error:
            raise InvalidMessage(
                f"attribute {name!r}: BinaryValue is not base64: {error}"
            ) from error
        value = {**value, "BinaryValue": binary}
    return cast(AttributeInput, value)  # what it is, the sender checks
