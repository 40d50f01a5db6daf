"""The pages: to get one changes nothing; their forms say what will happen, and then do it."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sqsdelay.console import messages, overview, sending, shown
from sqsdelay.console.guard import MAX_REQUEST_BYTES, Guard
from sqsdelay.console.messages import Filter, utc_input
from sqsdelay.console.rendering import page, wire
from sqsdelay.console.sampling import OLD_SECONDS
from sqsdelay.console.services import (
    MOST_CHANGED,
    ON_FAILED,
    ON_PARKED,
    Change,
    Chosen,
    Services,
    Work,
    of_failed,
    of_parked,
)
from sqsdelay.console.source import Source
from sqsdelay.core.delay import due_at_ms, due_time, parse_delay, parse_due_at
from sqsdelay.core.readable import one_line
from sqsdelay.errors import ConfigurationError, InvalidDelay, NoStore, SqsDelayError, StoreError
from sqsdelay.operating.status import NOBODY

EXAMPLES: Final = 10
"""Messages named in a confirmation; the others are counted."""

RECENT: Final = 12
"""Events on the overview."""

# To look at.


def _services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def _source(request: Request) -> Source:
    """The endpoint of a page; its numbers are asked for, to be known by the time that it is shown."""
    source = _services(request).source(request.query_params.get("endpoint"))
    source.start()
    return source


def _overview(request: Request) -> Response:
    services, span = _services(request), request.query_params.get("span", "")
    span = span if span in overview.SPANS else "hours"
    values: dict[str, Any] = {"span": span, "spans": overview.SPANS, "nobody": NOBODY, "recent": []}
    with suppress(SqsDelayError):  # Why a ledger cannot be read is said above the page.
        values["recent"] = services.ledger.recent(services.sources, RECENT)
    return page(request, "overview.html", states=overview.states_of(services, span), **values)


def _messages(request: Request) -> Response:
    source, given = _source(request), request.query_params
    if given.get("id"):
        where = f"/message?endpoint={wire(source.name)}&id={wire(given['id'])}"
        return RedirectResponse(where, 303)
    which, after = Filter.of(given), given.get("after")
    values: dict[str, Any] = {"which": which, "after": after, "found": None, "refusal": None}
    try:
        values["found"] = messages.listed(source, which, after=after)
    except NoStore as error:
        values["refusal"] = one_line(error)
    except StoreError as error:
        values["refusal"] = f"The store cannot be shown: {one_line(error)}"
    return page(request, "messages.html", of=source, **values)


def _message(request: Request) -> Response:
    source = _source(request)
    found = messages.found(source, request.query_params.get("id", ""), _services(request).ledger)
    bounds = {"body_shown": shown.BODY_SHOWN, "old_seconds": OLD_SECONDS}
    return page(request, "message.html", of=source, view=found, **bounds)


def _errors(request: Request) -> Response:
    source, which = _source(request), Filter.of(request.query_params)
    found = messages.failed(source, which)
    groups = shown.grouped(found)
    return page(request, "errors.html", of=source, which=which, groups=groups, found=len(found))


def _result(request: Request) -> Response:
    found = _services(request).change(request.path_params["key"])
    if found is None:
        text = "The console was restarted, or no longer keeps it. Its log has the result."
        return page(request, "problem.html", 404, title="This change is not known", text=text)
    return page(request, "result.html", change=found)


def _send(request: Request) -> Response:
    return _send_page(request, _source(request), dict.fromkeys(sending.FIELDS, ""))


def _send_page(request: Request, source: Source, given: dict[str, str], **more: Any) -> Response:
    values = {"preview": None, "trouble": None, "key": secrets.token_urlsafe(12), **more}
    status = 400 if values["trouble"] else 200
    return page(request, "send.html", status, of=source, given=given, **values)


def _cost(request: Request) -> Response:
    return page(request, "cost.html", **sending.advised(request.query_params))


def _sign_in(request: Request) -> Response:
    if _services(request).access.token is None:
        return RedirectResponse("/", 303)
    return page(request, "sign_in.html", wrong=False)


# To change.

Posted = Callable[[Request, FormData, Source], Response]


def _text(form: FormData, name: str) -> str:
    """A field of a form; an uploaded file is none."""
    value = form.get(name, "")
    return value if isinstance(value, str) else ""


def _form(handle: Posted | None) -> Callable[[Request], Awaitable[Response]]:
    """A handler of a form, which is refused unless this console gave it to this visitor."""

    async def endpoint(request: Request) -> Response:
        form = await request.form(
            max_files=0, max_fields=MOST_CHANGED + 20, max_part_size=MAX_REQUEST_BYTES
        )
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
    if action not in ON_PARKED + ON_FAILED:
        raise ConfigurationError(f"{action!r} is not an action on messages")
    marks = [each for each in form.getlist("m") if isinstance(each, str)]
    return action, marks


def _confirm(request: Request, form: FormData, source: Source) -> Response:
    """Say for how many messages it is, show some, and ask for what else has to be known."""
    (action, marks), every = _asked(form), _text(form, "which") == "all"
    which = Filter.of(dict(parse_qsl(_text(form, "filter"), errors="surrogatepass")))
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
            some = messages.listed(source, which, after=None, limit=MOST_CHANGED, bodies=False)
            marks = [f"{row.due_ms}:{wire(row.message_id)}" for row in some.rows]
            values["first"] = some.next is not None
        parked = [Chosen.of(mark) for mark in marks]
        sample = source.store_sample.get()
        known = sample.value if sample.tells(source.clock.now_ms()) else None
        values["hops"] = any(each.due_ms is None for each in parked)
        values["unserved"] = known is not None and known.overdue
        values["examples"] = _examples(source, parked[:EXAMPLES])
        if action == "reschedule" and any(given.values()):
            try:
                values["due_ms"] = _new_due_ms(source, given["delay"], utc_input(given["due_at"]))
            except InvalidDelay as error:
                values["trouble"] = one_line(error)
    _check_count(marks)
    values |= {"action": action, "marks": marks, "key": secrets.token_urlsafe(12)}
    return page(request, "confirm.html", of=source, **values)


def _check_count(marks: list[str]) -> None:
    if not 1 <= len(marks) <= MOST_CHANGED:
        raise ConfigurationError(
            f"{len(marks)} messages are chosen; choose 1 to {MOST_CHANGED} in the list"
        )


def _new_due_ms(source: Source, delay: str, due_at: str) -> int:
    if bool(delay) == bool(due_at):
        raise InvalidDelay("give either a delay (1d12h) or a due time (2027-01-31T09:00:00Z)")
    due = due_time(parse_delay(delay) if delay else None, parse_due_at(due_at) if due_at else None)
    return due.due_ms(0 if due.absolute else source.latest_ms())


def _examples(
    source: Source, chosen: list[Chosen]
) -> list[tuple[str, int | None, None, shown.Body | None]]:
    """What the first of them are, as far as the store tells."""
    try:
        found = source.of_store(lambda place: [place.find(each.id) for each in chosen])
    except SqsDelayError:
        found = [None] * len(chosen)
    return [
        (each.id, each.due_ms, None, None if stored is None else shown.Body.of(stored.body))
        for each, stored in zip(chosen, found, strict=True)
    ]


def _do(request: Request, form: FormData, source: Source) -> Response:
    action, marks = _asked(form)
    _check_count(marks)
    if action in ON_FAILED:
        now = bool(_text(form, "undated_now"))
        work = of_failed(source, action, marks, undated_now=now)
        return _made(request, form, source, action, work, (marks, now))
    due_at = _text(form, "due_at")
    due_ms = due_at_ms(parse_due_at(due_at)) if action == "reschedule" else None
    work = of_parked(source, action, [Chosen.of(mark) for mark in marks], due_ms)
    return _made(request, form, source, action, work, (marks, due_at))


def _made(
    request: Request, form: FormData, source: Source, what: str, work: Work, asked: object
) -> Response:
    key = _text(form, "key")
    if not 8 <= len(key) <= 64 or wire(key) != key:
        raise ConfigurationError("the form has no key; load the page again")
    change = Change(what, source.name, asked, request.state.visitor)
    _services(request).make(key, change, work)
    return RedirectResponse(f"/results/{key}", 303)


def _previewed(request: Request, form: FormData, source: Source) -> Response:
    # A form's lines end in CR LF; the text in the field does not.
    given = {name: _text(form, name).replace("\r\n", "\n") for name in sending.FIELDS}
    try:
        preview = sending.preview(source, sending.message_of(source, given))
    except (SqsDelayError, ValueError) as error:
        return _send_page(request, source, given, trouble=one_line(error))
    return _send_page(request, source, given, preview=preview)


def _sent(request: Request, form: FormData, source: Source) -> Response:
    """Send what was previewed; its fields are percent-encoded, so that no browser alters them."""
    given = {name: unquote(_text(form, name)) for name in sending.FIELDS}
    work = sending.sent(source, sending.message_of(source, given))
    return _made(request, form, source, "send", work, given)


FORMS: Final[dict[str, Posted | None]] = {
    "/sign-in": None,
    "/sign-out": None,
    "/errors/look": _look,
    "/confirm": _confirm,
    "/do": _do,
    "/send/preview": _previewed,
    "/send/do": _sent,
}

ROUTES: Final = [
    Route("/", _overview),
    Route("/messages", _messages),
    Route("/message", _message),
    Route("/errors", _errors),
    Route("/results/{key}", _result),
    Route("/send", _send),
    Route("/cost", _cost),
    Route("/sign-in", _sign_in),
    *(Route(path, _form(handle), methods=["POST"]) for path, handle in FORMS.items()),
]
