"""What the command line prints of other people's text."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from sqsdelay.cli.console import SafeConsole, err, out

HOSTILE = "a\x1b]0;owned\x07\x1b[2Jb\r\x9b\x7f\tc\nd"
SHOWN = r"a\x1b]0;owned\x07\x1b[2Jb\x0d\x9b\x7f"


@pytest.mark.parametrize("in_a_table", [False, True])
def test_a_terminal_is_told_nothing_by_a_message(in_a_table: bool) -> None:
    """Control characters in a body, id or reason are shown, not sent; tabs and lines stay."""
    written = io.StringIO()
    console = SafeConsole(file=written, force_terminal=True, color_system=None, width=200)
    if in_a_table:
        table = Table("body")
        table.add_row(HOSTILE)
        console.print(table)
    else:
        console.print(HOSTILE, markup=False, highlight=False, soft_wrap=True)
    text = written.getvalue()
    assert SHOWN in text
    assert not set(text) & set("\x07\x1b\r\x9b\x7f")


def test_every_command_prints_with_it() -> None:
    """Both streams; a plain console would pass everything on."""
    assert isinstance(out, SafeConsole)
    assert isinstance(err, SafeConsole)
