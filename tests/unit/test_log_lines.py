"""Whoever may send a message writes ids, destinations and what errors quote: no log line is theirs."""

from __future__ import annotations

import ast
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sqsdelay
from sqsdelay.cli.console import OneLine

ROOT = Path(sqsdelay.__file__).parent
ROOMS = ("dispatching", "parking", "ports", "relaying", "sending", "sqs", "stores", "timeouts")
STRANGERS = frozenset({"body", "destination", "error", "message_id", "reason"})
"""Names of what is, or quotes, another's text."""


def quoted(path: Path) -> Iterator[str]:
    """The arguments of log calls that are somebody else's words as they came."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "logger":
            continue
        template = ast.unparse(node.args[0])
        for argument in node.args[1:] if "%r" not in template else ():
            name = argument.attr if isinstance(argument, ast.Attribute) else None
            name = argument.id if isinstance(argument, ast.Name) else name
            if name in STRANGERS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(argument)}"


@pytest.mark.parametrize("room", ROOMS)
def test_what_others_wrote_is_logged_on_one_line(room: str) -> None:
    """By ``one_line``, or ``%r``: a library's user has a log format of their own."""
    found = [told for path in sorted((ROOT / room).rglob("*.py")) for told in quoted(path)]
    assert found == []


def test_a_record_is_one_line() -> None:
    """A forged line and an escape are shown as what they are."""
    record = logging.LogRecord("x", 30, "x", 1, "id %s", ("a\n12:00 all is well\x1b[2J",), None)
    assert OneLine("%(message)s").format(record) == "id a\\x0a12:00 all is well\\x1b[2J"


def test_a_traceback_keeps_its_lines_and_no_escapes() -> None:
    """It is ours to be read; what an error quotes is not."""
    try:
        raise ValueError("\x1b[2Jx")
    except ValueError:
        record = logging.LogRecord("x", 40, "x", 1, "broke", (), sys.exc_info())
    shown = OneLine("%(message)s").format(record)
    assert shown.startswith("broke\nTraceback")
    assert "ValueError: \\x1b[2Jx" in shown
    assert "\x1b" not in shown
