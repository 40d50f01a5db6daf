"""What the command line says of errors: in options, with one exit code for bad values; and what it prints of
other people's text."""

from __future__ import annotations

import ast
import inspect
import io
import pickle
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import typer.main
from rich.table import Table

from sqsdelay import errors
from sqsdelay.cli import app
from sqsdelay.cli.console import (
    SafeConsole,
    err,
    exit_code,
    figures,
    in_options,
    option,
    out,
    print_rows,
)
from sqsdelay.core.delay import delay_ms
from sqsdelay.errors import (
    ConfigurationError,
    CriticalError,
    DelayQueueMissing,
    InvalidDelay,
    InvalidMessage,
    InvalidSetting,
    MessageConflict,
    MessageTooLarge,
    QueueUnreachable,
    SqsDelayError,
)

ROOMS = (
    "core", "ports", "sending", "relaying", "parking", "dispatching", "timeouts", "sqs", "stores",
)  # fmt: skip
NO_OPTION = {
    "deadline_seconds", "due_ms", "linger_ms", "max_waiting", "shards", "slots",
    "table_class", "trace_header",
}  # fmt: skip
"""Arguments no command has."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidDelay("x"), 2),
        (MessageTooLarge("x"), 2),
        (InvalidSetting("use 1 or more", receivers=0), 2),
        (InvalidSetting("the store's URL is not valid; give sqlite:///FILE"), 2),
        (ConfigurationError("the delay queue has a redrive policy; remove it"), 1),
        (MessageConflict("x"), 1),
        (DelayQueueMissing("x"), 1),
        (QueueUnreachable("x"), 1),
        (CriticalError("x"), 75),
    ],
)
def test_bad_values_have_one_exit_code(error: SqsDelayError, code: int) -> None:
    """The code a shell's own commands give for bad usage; 1 is for what was tried."""
    assert exit_code(error) == code


def test_arguments_are_told_as_options() -> None:
    """What is typed, where the library says what is called."""
    short = ConfigurationError("is too short for q; use 900", hop_seconds=60)
    assert str(short) == "hop_seconds=60 is too short for q; use 900"
    assert in_options(short) == "--hop 60 is too short for q; use 900"
    assert in_options(InvalidSetting("use 1 or more", batch_size=0)) == "--batch 0; use 1 or more"
    with pytest.raises(InvalidDelay) as refused:
        delay_ms(timedelta(days=-1))
    assert in_options(refused.value) == (
        "--delay -86400 s is negative; use 0 or more (what was due in the past is sent at once)"
    )


def test_an_error_carries_what_a_surface_words() -> None:
    """The argument, its value, the limit and the remedy; also once it was sent to another process."""
    error = InvalidMessage("is not valid; use 1 to 128 letters", message_group_id="")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert (each.argument, each.value) == ("message_group_id", "")
        assert (each.limit, each.remedy) == ("is not valid", "use 1 to 128 letters")
        assert str(each) == "message_group_id='' is not valid; use 1 to 128 letters"
    assert (QueueUnreachable("x; y").argument, str(QueueUnreachable("x; y"))) == ("", "x; y")


def raised() -> Iterator[tuple[Path, ast.Call]]:
    """Every error that the library raises."""
    root = Path(inspect.getfile(SqsDelayError)).parent
    for room in ROOMS:
        for path in (root / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                call = node.exc if isinstance(node, ast.Raise) else node
                name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
                raises = isinstance(node, ast.Raise) and hasattr(errors, name.rpartition(".")[2])
                if isinstance(call, ast.Call) and (raises or name == "check_range"):
                    yield path, call


def test_every_argument_of_an_error_is_an_option() -> None:
    """Of some command, unless no command has it: an option that is renamed is renamed in the errors."""
    named = set()
    commands = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        named |= {text for each in command.params for text in each.opts}
    carried = {keyword.arg for _, call in raised() for keyword in call.keywords if keyword.arg}
    assert len(carried) > 15
    assert {each for each in carried if option(each) not in named} == NO_OPTION


def test_no_argument_is_only_in_the_text() -> None:
    """It would be shown as Python's on every surface."""
    for path, call in raised():
        for part in ast.walk(call):
            if isinstance(part, ast.JoinedStr) and isinstance(part.values[0], ast.Constant):
                start = str(part.values[0].value)
                assert not re.fullmatch(r"[a-z]+(_[a-z]+)*=", start), f"{path}: {start}"


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
