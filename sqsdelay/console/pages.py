"""The pages: to get one changes nothing; their forms say what will happen, and then do it."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sqsdelay.console import failures, messages, overview, sending
from sqsdelay.console.messages import (
    BODY_SHOWN,
    Chosen,
    Filter,
    kind_of_body,
    preview,
    text_of,
    utc_input,
)
from sqsdelay.console.overview import Span
from sqsdelay.console.rendering import page, wire
from sqsdelay.console.services import MOST_CHANGED, Services
from sqsdelay.console.source import Source
from sqsdelay.core.delay import due_at_ms, due_time, parse_delay, parse_due_at
from sqsdelay.core.readable import age, instant, one_line
from sqsdelay.errors import (
    ConfigurationError,
    InvalidDelay,
    NoStore,
    SqsDelayError,
    StoreError,
)
from sqsdelay.operating.status import overdue_remedy

EXAMPLES: Final = 10
"""Messages named in a confirmation; the others are counted."""


def _services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def _text(form: FormData, name: str) -> str:
    """A field of a form; an uploaded file is none."""
    value = form.get(name, "")
    return value if isinstance(value, str) else ""


def _filter(form: FormData) -> Filter:
    """The filter of the list that a form stands on."""
    return Filter.of(dict(parse_qsl(_text(form, "filter"), errors="surrogatepass")))


def _page_of(source: Source, path: str, more: str = "") -> str:
    return f"{path}?endpoint={wire(source.name)}{more}"


# To look at.


def _overview(request: Request) -> Response:
    services = _services(request)
    given = request.query_params.get("span", Span.HOURS)
    span = Span(given) if given in list(Span) else Span.HOURS
    states, recent = overview.states_of(services, span), overview.recent(services)
    return page(request, "overview.html", states=states, recent=recent, span=span, spans=list(Span))


def _messages(request: Request) -> Response:
    services, given = _services(request), request.query_params
    source, which = services.source(given.get("endpoint")), Filter.of(given)
    if given.get("id"):
        return RedirectResponse(_page_of(source, "/message", f"&id={wire(given['id'])}"), 303)
    source.start()
    found, refusal = None, None
    try:
        found = messages.listed(source, which, after=given.get("after"))
    except NoStore as error:
        refusal = one_line(error)
    except StoreError as error:
        refusal = f"The store cannot be shown: {one_line(error)}"
    return page(
        request,
        "messages.html",
        endpoint=source.name,
        found=found,
        refusal=refusal,
        which=which,
        after=given.get("after"),
        store=source.store_sample.get(),
        queues=source.queues_sample.get(),
        can_release=source.soonest_seconds is None,
        now=instant(source.clock.now_ms())[:19],
        tomorrow=instant(source.clock.now_ms() + 86_400_000)[:19],
    )


def _message(request: Request) -> Response:
    services, given = _services(request), request.query_params
    source = services.source(given.get("endpoint"))
    source.start()
    found = messages.found(source, given.get("id", ""), services.ledger)
    source.store_sample.get()
    return page(
        request,
        "message.html",
        endpoint=source.name,
        view=found,
        body_shown=BODY_SHOWN,
        can_change=source.store_url is not None
        and found.where in ("store", "elsewhere", "unknown"),
        can_release=source.soonest_seconds is None,
    )


def _errors(request: Request) -> Response:
    services, given = _services(request), request.query_params
    source, which = services.source(given.get("endpoint")), Filter.of(given)
    source.start()
    found = failures.matching(source, which)
    sample = source.errors_sample.known()
    status = source.queues_sample.get() if sample.trouble is None else source.queues_sample.known()
    return page(
        request,
        "errors.html",
        endpoint=source.name,
        on_sqs=source.on_sqs,
        which=which,
        groups=failures.grouped(found),
        found=len(found),
        looked=sample,
        about=None if status.value is None else status.value.errors,
        counted=status,
        dated=failures.dated,
    )


def _result(request: Request) -> Response:
    found = _services(request).change(request.path_params["key"])
    if found is None:
        text = "The console was restarted, or no longer keeps it. Its log has the result."
        return page(request, "problem.html", 404, title="This change is not known", text=text)
    return page(request, "result.html", change=found)


def _send(request: Request) -> Response:
    source = _services(request).source(request.query_params.get("endpoint"))
    return _send_page(request, source, dict.fromkeys(sending.FIELDS, ""))


def _send_page(request: Request, source: Source, given: dict[str, str], **more: Any) -> Response:
    values = {"preview": None, "trouble": None, "key": secrets.token_urlsafe(12), **more}
    status = 400 if values["trouble"] else 200
    return page(request, "send.html", status, endpoint=source.name, given=given, **values)


def _cost(request: Request) -> Response:
    return page(request, "cost.html", **sending.advised(request.query_params))


def _sign_in(request: Request) -> Response:
    if _services(request).access.token is None:
        return RedirectResponse("/", 303)
    return page(request, "sign_in.html", wrong=False)


# To change.

Posted = Callable[[Request, FormData], Response]


def _form(handle: Posted) -> Callable[[Request], Awaitable[Response]]:
    """A handler of a form, which is refused unless this console gave it to this visitor."""

    async def endpoint(request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=MOST_CHANGED + 20)
        own: str = request.state.csrf
        if not own or not hmac.compare_digest(_text(form, "csrf").encode(), own.encode()):
            raise HTTPException(
                403,
                "this form is not from this console, or the console was restarted; load the page again",
            )
        return await run_in_threadpool(handle, request, form)

    return endpoint


def _signed_in(request: Request, form: FormData) -> Response:
    answer = request.app.state.guard.sign_in(request, _text(form, "token").strip())
    if isinstance(answer, Response):
        return answer
    return RedirectResponse("/", 303) if answer else page(request, "sign_in.html", 403, wrong=True)


def _signed_out(request: Request, _: FormData) -> Response:
    request.app.state.guard.sign_out(request)
    return RedirectResponse("/sign-in", 303)


def _marks(form: FormData) -> list[str]:
    found = [each for each in form.getlist("m") if isinstance(each, str)]
    if not 1 <= len(found) <= MOST_CHANGED:
        raise ConfigurationError(
            f"{len(found)} messages are chosen; choose 1 to {MOST_CHANGED} in the list"
        )
    return found


def _chosen(marks: Sequence[str]) -> list[Chosen]:
    """The messages of a list's boxes: ``due_ms:id``, the id percent-encoded."""
    found = []
    for mark in marks:
        due, colon, message_id = mark.partition(":")
        if not colon or (due and not (due.isascii() and due.isdigit() and len(due) <= 15)):
            raise ConfigurationError("the form names no message; load the page again")
        found.append(Chosen(unquote(message_id), int(due) if due else None))
    return found


def _confirm(
    request: Request, source: Source, form: FormData, marks: Sequence[str], **values: Any
) -> Response:
    action = _text(form, "action")
    some = "1 message" if len(marks) == 1 else f"{len(marks):,} messages"
    given = {name: _text(form, name) for name in ("delay", "due_at")}
    fields = {"some": some, "given": given, "due_ms": None, "trouble": None, "first": False}
    return page(
        request,
        "confirm.html",
        endpoint=source.name,
        action=action,
        target="/messages" if action in _ON_MESSAGES else "/errors",
        marks=marks,
        key=secrets.token_urlsafe(12),
        **fields | values,
    )


_ON_MESSAGES: Final = ("cancel", "release", "reschedule")
_ON_ERRORS: Final = ("retry", "discard")


def _action(form: FormData, known: Sequence[str]) -> str:
    """What a form asks for.

    Raises:
        ConfigurationError
    """
    action = _text(form, "action")
    if action not in known:
        raise ConfigurationError(f"{action!r} is not an action on these messages")
    return action


def _confirm_messages(request: Request, form: FormData) -> Response:
    source = _services(request).source(_text(form, "endpoint"))
    action, whole, due_ms, trouble = _action(form, _ON_MESSAGES), True, None, None
    if _text(form, "which") == "all":
        rows, whole = messages.matching(source, _filter(form))
        marks = [f"{row.due_ms}:{wire(row.message_id)}" for row in rows]
        if not marks:
            raise ConfigurationError("no message matches; change the filter")
    else:
        marks = _marks(form)
    chosen = _chosen(marks)
    delay, due_at = _text(form, "delay").strip(), utc_input(_text(form, "due_at"))
    if action == "reschedule" and (delay or due_at):
        try:
            due_ms = _new_due_ms(source, delay, due_at)
        except InvalidDelay as error:
            trouble = one_line(error)
    return _confirm(
        request,
        source,
        form,
        marks,
        examples=_examples(source, chosen[:EXAMPLES]),
        first=not whole,
        hops=any(each.due_ms is None for each in chosen),
        releases=_releases(source),
        due_ms=due_ms,
        trouble=trouble,
    )


def _new_due_ms(source: Source, delay: str, due_at: str) -> int:
    if bool(delay) == bool(due_at):
        raise InvalidDelay("give either a delay (1d12h) or a due time (2027-01-31T09:00:00Z)")
    due = due_time(parse_delay(delay) if delay else None, parse_due_at(due_at) if due_at else None)
    return due.due_ms(0 if due.absolute else source.latest_ms())


def _examples(source: Source, chosen: Sequence[Chosen]) -> list[tuple[str, int | None, str]]:
    """What the first of them are, as far as the store tells."""
    try:
        found = source.of_store(lambda place: [place.find(each.id) for each in chosen])
    except SqsDelayError:
        found = [None] * len(chosen)
    return [
        (each.id, each.due_ms, "" if stored is None else _start(stored.body))
        for each, stored in zip(chosen, found, strict=True)
    ]


def _start(body: bytes | str) -> str:
    text = text_of(body)
    return f"{kind_of_body(text)} {preview(text)}"


def _releases(source: Source) -> str:
    """Who sends what is due."""
    soonest = source.soonest_seconds
    if soonest is not None:
        return (
            f"But this store cannot make a message due sooner than in {age(soonest)}: they will "
            "stay as they are. Cancel them and send them again instead."
        )
    sample = source.store_sample.get()
    if sample.tells(source.clock.now_ms()) and sample.value and sample.value.overdue:
        remedy = overdue_remedy(source.endpoint, source.store_url or "")
        return f"But no dispatcher seems to run: {remedy}."
    return "The dispatcher sends them next."


def _change_messages(request: Request, form: FormData) -> Response:
    source, action, marks = _target(request, form, _ON_MESSAGES)
    due_at = _text(form, "due_at")
    due_ms = due_at_ms(parse_due_at(due_at)) if action == "reschedule" else None
    work = messages.changed(source, action, _chosen(marks), due_ms)
    return _made(request, form, source, action, work, (marks, due_at))


def _target(
    request: Request, form: FormData, known: Sequence[str]
) -> tuple[Source, str, list[str]]:
    return _services(request).source(_text(form, "endpoint")), _action(form, known), _marks(form)


def _made(
    request: Request, form: FormData, source: Source, what: str, work: Any, asked: object
) -> Response:
    key = _text(form, "key")
    if not 8 <= len(key) <= 64 or wire(key) != key:
        raise ConfigurationError("the form has no key; load the page again")
    _services(request).make(key, what, source, request.state.visitor, work, asked)
    return RedirectResponse(f"/results/{key}", 303)


def _look(request: Request, form: FormData) -> Response:
    source = _services(request).source(_text(form, "endpoint"))
    source.errors_sample.forget()
    source.errors_sample.get()
    return RedirectResponse(_page_of(source, "/errors"), 303)


def _confirm_errors(request: Request, form: FormData) -> Response:
    source = _services(request).source(_text(form, "endpoint"))
    _action(form, _ON_ERRORS)
    known = {each.copy.sqs_message_id: each for each in failures.matching(source, _filter(form))}
    if _text(form, "which") == "all":
        group = unquote(_text(form, "group"))
        marks = [key for key, each in known.items() if failures.kind_of(each.reason) == group]
        if not marks:
            raise ConfigurationError("no message matches; look at the error queue again")
    else:
        marks = _marks(form)
    chosen = [known[mark] for mark in marks if mark in known]
    examples = [
        (each.message_id, failures.dated(each), f"{each.reason or ''} {_start(each.original.body)}")
        for each in chosen[:EXAMPLES]
    ]
    undated = any(failures.dated(each) is None for each in chosen)
    return _confirm(request, source, form, marks, examples=examples, undated=undated)


def _change_errors(request: Request, form: FormData) -> Response:
    source, action, marks = _target(request, form, _ON_ERRORS)
    undated_now = bool(_text(form, "undated_now"))
    work = failures.changed(source, action, marks, undated_now=undated_now)
    return _made(request, form, source, action, work, (marks, undated_now))


def _previewed(request: Request, form: FormData) -> Response:
    source = _services(request).source(_text(form, "endpoint"))
    given = {name: _text(form, name) for name in sending.FIELDS}
    # A form's lines end in CR LF; the text in the field does not.
    given["body"] = given["body"].replace("\r\n", "\n")
    try:
        shown = sending.preview(source, sending.message_of(source, given))
    except (SqsDelayError, ValueError) as error:
        return _send_page(request, source, given, trouble=one_line(error))
    return _send_page(request, source, given, preview=shown)


def _sent(request: Request, form: FormData) -> Response:
    """Send what was previewed; its fields are percent-encoded, so that no browser alters them."""
    source = _services(request).source(_text(form, "endpoint"))
    given = {name: unquote(_text(form, name)) for name in sending.FIELDS}
    work = sending.sent(source, sending.message_of(source, given))
    return _made(request, form, source, "send", work, given)


FORMS: Final[dict[str, Posted]] = {
    "/sign-in": _signed_in,
    "/sign-out": _signed_out,
    "/messages/confirm": _confirm_messages,
    "/messages/do": _change_messages,
    "/errors/look": _look,
    "/errors/confirm": _confirm_errors,
    "/errors/do": _change_errors,
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
