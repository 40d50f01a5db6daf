"""Pages from templates: whatever stands in a value is shown as text."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.templating import Jinja2Templates

from sqsdelay.console.overview import edge, top_of, troubles
from sqsdelay.console.sampling import GONE_SECONDS, OLD_SECONDS, Sample
from sqsdelay.console.services import Services
from sqsdelay.console.shown import BODY_SHOWN, Body, text_of
from sqsdelay.console.source import Source
from sqsdelay.core.clock import Clock
from sqsdelay.core.message import Attribute
from sqsdelay.core.readable import age, instant, one_line, plain
from sqsdelay.cost import dollars

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


def pretty(text: str) -> str:
    """JSON with indents, as far as it is shown; anything else, and JSON that would lose by it, as it is."""
    shown = ""
    try:
        parsed = json.loads(text)
        if not isinstance(parsed, dict | list):
            return text
        # Keys that occur twice and numbers no float has would be lost in silence.
        if "".join(json.dumps(parsed, ensure_ascii=False).split()) != "".join(text.split()):
            return text
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(parsed):
            shown += part
            # A thousand brackets make a million spaces.
            if len(shown) > BODY_SHOWN:
                break
    except (ValueError, RecursionError):
        return text
    return shown


def attribute(value: Attribute) -> str:
    """An attribute's value; a binary one as base64."""
    if "BinaryValue" in value:
        return base64.b64encode(value["BinaryValue"]).decode("ascii")
    return text_of(value["StringValue"])


def at(epoch_ms: int) -> str:
    """An instant to the second, UTC."""
    return instant(epoch_ms)[:19].replace("T", " ")


def late(milliseconds: int) -> str:
    """A lateness."""
    if abs(milliseconds) < 60_000:
        return f"{milliseconds / 1000:.2f} s"
    return ("-" if milliseconds < 0 else "") + age(abs(milliseconds) // 1000)


def count(number: int | None) -> str:
    """A number with its thousands; a dash for what is not known."""
    return UNKNOWN if number is None else f"{number:,}"


def templates(services: Services) -> Jinja2Templates:
    """The templates of a console; what they say of ages goes by its clock."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = (
        wire, pretty, attribute, at, late, count, age, instant, text_of, dollars, edge, top_of,
    )  # fmt: skip
    found.filters |= {each.__name__: each for each in (*shared, *_by_clock(services.clock))}
    # What the visitor has typed goes back into its field as it was.
    found.filters |= {"line": one_line, "typed": escape, "shown": Body.of}
    found.globals["version"] = version("sqsdelay")

    def of_every_page(request: Request) -> dict[str, Any]:
        theme = request.cookies.get("sqsdelay_theme")
        return {
            "visitor": request.state.visitor,
            "csrf": request.session.get("csrf", ""),
            "access": services.access,
            "endpoints": list(services.sources),
            "troubles": []
            if request.url.path == "/sign-in"
            else troubles(services, ask=request.url.path != "/cost"),
            "theme": theme if theme in THEMES else "auto",
            "path": request.url.path,
            "has_ledger": services.settings.ledger is not None,
        }

    return Jinja2Templates(env=found, context_processors=[of_every_page])


def _by_clock(clock: Clock) -> tuple[Callable[..., object], ...]:
    def relative(epoch_ms: int) -> str:
        seconds = round((epoch_ms - clock.now_ms()) / 1000)
        return f"in {age(seconds)}" if seconds >= 0 else f"{age(-seconds)} ago"

    def gone(sample: Sample[Any]) -> bool:
        return sample.age_seconds(clock.now_ms()) > GONE_SECONDS

    def old(sample: Sample[Any]) -> str:
        seconds = sample.age_seconds(clock.now_ms())
        if seconds > GONE_SECONDS:
            return sample.unknown
        return f"{age(seconds)} old" if seconds > OLD_SECONDS else ""

    return relative, gone, old


def page(
    request: Request, template: str, status: int = 200, *, of: Source | None = None, **values: Any
) -> Response:
    """A page, ``of`` an endpoint or none; who looks, what is shown and what is down is added."""
    found: Jinja2Templates = request.app.state.templates
    if of is not None:
        can_release = of.soonest_seconds is None
        values |= {"source": of, "endpoint": of.name, "can_release": can_release}
    return found.TemplateResponse(request, template, values, status_code=status)
