"""What to send: one message of the options, or a file of JSON lines with `Message`'s field names."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

import typer

from sqsdelay.core.checked_message import attribute_of, attributes_of_texts
from sqsdelay.core.delay import Delay, parse_delay, parse_due_at
from sqsdelay.core.message import AttributeInput, Message
from sqsdelay.errors import InvalidDelay, InvalidMessage, SqsDelayError
from sqsdelay.limits import MAX_MESSAGE_BYTES

FIELDS: Final = frozenset(
    {
        "body", "body_repeat", "delay", "due_at", "attributes", "message_id", "message_group_id",
        "message_deduplication_id", "trace_header",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no message, and why."""

    line: int
    error: SqsDelayError


@dataclass(frozen=True, slots=True)
class Defaults:
    """Delay or due time of the lines that name neither."""

    delay: Delay | None = None
    due_at: datetime | None = None


def checked_input(
    body: str | None,
    file: Path | None,
    delay: str | None,
    due_at: str | None,
    message_id: str | None,
    group: str | None,
    attributes: Sequence[str] | None,
) -> Defaults:
    """The delay or due time of the options, once they are known to fit together.

    Raises:
        BadParameter: they do not.
        InvalidDelay
    """
    if (body is None) == (file is None):
        raise typer.BadParameter("give either --body or --file")
    if delay is not None and due_at is not None:
        raise typer.BadParameter("give either --delay or --due-at, not both")
    if file is not None and (message_id is not None or group is not None or attributes):
        raise typer.BadParameter(
            "--message-id, --group and --attribute require --body; in a file, use the fields "
            '"message_id", "message_group_id" and "attributes"'
        )
    return Defaults(
        None if delay is None else parse_delay(delay),
        None if due_at is None else parse_due_at(due_at),
    )


def given_attributes(texts: Sequence[str] | None) -> dict[str, AttributeInput]:
    """The attributes of ``--attribute NAME=VALUE`` and ``NAME:TYPE=VALUE``.

    Raises:
        BadParameter: it is neither, names one attribute twice, or a Binary value is not base64.
    """
    try:
        return attributes_of_texts(texts or ())
    except InvalidMessage as error:
        raise typer.BadParameter(str(error), param_hint="--attribute") from error


def opened_lines(file: Path) -> IO[str]:
    """The file's lines, or stdin's for "-"; bytes that are not UTF-8 spoil their own line only.

    Raises:
        BadParameter: the file cannot be read.
    """
    if str(file) == "-":
        return open(sys.stdin.fileno(), encoding="utf-8", errors="surrogateescape", closefd=False)
    try:
        return file.open(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise typer.BadParameter(f"--file {file}: {error.strerror}") from error


def read_messages(
    lines: Iterable[str], defaults: Defaults
) -> Iterator[tuple[int, Message | BadLine]]:
    """The messages of a file's lines with their numbers, from 1; blank lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, read_message(line, defaults)
        except SqsDelayError as error:
            yield number, BadLine(number, error)


def read_message(line: str, defaults: Defaults) -> Message:
    """One line's message.

    Raises:
        InvalidMessage, InvalidDelay: what is wrong with the line.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"not JSON: {error}") from error
    if not isinstance(fields, dict) or "body" not in fields:
        raise InvalidMessage('not a JSON object with a "body"')
    if unknown := sorted(set(fields) - FIELDS):
        raise InvalidMessage(f"unknown field {unknown[0]!r}; use only {', '.join(sorted(FIELDS))}")
    delay, due_at = _delay(fields.get("delay")), _due_at(fields.get("due_at"))
    if delay is None and due_at is None:
        delay, due_at = defaults.delay, defaults.due_at
    return Message(
        _body(fields["body"], fields.get("body_repeat", 1)),
        delay=delay,
        due_at=due_at,
        attributes=_attributes(fields.get("attributes", {})),
        message_id=fields.get("message_id"),
        message_group_id=fields.get("message_group_id"),
        trace_header=_text(fields.get("trace_header"), "trace_header"),
        message_deduplication_id=fields.get("message_deduplication_id"),
    )


def _body(body: Any, repeat: Any) -> str:
    """The body; ``body_repeat`` keeps a file of large bodies small."""
    if not isinstance(body, str):
        try:
            body = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        except RecursionError as error:
            raise InvalidMessage("body is nested too deeply; send it as a JSON string") from error
    if not isinstance(repeat, int) or isinstance(repeat, bool):
        raise InvalidMessage(
            f"body_repeat={repeat!r}; use a whole number, 1 to {MAX_MESSAGE_BYTES}"
        )
    if not 1 <= repeat <= MAX_MESSAGE_BYTES:
        raise InvalidMessage(f"body_repeat={str(repeat)[:20]}; use 1 to {MAX_MESSAGE_BYTES}")
    if repeat > 1 and len(body) * repeat > MAX_MESSAGE_BYTES:
        raise InvalidMessage(
            f"body_repeat={repeat} makes a body of {len(body) * repeat} characters; "
            f"the limit is {MAX_MESSAGE_BYTES} bytes"
        )
    return str(body * repeat)


def _delay(value: Any) -> Delay | None:
    if isinstance(value, str):
        return parse_delay(value)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise InvalidDelay(f'delay {value!r} is not valid; use seconds (90) or "32m5s"')


def _due_at(value: Any) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidDelay(f'due_at {value!r} is not valid; use "2027-01-31T09:00:00Z"')
    return parse_due_at(value)


def _text(value: Any, what: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidMessage(f"{what} {value!r} is not text; use a JSON string")


def _attributes(given: Any) -> dict[str, AttributeInput]:
    if not isinstance(given, dict):
        raise InvalidMessage(f"attributes {given!r} is not a JSON object")
    return {name: attribute_of(name, value) for name, value in given.items()}
