"""Objects of messages: gzipped JSON lines, one message a line, in due order. Version 1.

====================  ==============================================================================
``message_id``        text
``due_ms``            epoch milliseconds, UTC
``destination``       a queue's name, URL or ARN
``body``              text, if it is UTF-8; else ``body_base64``
``headers``           JSON as text: attributes, group and trace header; left out where there are none
``failures``          how often its release has failed; left out where it is 0
``found_by_id``       true where an object below ``ids/`` tells when the message is due
====================  ==============================================================================
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqsdelay.core.stored_message import StoredMessage, from_store

VERSION: Final = 1
_LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class Line:
    """A message as it lies in an object, read as far as it must be to be put elsewhere."""

    due_ms: int
    message_id: str
    text: bytes


def line_of(message: StoredMessage, *, found_by_id: bool = False) -> Line:
    """A message as a line."""
    fields: dict[str, Any] = {
        "message_id": message.message_id,
        "due_ms": message.due_ms,
        "destination": message.destination,
    }
    try:
        fields["body"] = message.body.decode("utf-8")
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode("ascii")
    headers = message.headers()
    if headers != "{}":
        fields["headers"] = headers
    if message.failures:
        fields["failures"] = message.failures
    if found_by_id:
        fields["found_by_id"] = True
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return Line(message.due_ms, message.message_id, text)


def message_of(line: Line) -> StoredMessage:
    """The message of a line; what somebody wrote there by hand may be none, and says so."""
    found = _fields(line.text)
    body = found.get("body")
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    elif isinstance(found.get("body_base64"), str):
        try:
            body = base64.b64decode(found["body_base64"], validate=True)
        except (binascii.Error, ValueError):
            body = None
    return from_store(
        found.get("message_id"),
        found.get("destination"),
        found.get("due_ms"),
        body,
        found.get("headers", "{}"),
        found.get("failures", 0),
    )


def found_by_id(line: Line) -> bool:
    """Whether an object below ``ids/`` tells when the message is due."""
    return _fields(line.text).get("found_by_id") is True


def moved(line: Line, due_ms: int, failures: int) -> Line:
    """The same message at another due time, which its id does not tell."""
    return line_of(replace(message_of(line), due_ms=due_ms, failures=failures), found_by_id=True)


def ordered(lines: Iterable[Line]) -> list[Line]:
    """By due time and id; of a message that is there twice, one. What differs in anything is another."""
    return sorted(set(lines), key=lambda line: (line.due_ms, line.message_id, line.text))


def packed(lines: Sequence[Line]) -> bytes:
    """An object's bytes."""
    return gzip.compress(b"\n".join(line.text for line in lines) + b"\n", _LEVEL, mtime=0)


def unpacked(body: bytes) -> list[Line]:
    """The lines of an object."""
    lines = []
    for text in gzip.decompress(body).splitlines():
        found = _fields(text)
        due_ms = found.get("due_ms")
        lines.append(
            Line(
                due_ms if isinstance(due_ms, int) else 0,
                str(found.get("message_id", "")),
                text,
            )
        )
    return lines


def _fields(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
