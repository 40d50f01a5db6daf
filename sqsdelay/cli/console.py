"""What all commands print with: tables for people on stdout, the rest on stderr."""

from __future__ import annotations

import json
from typing import Any, Final

from rich.console import Console, ConsoleOptions
from rich.text import Text

from sqsdelay.core.delay import utc

_CONTROL: Final = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"
}
"""Characters by which a terminal is told to do things, and how they are shown."""


_PIPE_COLUMNS: Final = 200
"""Width of what goes to a pipe or a file: a queue's name of 80 characters is not to be cut there."""


class SafeConsole(Console):
    """Shows control characters as ``\\x1b``: bodies, ids and reasons are whoever's who may send."""

    @property
    def options(self) -> ConsoleOptions:
        options = super().options
        if self.is_terminal or "COLUMNS" in self._environ:
            return options
        return options.update(width=max(options.max_width, _PIPE_COLUMNS))

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(text.translate(_CONTROL), **options)


out = SafeConsole()
err = SafeConsole(stderr=True)


def print_json(value: Any) -> None:
    """One line of JSON on stdout, for programs; never wrapped or coloured."""
    out.file.write(json.dumps(value, default=str) + "\n")
    out.file.flush()


def instant(epoch_ms: int) -> str:
    """Epoch milliseconds as an ISO 8601 instant; as they are where no calendar reaches so far."""
    try:
        return utc(epoch_ms).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{epoch_ms} ms"
