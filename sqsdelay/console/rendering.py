"""Pages from templates: whatever stands in a value is shown as text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sqsdelay.console.schemas import AttributeView, EventView
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.delay import due_at_ms, utc
from sqsdelay.core.message import Attribute
from sqsdelay.core.readable import age, instant, one_line, plain
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


UNKNOWN: Final = "\u2013"
"""A dash, for what is not known."""

THEMES: Final = ("light", "dark")


def finalized(value: Any) -> Any:
    """A value as a template prints it: without what acts on a screen, whoever wrote it."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return UNKNOWN
    return plain(value) if isinstance(value, str) else value


def wire(text: str) -> str:
    """Text for a form's hidden value or a URL's query: a browser alters neither."""
    return quote(text, safe="", errors="surrogatepass")


def typed(text: str) -> Markup:
    """What the visitor has typed, back in its field as it was."""
    return escape(text)


def at(instant: str) -> str:
    """An instant of the API for people, to the second, UTC."""
    found = _parsed(instant)
    return instant if found is None else found.strftime("%Y-%m-%d %H:%M:%S")


def relative(instant: str) -> str:
    """How far away an instant is: ``in 3 d 4 h``, ``2 min ago``."""
    found = _parsed(instant)
    if found is None:
        return ""
    seconds = round((due_at_ms(found) - SystemClock().now_ms()) / 1000)
    return f"in {age(seconds)}" if seconds >= 0 else f"{age(-seconds)} ago"


def clock(instant: str) -> str:
    """The time of day."""
    found = _parsed(instant)
    return instant if found is None else found.strftime("%H:%M:%S")


def late(milliseconds: int) -> str:
    """A lateness."""
    if abs(milliseconds) < 60_000:
        return f"{milliseconds / 1000:.2f} s"
    return ("-" if milliseconds < 0 else "") + age(abs(milliseconds) // 1000)


def count(number: int | None) -> str:
    """A number with its thousands; a dash for what is not known."""
    return UNKNOWN if number is None else f"{number:,}"


def size(count: int) -> str:
    """Bytes, in the unit that fits."""
    for unit, length in (("MiB", 1024 * 1024), ("KiB", 1024)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} B"


def _parsed(instant: str) -> datetime | None:
    try:
        return datetime.fromisoformat(instant).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


@cache
def environment() -> Environment:
    """The templates."""
    found = Environment(
        loader=PackageLoader("sqsdelay.console"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for each in (wire, typed, at, relative, clock, late, count, size, age, pretty):
        found.filters[each.__name__] = each
    found.filters["line"] = one_line
    found.globals["version"] = version("sqsdelay")
    return found


def page(
    request: Request, template: str, values: Mapping[str, Any], *, status: int = 200
) -> HTMLResponse:
    """A page; what every page has is added: who looks, what is shown, the form's secret."""
    services = request.app.state.services
    theme = request.cookies.get("sqsdelay_theme")
    text = (
        environment()
        .get_template(template)
        .render(
            visitor=request.state.visitor,
            access=services.access,
            endpoints=list(services.sources),
            on_sqs=services.broker is None,
            theme=theme if theme in THEMES else "auto",
            path=request.url.path,
            **values,
        )
    )
    return HTMLResponse(text, status_code=status)
