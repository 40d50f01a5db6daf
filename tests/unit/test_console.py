"""What the command line prints of other people's text."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from sqsdelay.cli.console import SafeConsole, err, figures, out, print_rows

HOSTILE = "a\x1b]0;owned\x07\x1b[2Jb\r\x9b\x7f\tc\nd"
SHOWN = r"a\x1b]0;owned\x07\x1b[2Jb\x0d\x9b\x7f"


def test_figures_are_text() -> None:
    """An endpoint's name in a ledger is whoever's who wrote it."""
    written = io.StringIO()
    console = SafeConsole(file=written, force_terminal=True, color_system=None, width=200)
    console.print(figures(["", f"[/x]{HOSTILE}"], [("[b]", "1")]))
    assert {"[/x]", "[b]", SHOWN} == {x for x in ("[/x]", "[b]", SHOWN) if x in written.getvalue()}
    assert not set(written.getvalue()) & set("\x07\x1b\r\x9b\x7f")


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
    assert isinstance(out, SafeConsole), "every command prints with it"
    assert isinstance(err, SafeConsole)


@pytest.mark.parametrize("in_a_table", [False, True])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("order:heart:1", "order:heart:1"),
        ("\ud800", r"\ud800"),
        ("\u202etxt.exe", r"\u202etxt.exe"),
        ("a\u2028b", r"a\u2028b"),
        ("[bold]x[/bold] \\[x]", "[bold]x[/bold] \\[x]"),
    ],
)
def test_what_is_no_ordinary_text_is_shown_as_what_it_is(
    text: str, shown: str, in_a_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No emoji is made of an id, no half a character ends the command, nothing runs backwards."""
    written = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = SafeConsole(file=written, color_system=None, width=200)
    if in_a_table:
        with monkeypatch.context() as terminal:
            terminal.setattr("sqsdelay.cli.console.out", console)
            terminal.setattr(SafeConsole, "is_terminal", True)
            print_rows(["id"], [[text]])
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    written.seek(0)
    assert shown in written.read()


def test_a_row_in_a_pipe_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cells of several lines, or with tabs, would look like another message's row."""
    written = io.StringIO()
    monkeypatch.setattr("sqsdelay.cli.console.out", SafeConsole(file=written))
    print_rows(["id", "size"], [["m-1\nm-2\t\x1b[2J", "7"]])
    assert written.getvalue() == r"m-1\x0am-2\x09\x1b[2J" + "\t7\n"
