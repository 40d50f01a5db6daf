"""What the command line says of errors: in options, with one exit code for bad values."""

from __future__ import annotations

import ast
import inspect
import re
from datetime import timedelta
from pathlib import Path

import pytest
import typer.main

from sqsdelay.cli import app
from sqsdelay.cli.advice import OPTIONS, exit_code, in_options
from sqsdelay.core.delay import delay_ms
from sqsdelay.errors import (
    ConfigurationError,
    DelayQueueMissing,
    InvalidDelay,
    InvalidSetting,
    MessageConflict,
    MessageTooLarge,
    QueueUnreachable,
    SqsDelayError,
)

ROOMS = (
    "core",
    "ports",
    "sending",
    "relaying",
    "parking",
    "dispatching",
    "timeouts",
    "sqs",
    "stores",
)
NO_OPTION = {
    "above_bytes", "connections", "lease_seconds", "shards", "trace_header", "due_ms", "unrestricted",
    "store", "columns", "v", "table", "table_class", "slots", "linger_ms",
    "deadline_seconds",
    "max_waiting",
}  # fmt: skip
"""Arguments no command has."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidDelay("x"), 2),
        (MessageTooLarge("x"), 2),
        (InvalidSetting("receivers=0; use 1 or more"), 2),
        (InvalidSetting("the store's URL is not valid; give sqlite:///FILE"), 2),
        (ConfigurationError("the delay queue has a redrive policy; remove it"), 1),
        (MessageConflict("x"), 1),
        (DelayQueueMissing("x"), 1),
        (QueueUnreachable("x"), 1),
    ],
)
def test_bad_values_have_one_exit_code(error: SqsDelayError, code: int) -> None:
    """The code a shell's own commands give for bad usage; 1 is for what was tried."""
    assert exit_code(error) == code


def test_arguments_are_told_as_options() -> None:
    """What is typed, where the library says what is called."""
    told = in_options("hop_seconds=60, but q holds messages for 900 s; use hop_seconds=900")
    assert told == "--hop 60, but q holds messages for 900 s; use --hop 900"
    assert in_options("t does not exist; run sqsdelay store create (set_up()), or") == (
        "t does not exist; run sqsdelay store create, or"
    )
    key = "give a column 'id', or: option('key', 'order_id').option('job', 'renewals')"
    assert in_options(key) == "give a column 'id', or: --key order_id --job renewals"
    store = "option park_after=60 needs option('store', …), at option hop_seconds='1'"
    assert in_options(store) == "--park-after 60 needs --store, at --hop '1'"
    region = "use boto3.client('sqs', region_name='eu-west-1')"
    assert in_options(region) == "use sqsdelay --region eu-west-1"
    with pytest.raises(InvalidDelay) as refused:
        delay_ms(timedelta(days=-1))
    assert in_options(str(refused.value)) == (
        "--delay -86400 s is negative; use 0 or more (a --due-at in the past is sent at once)"
    )


def test_every_option_named_exists() -> None:
    """An option that is renamed is renamed in the advice."""
    named = set()
    commands = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        named |= {text for each in command.params for text in each.opts}
    assert set(OPTIONS.values()) <= named


def test_no_argument_is_forgotten() -> None:
    """Each argument that an error of the library names has an option, or no command has it."""
    root = Path(inspect.getfile(SqsDelayError)).parent
    found = set()
    for room in ROOMS:
        for path in (root / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Raise) and node.exc is not None:
                    for part in ast.walk(node.exc):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            found |= set(re.findall(r"\b([a-z]+(?:_[a-z]+)*)=$", part.value))
    assert found - NO_OPTION - set(OPTIONS) == set()
