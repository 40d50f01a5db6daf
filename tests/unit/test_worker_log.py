"""What a worker's log makes of text that strangers wrote."""

from __future__ import annotations

import logging
import sys

from sqsdelay.cli.worker import OneLine


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
