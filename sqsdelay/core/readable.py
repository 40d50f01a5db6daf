"""What people are shown, on a terminal, a page or in a log: text that others wrote without what would act
there, instants, ages, and what a check finds wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqsdelay.core.delay import utc

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
