"""Pages from templates: whatever stands in a value is shown as text."""

from __future__ import annotations

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

from sqsdelay.console.shown import pretty
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.delay import due_at_ms
from sqsdelay.core.readable import age, one_line, plain

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
