"""Objects of messages, and the state beside each: what has become of its messages.

An object is gzipped JSON lines, one message a line, in due order. Version 1.

====================  ==============================================================================
``message_id``        text
``due_ms``            epoch milliseconds, UTC
``destination``       a queue's name, URL or ARN
``body``              text, if it is UTF-8; else ``body_base64``
``headers``           JSON as text: attributes, group and trace header; left out where there are none
``failures``          how often its release has failed; left out where it is 0
``found_by_id``       true where an object below ``ids/`` tells when the message is due
====================  ==============================================================================

A state names messages by their position, and is written only under conditions. Whoever releases an
object's messages leases it there, notes which of them he has in hand, and after each few hundred which
are gone; a cancelled message is gone, too.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import secrets
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from sqsdelay.core.stored_message import StoredMessage, from_store

VERSION: Final = 1
_LEVEL: Final = 6
_GZIP: Final = 31
"""For zlib: with gzip's header."""


@dataclass(frozen=True, slots=True, order=True)
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


def message_of(line: Line, failures: int = 0) -> StoredMessage:
    """The message of a line; what somebody wrote there by hand may be none, and says so.

    Args:
        failures: counted since it was written.
    """
    found = _fields(line.text)
    body = found.get("body")
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    elif isinstance(found.get("body_base64"), str):
        try:
            body = base64.b64decode(found["body_base64"], validate=True)
        except (binascii.Error, ValueError):
            body = None
    message = from_store(
        found.get("message_id"),
        found.get("destination"),
        found.get("due_ms"),
        body,
        found.get("headers", "{}"),
        found.get("failures", 0),
    )
    return replace(message, failures=message.failures + failures)


def found_by_id(line: Line) -> bool:
    """Whether an object below ``ids/`` tells when the message is due."""
    return _fields(line.text).get("found_by_id") is True


def packed(lines: Sequence[Line]) -> bytes:
    """An object's bytes."""
    gzipped = zlib.compressobj(_LEVEL, wbits=_GZIP)
    # Line by line: they are not to be in memory a second time.
    parts = [gzipped.compress(text) for line in lines for text in (line.text, b"\n")]
    return b"".join((*parts, gzipped.flush()))


def size_of(lines: Iterable[Line]) -> int:
    """How many bytes lines are, with their line breaks."""
    return sum(len(line.text) + 1 for line in lines)


def unpacked(body: bytes) -> list[Line]:
    """The lines of an object."""
    lines = []
    for text in gzip.decompress(body).splitlines():
        found = _fields(text)
        told = found.get("due_ms")
        due_ms = told if isinstance(told, int) else 0
        lines.append(Line(due_ms, str(found.get("message_id", "")), text))
    return lines


def _fields(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class State:
    """Of one object.

    Args:
        owner: who leases it; empty for nobody.
        until_ms: the lease's end by S3's clock, epoch milliseconds.
        hand: what the owner may be sending at this moment.
        gone: what was released, cancelled or rejected.
        held: until when a message is not to be released.
        failures: counted since the object was written.
        moved: messages written elsewhere by a batch, which may not be committed yet.
        moving: the batch that writes all of them elsewhere; empty for none.
    """

    owner: str = ""
    until_ms: int = 0
    hand: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    held: Mapping[int, int] = field(default_factory=dict)
    failures: Mapping[int, int] = field(default_factory=dict)
    moved: Mapping[int, str] = field(default_factory=dict)
    moving: str = ""

    def leased(self, now_ms: int) -> bool:
        """Whether somebody has it now."""
        return bool(self.owner) and now_ms < self.until_ms

    def freed(self) -> State:
        """Nobody has it."""
        return replace(self, owner="", until_ms=0, hand=frozenset())

    def kept(self, positions: Collection[int], until_ms: int) -> State:
        """They are not in hand, and not to be released until then."""
        held = {**self.held, **dict.fromkeys(positions, until_ms)}
        return replace(self, held=held, hand=self.hand.difference(positions))

    def without(self, positions: Iterable[int]) -> State:
        """They have left the object."""
        left = frozenset(positions)
        return replace(
            self,
            gone=self.gone | left,
            hand=self.hand - left,
            held={n: until for n, until in self.held.items() if n not in left},
            failures={n: count for n, count in self.failures.items() if n not in left},
            moved={n: batch for n, batch in self.moved.items() if n not in left},
        )

    def to_bytes(self) -> bytes:
        """As JSON; no two are the same bytes, so that a writer recognises his own."""
        upto = next(n for n in count() if n not in self.gone)
        written = {name: getattr(self, name) for name in self.__slots__} | {
            "hand": sorted(self.hand),
            "upto": upto,
            "gone": sorted(n for n in self.gone if n > upto),
            "write": secrets.token_hex(6),
        }
        return json.dumps({name: value for name, value in written.items() if value}).encode()

    @classmethod
    def of(cls, body: bytes) -> State:
        """The inverse of `to_bytes`."""
        found = json.loads(body)
        found.pop("write", None)
        hand, gone = (frozenset(found.pop(name, ())) for name in ("hand", "gone"))
        for name in ("held", "failures", "moved"):
            found[name] = {int(n): value for n, value in found.get(name, {}).items()}
        return cls(hand=hand, gone=gone.union(range(found.pop("upto", 0))), **found)
