"""What the command line says of errors: in options, with one exit code for bad values."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import typer.main

from sqsdelay import errors
from sqsdelay.cli import app
from sqsdelay.cli.console import exit_code, in_options, option
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
