"""What all commands print with: tables for people on stdout, the rest on stderr; errors in the words of the
options, and their exit codes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any, Final

from rich.console import Console, ConsoleDimensions
from rich.table import Column, Table
from rich.text import Text

from sqsdelay import errors
from sqsdelay.core.readable import about, one_line, plain

_PIPE_COLUMNS: Final = 10_000_000
"""Width of what goes to a pipe or a file: beyond the longest body, so nothing is cut or wrapped there."""


class SafeConsole(Console):
    """Shows control characters as ``\\x1b``: bodies, ids and reasons are whoever's who may send. Makes no
    emoji of them, either: what stands between two colons in an id would be lost."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    @property
    def size(self) -> ConsoleDimensions:
        found = super().size
        return found if self.is_terminal else ConsoleDimensions(_PIPE_COLUMNS, found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text), **options)


out = SafeConsole()
err = SafeConsole(stderr=True)
BODY_START: Final = 60
"""Characters of a body on a terminal; a pipe or file gets all of it."""
TABLE_ROWS: Final = 1_000


def print_rows(headers: Sequence[str], rows: Iterable[Sequence[str]], **settings: Any) -> None:
    """Print a table whose cells take more lines on a narrow terminal, and never lose their ends. To a pipe go
    the rows alone: a line each, their cells apart by tabs. Cells are no markup, and one line each: they are
    whoever's who may send, and would pass for another row. ``settings``: of the terminal's table."""
    if not out.is_terminal:
        for row in rows:
            out.file.write("\t".join(map(one_line, row)) + "\n")
        return
    left, first = iter(rows), True
    # A table for every thousand, so that any number of rows takes the memory of as many.
    while (some := list(islice(left, TABLE_ROWS))) or first:
        table = Table(*(Column(each, overflow="fold") for each in headers), **settings)
        for row in some:
            table.add_row(*(Text(one_line(text)) for text in row))
        out.print(table)
        first = False


def say(text: str) -> None:
    """A line on stdout, as it is: never wrapped, whatever looks like markup in it."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """The same on stderr."""
    err.print(text, highlight=False, markup=False, soft_wrap=True)


def start_of(body: str) -> str:
    """As much of a body as a terminal's line has room for; all of it where no terminal reads."""
    if not out.is_terminal or len(body) <= BODY_START:
        return body
    return f"{body[: BODY_START - 1]}…"


def counted(counts: Mapping[Any, int]) -> str:
    """``3 left, 7 sent``."""
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


def print_json(value: Any) -> None:
    """One line of JSON on stdout, for programs; never wrapped or coloured."""
    out.file.write(json.dumps(value, default=_plain) + "\n")
    out.file.flush()


def _plain(value: Any) -> str:
    """What JSON has no type for, as text; a sum with every digit it has, a quotient with 28 at most."""
    if isinstance(value, Fraction):
        text = f"{Decimal(value.numerator) / Decimal(value.denominator):f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def show(record: Mapping[str, Any], *parts: str | Table, as_json: bool) -> None:
    """A result on stdout: the record for programs, or lines of text and tables for people."""
    if as_json:
        print_json(record)
        return
    for part in parts:
        if isinstance(part, str):
            say(one_line(part))
        else:
            out.print(part)


def figures(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of what is told of the first column, in columns that end alike."""
    columns = [Column(Text(one_line(each)), justify="right") for each in headers[1:]]
    named = Column(Text(one_line(headers[0])), no_wrap=True)
    table = Table(named, *columns, box=None, show_header=any(headers))
    for row in rows:
        table.add_row(*(Text(one_line(each)) for each in row))
    return table


def show_rows(
    records: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool
) -> None:
    """Results on stdout: a line of JSON each, or these columns of them as a table; ``-`` stands for None."""
    if as_json:
        for record in records:
            print_json(record)
        return
    cells = ([record[name] for name in columns] for record in records)
    rows = (["-" if cell is None else str(cell) for cell in row] for row in cells)
    print_rows([name.replace("_", " ") for name in columns], rows)


class OneLine(logging.Formatter):
    """A record's message on one line, whatever it quotes; a traceback keeps its lines, and no escapes."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    def formatException(self, info: Any) -> str:
        return "\n".join(map(one_line, super().formatException(info).splitlines()))


EXIT_REFUSED: Final = 1
"""Understood, and not done: a queue is missing, SQS refused it, nobody answered."""
EXIT_BAD_VALUE: Final = 2
"""Nothing was begun: the value of an option or argument cannot be used. What a shell's commands give."""
EXIT_CRITICAL: Final = 75
"""A circuit breaker triggered: "temporary failure" in sysexits.h; a supervisor may restart."""
OTHER_OPTIONS: Final = {
    "attributes": "--attribute",
    "batch_size": "--batch",
    "maximum_recovery_failures_per_second": "--recovery-failures",
    "message_bytes": "--size",
    "message_group_id": "--group",
    "number_of_retries": "--retries",
}
"""Arguments in Python whose options do not bear their names."""


def exit_code(error: errors.SqsDelayError) -> int:
    """1 for what was refused, 2 for a value that cannot be used, 75 for what a supervisor may restart."""
    if isinstance(error, errors.CriticalError):
        return EXIT_CRITICAL
    if isinstance(error, errors.MessageConflict):
        return EXIT_REFUSED
    bad = errors.InvalidDelay, errors.InvalidEndpoint, errors.InvalidMessage, errors.InvalidSetting
    return EXIT_BAD_VALUE if isinstance(error, bad) else EXIT_REFUSED


def in_options(error: errors.SqsDelayError) -> str:
    """An error's text on one line; an argument is named as the option that sets it."""
    if not error.argument:
        return one_line(error)
    value = error.value
    shown = f"{value.total_seconds():g} s" if isinstance(value, timedelta) else repr(value)
    return one_line(about(error, f"{option(error.argument)} {shown}"))


def option(argument: str) -> str:
    """The option that sets an argument: ``hop_seconds`` is ``--hop``."""
    named = argument.removesuffix("_seconds").replace("_", "-")
    return OTHER_OPTIONS.get(argument, f"--{named}")
