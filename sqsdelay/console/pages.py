"""The pages: to get one changes nothing; their forms say what will happen, and then do it."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from sqsdelay import errors
from sqsdelay.console import messages, services
from sqsdelay.console.guard import MAX_REQUEST_BYTES, Guard
from sqsdelay.console.rendering import page, states_of, templates, wire
from sqsdelay.console.services import MOST_CHANGED, ON_FAILED, Change, Chosen, Services, Work
from sqsdelay.console.source import SPANS, Body, Source
from sqsdelay.core.delay import due_at_ms, due_time
from sqsdelay.core.readable import about, one_line, parse_delay, parse_due_at
from sqsdelay.cost import Workload, bill, recommend, shipped_prices
from sqsdelay.operating.status import NOBODY

EXAMPLES: Final = 10
"""Messages named in a confirmation; the others are counted."""
RECENT: Final = 12
"""Events on the overview."""
START: Final = {"delay": "30d", "messages": "1000000", "size": "1024", "batch": "1"}
LABELS: Final = {
    "delay": "Delay", "messages": "Messages", "size": "Bytes of a message",
    "batch": "Due together, in a request",
}  # fmt: skip


def _services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def _source(request: Request) -> Source:
    """The endpoint of a page; its numbers are asked for, to be known by the time that it is shown."""
    source = _services(request).source(request.query_params.get("endpoint"))
    source.start()
    return source


def _overview(request: Request) -> Response:
    console, span, recent = _services(request), request.query_params.get("span", ""), []
    span = span if span in SPANS else "hours"
    with suppress(errors.SqsDelayError):  # Why a ledger cannot be read is said above the page.
        recent = console.ledger.recent(console.sources, RECENT)
    values: dict[str, Any] = {"span": span, "spans": SPANS, "nobody": NOBODY, "recent": recent}
    return page(request, "overview.html", states=states_of(console, span), **values)


def _messages(request: Request) -> Response:
    source, given = _source(request), request.query_params
    if given.get("id"):
        where = f"/message?endpoint={wire(source.name)}&id={wire(given['id'])}"
        return RedirectResponse(where, 303)
    which, after = messages.Filter.of(given), given.get("after")
    values: dict[str, Any] = {"which": which, "after": after, "found": None, "refusal": None}
    try:
        values["found"] = messages.listed(source, which, after=after)
    except (errors.NoStore, errors.StoreError) as error:
        silent = "The store cannot be shown: " if isinstance(error, errors.StoreError) else ""
        values["refusal"] = f"{silent}{one_line(error)}"
    return page(request, "messages.html", of=source, **values)


def _message(request: Request) -> Response:
    source = _source(request)
    found = messages.found(source, request.query_params.get("id", ""), _services(request).ledger)
    return page(request, "message.html", of=source, view=found)


def _errors(request: Request) -> Response:
    source, which = _source(request), messages.Filter.of(request.query_params)
    found = messages.failed(source, which)
    groups = messages.grouped(found)
    return page(request, "errors.html", of=source, which=which, groups=groups, found=len(found))


def _result(request: Request) -> Response:
    found = _services(request).changes.get(request.path_params["key"])
    if found is None:
        text = "this change is not known: the console was restarted, or no longer keeps it; see its log"
        raise HTTPException(404, text)
    return page(request, "result.html", change=found)


def _send_page(request: Request, source: Source, given: dict[str, str], **more: Any) -> Response:
    values = {"preview": None, "trouble": None, "key": secrets.token_urlsafe(12), **more}
    values["given"] = dict.fromkeys(services.FIELDS, "") | given
    status = 400 if values["trouble"] else 200
    return page(request, "send.html", status, of=source, **values)


def _cost(request: Request) -> Response:
    """A recommendation for what was typed, or why there is none."""
    given = {name: request.query_params.get(name, value) for name, value in START.items()}
    prices = shipped_prices()
    values: dict[str, Any] = {"load": None, "advice": None, "trouble": None}
    try:
        values["load"] = load = Workload(
            delay_seconds=round(parse_delay(given["delay"]).total_seconds()),
            messages=_number(given["messages"]),
            message_bytes=_number(given["size"]),
            batch=_number(given["batch"]),
        )
        values["advice"] = recommend(load, prices)
        if not values["advice"]:
            values["trouble"] = bill("relay", load, prices).impossible
    except errors.SqsDelayError as error:
        label = LABELS.get(error.argument, LABELS["size"])  # of message_bytes
        told = about(error, f"{label}: {error.value}") if error.argument else error
        values["trouble"] = one_line(told)
    return page(request, "cost.html", given=given, labels=LABELS, prices=prices, **values)


def _number(text: str) -> Any:
    """The number that was typed; other text as it is, which `Workload` refuses."""
    digits = re.sub(r"[\s,_]", "", text)
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 15 else text


def _sign_in(request: Request) -> Response:
    if _services(request).access.token is None:
        return RedirectResponse("/", 303)
    return page(request, "sign_in.html", wrong=False)


Posted = Callable[[Request, FormData, Source], Response]


def _text(form: FormData, name: str) -> str:
    return str(form.get(name, ""))


def _form(handle: Posted | None) -> Callable[[Request], Awaitable[Response]]:
    """A handler of a form, which is refused unless this console gave it to this visitor."""

    async def endpoint(request: Request) -> Response:
        form = await request.form(max_fields=MOST_CHANGED + 20, max_part_size=MAX_REQUEST_BYTES)
        own: str = request.session.get("csrf", "")
        if not own or not hmac.compare_digest(_text(form, "csrf").encode(), own.encode()):
            raise HTTPException(
                403,
                "this form is not from this console, or the console was restarted; load the page again",
            )
        guard: Guard = request.app.state.guard
        if handle is None:
            if request.url.path == "/sign-out":
                return guard.sign_out(request)
            answer = guard.sign_in(request, _text(form, "token").strip())
            return answer or page(request, "sign_in.html", 403, wrong=True)
        source = _services(request).source(_text(form, "endpoint"))
        return await run_in_threadpool(handle, request, form, source)

    return endpoint


def _look(_: Request, __: FormData, source: Source) -> Response:
    source.errors_sample.forget()
    source.errors_sample.get()
    return RedirectResponse(f"/errors?endpoint={wire(source.name)}", 303)


def _asked(form: FormData) -> tuple[str, list[str]]:
    """The action that a form names, and the marks of the messages that were chosen for it."""
    action = _text(form, "action")
    if action not in services.ON_PARKED + ON_FAILED:
        raise errors.ConfigurationError(f"{action!r} is not an action on messages")
    return action, [str(each) for each in form.getlist("m")]


def _confirm(request: Request, form: FormData, source: Source) -> Response:
    """Say for how many messages it is, show some, and ask for what else has to be known."""
    (action, marks), every = _asked(form), _text(form, "which") == "all"
    which = messages.Filter.of(dict(parse_qsl(_text(form, "filter"), errors="surrogatepass")))
    given = {name: _text(form, name).strip() for name in ("delay", "due_at")}
    values: dict[str, Any] = {"due_ms": None, "trouble": None, "first": False, "given": given}
    if action in ON_FAILED:
        looked_at = messages.failed(source, which, unquote(_text(form, "group")))
        chosen = [each for each in looked_at if every or each.key in marks]
        marks = [each.key for each in chosen] if every else marks
        values["undated"] = any(each.due_ms is None for each in chosen)
        values["examples"] = [
            (each.message_id, each.due_ms, each.reason, each.body) for each in chosen[:EXAMPLES]
        ]
    else:
        if every:
            after = unquote(_text(form, "after")) or None
            these = messages.listed(source, which, after=after, limit=MOST_CHANGED, bodies=False)
            marks = [f"{row.due_ms}:{wire(row.message_id)}" for row in these.rows]
            values["first"] = these.next and ("next" if after else "first")
        parked = [Chosen.of(mark) for mark in marks]
        sample = source.store_sample.get()
        known = sample.value if sample.tells(source.clock.now_ms()) else None
        values["hops"] = any(each.due_ms is None for each in parked)
        values["unserved"] = known is not None and known.overdue
        some = parked[:EXAMPLES]
        kept: list[Any] = [None] * EXAMPLES
        with suppress(errors.SqsDelayError):
            kept = source.of_store(lambda place: [place.find(each.id) for each in some])
        values["examples"] = [
            (each.id, each.due_ms, None, stored and Body.of(stored.body))
            for each, stored in zip(some, kept, strict=False)
        ]
        if action == "reschedule" and any(given.values()):
            try:
                due = due_time(*messages.typed_due(**given))
                values["due_ms"] = due.due_ms(0 if due.absolute else source.latest_ms())
            except errors.InvalidDelay as error:
                values["trouble"] = one_line(error)
    _check_count(marks)
    values |= {"action": action, "marks": marks, "key": secrets.token_urlsafe(12)}
    return page(request, "confirm.html", of=source, **values)


def _check_count(marks: list[str]) -> None:
    if not 1 <= len(marks) <= MOST_CHANGED:
        raise errors.ConfigurationError(
            f"{len(marks)} messages are chosen; choose 1 to {MOST_CHANGED} in the list"
        )


def _do(request: Request, form: FormData, source: Source) -> Response:
    action, marks = _asked(form)
    _check_count(marks)
    now, due_at = bool(_text(form, "undated_now")), _text(form, "due_at")
    if action in ON_FAILED:
        work = services.of_failed(source, action, marks, undated_now=now)
    else:
        due_ms = due_at_ms(parse_due_at(due_at)) if action == "reschedule" else None
        work = services.of_parked(source, action, [Chosen.of(mark) for mark in marks], due_ms)
    return _made(request, form, source, action, work, (marks, now, due_at))


def _made(
    request: Request, form: FormData, source: Source, what: str, work: Work, asked: object
) -> Response:
    key = _text(form, "key")
    if not 8 <= len(key) <= 64 or wire(key) != key:
        raise errors.ConfigurationError("the form has no key; load the page again")
    change = Change(what, source.name, asked, request.state.visitor)
    _services(request).make(key, change, work)
    return RedirectResponse(f"/results/{key}", 303)


def _previewed(request: Request, form: FormData, source: Source) -> Response:
    # A form's lines end in CR LF; the text in the field does not.
    given = {name: _text(form, name).replace("\r\n", "\n") for name in services.FIELDS}
    try:
        shown: Any = {"preview": services.preview(source, services.message_of(source, given))}
    except (errors.SqsDelayError, ValueError) as error:
        shown = {"trouble": one_line(error)}
    return _send_page(request, source, given, **shown)


def _sent(request: Request, form: FormData, source: Source) -> Response:
    """Send what was previewed; its fields are percent-encoded, so that no browser alters them."""
    given = {name: unquote(_text(form, name)) for name in services.FIELDS}
    work = services.sent(source, services.message_of(source, given))
    return _made(request, form, source, "send", work, given)


ROUTES: Final = [
    Route("/", _overview),
    Route("/messages", _messages),
    Route("/message", _message),
    Route("/errors", _errors),
    Route("/results/{key}", _result),
    Route("/send", lambda request: _send_page(request, _source(request), {})),
    Route("/cost", _cost),
    Route("/sign-in", _sign_in),
    Route("/sign-in", _form(None), methods=["POST"]),
    Route("/sign-out", _form(None), methods=["POST"]),
    Route("/errors/look", _form(_look), methods=["POST"]),
    Route("/confirm", _form(_confirm), methods=["POST"]),
    Route("/do", _form(_do), methods=["POST"]),
    Route("/send/preview", _form(_previewed), methods=["POST"]),
    Route("/send/do", _form(_sent), methods=["POST"]),
    Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
]


def _failed(request: Request, error: Exception) -> Response:
    silent = errors.StoreError | errors.QueueUnavailable | errors.BodyStoreUnavailable
    status, text = 503 if isinstance(error, silent) else 400, str(error)
    if isinstance(error, HTTPException):
        status, text = error.status_code, error.detail
    elif isinstance(error, errors.InvalidEndpoint):
        status = 404
    title = "This cannot be shown" if status == 404 else "This cannot be done"
    return page(request, "problem.html", status, title=title, text=one_line(text))


def create_app(services: Services, *, port: int) -> Guard:
    """The application, guarded; the port it listens on is part of the names it may be called by."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(services.close)

    handlers: dict[Any, Any] = {errors.SqsDelayError: _failed, HTTPException: _failed}
    app = Starlette(routes=ROUTES, exception_handlers=handlers, lifespan=lifespan)
    app.state.services, app.state.templates = services, templates(services)
    app.state.guard = guard = Guard(app, services.access, port, services.clock.monotonic)
    return guard
