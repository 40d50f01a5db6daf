"""Text for logs and terminals. Ids, attributes and bodies are written by whoever may send."""

from __future__ import annotations

from typing import Final

_CONTROL: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}


def one_line(text: object) -> str:
    """``str(text)`` on one line: control characters and line ends as ``\\x1b``, ``\\x0a``."""
    return str(text).translate(_CONTROL)
