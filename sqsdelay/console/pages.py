"""The pages: to get one changes nothing; their forms say what will happen, and then do it."""

from __future__ import annotations

import hmac
import re
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
from sqsdelay.console.messages import BODY_SHOWN, Chosen, Filter, text_of, utc_input
from sqsdelay.console.overview import Span
from sqsdelay.console.rendering import page, wire
from sqsdelay.console.services import MOST_CHANGED, Services
from sqsdelay.console.source import Source
from sqsdelay.core.delay import due_at_ms, due_time, parse_delay, parse_due_at
from sqsdelay.core.readable import age, instant, one_line
from sqsdelay.cost import Workload, recommend
from sqsdelay.errors import (
    ConfigurationError,
    InvalidDelay,
    NoStore,
    SqsDelayError,
    StoreError,
)
from sqsdelay.limits import MAX_BATCH_ENTRIES
from sqsdelay.operating.status import overdue_remedy

EXAMPLES: Final = 10
"""Messages named in a confirmation; the others are counted."""

_DAY: Final = 86_400
_DELAYS: Final = (
    "15m", "30m", "1h", "2h", "3h", "6h", "12h", "1d", "2d", "3d", "7d", "14d", "30d", "60d", "90d",
    "180d", "365d", "730d", "1825d", "3650d",
)  # fmt: skip
SLIDERS: Final = {
    "delay": _DELAYS,
    "messages": tuple(str(10**n) for n in range(10)),
    "size": ("256", "512", "1024", "2048", "4096", "16384", "65536", "262144", "1000000"),
    "batch": tuple(map(str, range(1, MAX_BATCH_ENTRIES + 1))),
}
"""The stops of the Cost page's sliders; their fields take any number."""


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
    for each in (source.store_sample, source.queues_sample):
        each.start()
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
        tomorrow=instant(source.clock.now_ms() + _DAY * 1000)[:19],
    )


def _message(request: Request) -> Response:
    services, given = _services(request), request.query_params
    source = services.source(given.get("endpoint"))
    found = messages.found(source, given.get("id", ""), services.ledger)
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
        dated=failures.dated,
        preview=failures.preview,
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
    start = {"delay": "30d", "messages": "1000000", "size": "1024", "batch": "1"}
    given = {name: request.query_params.get(name, value) for name, value in start.items()}
    advice, load, trouble = None, None, None
    try:
        load = Workload(
            delay_seconds=round(parse_delay(given["delay"]).total_seconds()),
            messages=_whole("messages", given["messages"]),
            message_bytes=_whole("size", given["size"]),
            batch=_whole("batch", given["batch"]),
        )
        advice = recommend(load, sending.prices())
    except SqsDelayError as error:
        trouble = one_line(error)
    return page(
        request,
        "cost.html",
        given=given,
        sliders=SLIDERS,
        load=load,
        advice=advice,
        prices=sending.prices(),
        trouble=trouble,
    )


def _whole(name: str, text: str) -> int:
    digits = re.sub(r"[\s,_]", "", text)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise ConfigurationError(f"{name} is {text!r}; give a whole number")
    return int(digits)


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
    fields = {"due_at": "", "given_delay": "", "given_due": "", "trouble": None, "undated": False}
    return page(
        request,
        "confirm.html",
        endpoint=source.name,
        action=_text(form, "action"),
        marks=marks,
        key=secrets.token_urlsafe(12),
        **fields | values,
    )


def _some(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _confirm_messages(request: Request, form: FormData) -> Response:
    source = _services(request).source(_text(form, "endpoint"))
    action, whole, due_ms, trouble = _text(form, "action"), True, None, None
    if _text(form, "which") == "all":
        rows, whole = messages.matching(source, _filter(form))
        marks = [f"{row.due_ms}:{wire(row.id)}" for row in rows]
        if not marks:
            raise ConfigurationError("no message matches; change the filter")
    else:
        marks = _marks(form)
    chosen, some = _chosen(marks), _some(len(marks))
    delay, due_at = _text(form, "delay").strip(), utc_input(_text(form, "due_at"))
    if action == "reschedule" and (delay or due_at):
        try:
            due_ms = _new_due_ms(source, delay, due_at)
        except InvalidDelay as error:
            trouble = one_line(error)
    late = "A message that is being released at that moment still arrives; the result lists it."
    if any(each.due_ms is None for each in chosen) and action != "release":
        late = f"A message in the delay queue is changed at its next hop. {late}"
    when = "at the time you give" if due_ms is None else f"at {instant(due_ms)}"
    actions = {
        "cancel": (
            f"Cancel {some} of {source.name}?",
            "They are removed from the store and never sent. This cannot be undone.",
            f"Cancel {some}",
        ),
        "release": (
            f"Release {some} of {source.name} now?",
            f"They become due at once, whatever their due time. {_releases(source)}",
            f"Release {some} now",
        ),
        "reschedule": (
            f"Reschedule {some} of {source.name}?",
            f"They will be due {when}, instead of at their present due time.",
            None if due_ms is None else f"Move {some}",
        ),
    }
    title, sentence, button = _one_of(actions, action)
    first = f"These are the first {MOST_CHANGED:,} that match; there are more." if not whole else ""
    return _confirm(
        request,
        source,
        form,
        marks,
        target="/messages",
        title=title,
        sentences=[each for each in (first, sentence, late) if each],
        button=button,
        examples=_examples(source, chosen[:EXAMPLES]),
        due_at="" if due_ms is None else instant(due_ms),
        given_delay=_text(form, "delay"),
        given_due=_text(form, "due_at"),
        trouble=trouble,
    )


def _one_of(actions: dict[str, Any], action: str) -> Any:
    if action not in actions:
        raise ConfigurationError(f"{action!r} is not an action on these messages")
    return actions[action]


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
    rows = [None if each is None else messages.row_of(each) for each in found]
    return [
        (each.id, each.due_ms, "" if row is None else f"{row.kind} {row.start}")
        for each, row in zip(chosen, rows, strict=True)
    ]


def _releases(source: Source) -> str:
    """Who sends what is due."""
    soonest = source.soonest_seconds
    if soonest is not None:
        return (
            f"But this store cannot make a message due sooner than in {age(soonest)}: they will "
            "stay as they are. Cancel them and send them again instead."
        )
    status = source.store_sample.get().value
    if status is not None and status.overdue:
        remedy = overdue_remedy(source.endpoint, source.store_url or "")
        return f"But no dispatcher seems to run: {remedy}."
    return "The dispatcher sends them next."


def _change_messages(request: Request, form: FormData) -> Response:
    source, action, marks = _target(request, form)
    _one_of(dict.fromkeys(("cancel", "release", "reschedule")), action)
    due_at = _text(form, "due_at")
    due_ms = due_at_ms(parse_due_at(due_at)) if action == "reschedule" else None
    work = messages.changed(source, action, _chosen(marks), due_ms)
    return _made(request, form, source, action, work, (marks, due_at))


def _target(request: Request, form: FormData) -> tuple[Source, str, list[str]]:
    return _services(request).source(_text(form, "endpoint")), _text(form, "action"), _marks(form)


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
    known = {each.copy.sqs_message_id: each for each in failures.matching(source, _filter(form))}
    if _text(form, "which") == "all":
        group = unquote(_text(form, "group"))
        marks = [key for key, each in known.items() if failures.kind_of(each.reason) == group]
        if not marks:
            raise ConfigurationError("no message matches; look at the error queue again")
    else:
        marks = _marks(form)
    chosen = [known[mark] for mark in marks if mark in known]
    some, action = _some(len(marks)), _text(form, "action")
    actions = {
        "retry": (
            f"Retry {some} of {source.name}?",
            "Each is sent to its destination, or to the delay queue where it is not due yet, with its "
            "message id and attributes. It leaves the error queue once the other queue has confirmed it.",
            f"Retry {some}",
        ),
        "discard": (
            f"Discard {some} of {source.name}?",
            "They are deleted from the error queue, and there is no other copy. This cannot be undone.",
            f"Discard {some}",
        ),
    }
    title, sentence, button = _one_of(actions, action)
    examples = [
        (
            text_of(each.message_id),
            failures.dated(each),
            f"{each.reason or ''} {' '.join(failures.preview(each))}",
        )
        for each in chosen[:EXAMPLES]
    ]
    return _confirm(
        request,
        source,
        form,
        marks,
        target="/errors",
        title=title,
        sentences=[sentence],
        button=button,
        examples=examples,
        undated=action == "retry" and any(failures.dated(each) is None for each in chosen),
    )


def _change_errors(request: Request, form: FormData) -> Response:
    source, action, marks = _target(request, form)
    _one_of(dict.fromkeys(("retry", "discard")), action)
    undated_now = bool(_text(form, "undated_now"))
    work = failures.changed(source, action, marks, undated_now=undated_now)
    return _made(request, form, source, action, work, (marks, undated_now))


def _preview(request: Request, form: FormData) -> Response:
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
    "/send/preview": _preview,
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
