"""Text that somebody else wrote, made fit for JSON and HTML, and values made readable."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Final

from sqsdelay.console.schemas import AttributeView, EventView
from sqsdelay.core.delay import utc
from sqsdelay.core.message import Attribute
from sqsdelay.core.readable import instant
from sqsdelay.ledger.events import Event

BODY_SHOWN: Final = 64 * 1024
"""Characters of a body that are sent to a browser."""


def text_of(raw: bytes | str) -> str:
    """Text that JSON can carry: what is no UTF-8, or half a character, as ``\\xff`` and ``\\ud800``."""
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "backslashreplace")


def pretty(text: str) -> str:
    """JSON with indents; anything else, and JSON that would lose by it, as it is."""
    try:
        parsed = json.loads(text)
        if not isinstance(parsed, dict | list):
            return text
        shown = json.dumps(parsed, indent=2, ensure_ascii=False)
        # Keys that occur twice and numbers no float has would be lost in silence.
        unchanged = _squeezed(json.dumps(parsed, ensure_ascii=False)) == _squeezed(text)
    except (ValueError, RecursionError):
        return text
    return shown if unchanged else text


def _squeezed(text: str) -> str:
    return "".join(text.split())


def attributes_of(attributes: Mapping[str, Attribute]) -> list[AttributeView]:
    """Message attributes by name."""
    return [
        AttributeView(
            name=text_of(name),
            type=text_of(value["DataType"]),
            value=base64.b64encode(value["BinaryValue"]).decode("ascii")
            if "BinaryValue" in value
            else text_of(value["StringValue"]),
        )
        for name, value in sorted(attributes.items())
    ]


def event_of(event: Event) -> EventView:
    """An event for people and programs."""
    return EventView(
        at=instant(event.at_ms),
        event=event.kind,
        endpoint=text_of(event.endpoint),
        message_id=text_of(event.message_id),
        source=event.source,
        due=None if event.due_ms is None else instant(event.due_ms),
        late_ms=event.late_ms,
        route=event.route,
        reason=None if event.reason is None else text_of(event.reason),
    )


def minute(epoch_ms: int) -> str:
    """An instant to the second, for people."""
    try:
        return utc(epoch_ms).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return f"{epoch_ms} ms"
