"""What the command line says of an error, in the words of its options, and the exit code it gives."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqsdelay.core.readable import one_line
from sqsdelay.errors import (
    InvalidDelay,
    InvalidEndpoint,
    InvalidMessage,
    InvalidSetting,
    MessageConflict,
    SqsDelayError,
)

EXIT_REFUSED: Final = 1
"""Understood, and not done: a queue is missing, SQS refused it, nobody answered."""

EXIT_BAD_VALUE: Final = 2
"""Nothing was begun: the value of an option or argument cannot be used. What a shell's commands give."""

OTHER_OPTIONS: Final = {
    "attributes": "--attribute",
    "batch_size": "--batch",
    "maximum_recovery_failures_per_second": "--recovery-failures",
    "message_bytes": "--size",
    "message_group_id": "--group",
    "number_of_retries": "--retries",
}
"""Arguments in Python whose options do not bear their names."""


def exit_code(error: SqsDelayError) -> int:
    """1 for what was refused, 2 for a value that cannot be used, whoever found that out."""
    if isinstance(error, MessageConflict):
        return EXIT_REFUSED
    bad = isinstance(error, InvalidDelay | InvalidEndpoint | InvalidMessage | InvalidSetting)
    return EXIT_BAD_VALUE if bad else EXIT_REFUSED


def in_options(error: SqsDelayError) -> str:
    """An error's text on one line; an argument is named as the option that sets it."""
    if not error.argument:
        return one_line(error)
    value = error.value
    shown = f"{value.total_seconds():g} s" if isinstance(value, timedelta) else repr(value)
    return one_line(about(error, f"{option(error.argument)} {shown}"))


def about(error: SqsDelayError, subject: str) -> str:
    """The limit and the remedy of an error about an argument, which is shown as ``subject``."""
    return (
        f"{subject} {error.limit}; {error.remedy}" if error.limit else f"{subject}; {error.remedy}"
    )


def option(argument: str) -> str:
    """The option that sets an argument: ``hop_seconds`` is ``--hop``."""
    named = argument.removesuffix("_seconds").replace("_", "-")
    return OTHER_OPTIONS.get(argument, f"--{named}")
