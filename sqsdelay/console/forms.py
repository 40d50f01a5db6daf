"""What a page's forms do: say what will happen, then do it. Each carries the visitor's secret."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from sqsdelay.console import failures
from sqsdelay.console.api import services_of, visitor_of
from sqsdelay.console.failures import kind_of
from sqsdelay.console.jobs import Job, new_key
from sqsdelay.console.pages import unsent, utc_input
from sqsdelay.console.rendering import page, text_of, wire
from sqsdelay.console.schemas import (
    ChangeRequest,
    ChosenMessage,
    ErrorsRequest,
    MoveRequest,
    RetryRequest,
    SendRequest,
)
from sqsdelay.console.source import Source, told
from sqsdelay.core.readable import age, instant, one_line
from sqsdelay.errors import ConfigurationError, InvalidDelay, SqsDelayError
from sqsdelay.operating.status import overdue_remedy

SHOWN: Final = 20
"""Messages named in a confirmation; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What is asked for.

    Args:
        action: ``cancel``, ``release``, ``reschedule``, ``retry`` or ``discard``.
        target: where its form goes.
        title: the question.
        sentences: what will happen.
        button: the answer; None where a due time is still to be given.
        names: of whom, as far as they are shown; each with what is known of it.
        more: how many others.
        final: it cannot be undone.
        due: the new due time.
    """

    action: str
    endpoint: str
    target: str
    title: str
    sentences: list[str]
    button: str | None
    names: list[tuple[str, str]] = field(default_factory=list)
    more: int = 0
    final: bool = False
    due: str | None = None
    undated: bool = False


def of_messages(
    source: Source, action: str, chosen: Sequence[ChosenMessage], due_ms: int | None
) -> Confirmation:
    """Before messages are cancelled, released or moved.

    Raises:
        ConfigurationError: no such change.
    """
    some = _messages(len(chosen))
    names = [
        (each.id, "" if each.due_ms is None else instant(each.due_ms)) for each in chosen[:SHOWN]
    ]
    late = "A message that is being released at that moment still arrives; the result lists it."
    elsewhere = (
        "A message in the delay queue is changed at its next hop."
        if any(each.due_ms is None for each in chosen)
        else None
    )
    sentences: list[str | None]
    button: str | None
    if action == "cancel":
        title, button = f"Cancel {some} of {source.name}?", f"Cancel {some}"
        sentences = [
            "They are removed from the store and never sent. This cannot be undone.", elsewhere, late
        ]  # fmt: skip
    elif action == "release":
        title, button = f"Release {some} of {source.name} now?", f"Release {some} now"
        sentences = [
            f"They become due at once, whatever their due time. {_releases(source)}", late,
        ]  # fmt: skip
    elif action == "reschedule":
        title = f"Reschedule {some} of {source.name}?"
        button = None if due_ms is None else f"Move {some}"
        when = "at the time you give" if due_ms is None else f"at {instant(due_ms)}"
        sentences = [
            f"They will be due {when}, instead of at their present due time.",
            elsewhere,
            late,
        ]
    else:
        raise ConfigurationError(f"{action!r} is not an action on messages")
    return Confirmation(
        action=action,
        endpoint=source.name,
        target="/messages/do",
        title=title,
        sentences=[each for each in sentences if each],
        button=button,
        names=names,
        more=len(chosen) - len(names),
        final=action == "cancel",
        due=None if due_ms is None else instant(due_ms),
    )


def _releases(source: Source) -> str:
    """Who sends what is due."""
    told(lambda: source.of_store(lambda found: found).get())
    soonest = source.soonest_seconds
    if soonest is not None:
        return (
            f"But this store cannot make a message due sooner than in {age(soonest)}: they will "
            "stay as they are. Cancel them and send them again instead."
        )
    status = source.store_sample.get().value
    if status is not None and status.overdue:
        remedy = overdue_remedy(source.endpoint, source.store_url or "")
        return f"But no dispatcher seems to be working: they will wait until one is; {remedy}."
    return "The dispatcher sends them next, within seconds if it runs continuously."


def of_errors(source: Source, action: str, keys: Sequence[str], reason: str | None) -> Confirmation:
    """Before messages of an error queue are sent on or discarded.

    Raises:
        ConfigurationError: no such change.
    """
    seen = source.errors_sample.get().value or ()
    chosen = [
        each
        for each in seen
        if (each.copy.sqs_message_id in keys if reason is None else kind_of(each.reason) == reason)
    ]
    some = _messages(len(keys)) if reason is None else "all messages of this reason"
    if action == "retry":
        title, button = f"Retry {some} of {source.name}?", f"Retry {some}"
        sentences = [
            f"Each goes to {source.name}, or to its delay queue if it is not due yet, with its id, due "
            "time and attributes. It leaves the error queue once the other queue has confirmed it."
        ]
    elif action == "discard":
        title, button = f"Discard {some} of {source.name}?", f"Discard {some}"
        sentences = [
            "They are deleted from the error queue, and there is no other copy. This cannot be undone."
        ]
    else:
        raise ConfigurationError(f"{action!r} is not an action on an error queue")
    if reason is not None:
        sentences.append(
            f"{len(chosen):,} of them were there when the queue was read; newer ones are included."
        )
    names = [(text_of(each.message_id), text_of(each.reason or "")) for each in chosen[:SHOWN]]
    return Confirmation(
        action=action,
        endpoint=source.name,
        target="/errors/do",
        title=title,
        sentences=sentences,
        button=button,
        names=names,
        more=max(0, len(chosen) - len(names)),
        final=action == "discard",
        undated=action == "retry" and any(not isinstance(each.due, int) for each in chosen),
    )


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


TEXT = Annotated[str, Form()]


def own_form(request: Request, csrf: Annotated[str, Form()] = "") -> None:
    """Refuse a form that this console did not give to this visitor.

    Raises:
        HTTPException
    """
    if not hmac.compare_digest(csrf.encode(), visitor_of(request).csrf.encode()):
        raise HTTPException(
            403,
            "this form is not from this console, or the console was restarted; load the page again",
        )


router = APIRouter(include_in_schema=False, dependencies=[Depends(own_form)])


def chosen(values: list[str]) -> list[ChosenMessage]:
    """The messages of a list's checked boxes: ``due_ms:id``, the id percent-encoded.

    Raises:
        ConfigurationError: none, too many, or no such value.
    """
    found = []
    for value in values:
        due, colon, message_id = value.partition(":")
        if not colon or (due and not (due.isascii() and due.isdigit() and len(due) <= 15)):
            raise ConfigurationError("the form names no message; load the page again")
        found.append(ChosenMessage(id=unquote(message_id), due_ms=int(due) if due else None))
    if not 1 <= len(found) <= 1000:
        raise ConfigurationError(f"{len(found)} messages are chosen; choose 1 to 1000 in the list")
    return found


def _shown_job(job: Job) -> RedirectResponse:
    return RedirectResponse(f"/jobs/{job.key}", status_code=303)


@router.post("/messages/confirm")
def confirm_messages(
    request: Request,
    endpoint: TEXT,
    action: TEXT,
    m: Annotated[list[str], Form(default_factory=list)],
    delay: TEXT = "",
    due_at: TEXT = "",
) -> Response:
    """What will happen to some messages."""
    services = services_of(request)
    source = services.source(endpoint)
    due_ms, trouble = None, None
    if action == "reschedule" and (delay or due_at):
        try:
            due_ms = services.new_due_ms(source, delay.strip(), utc_input(due_at.strip()))
        except InvalidDelay as error:
            trouble = one_line(error)
    try:
        confirmation = of_messages(source, action, chosen(m), due_ms)
    except ConfigurationError as error:
        return page(
            request, "problem.html", {"title": "Nothing is chosen", "text": str(error)}, status=400
        )
    return _confirm(request, confirmation, m, trouble, {"delay": delay, "due_at": due_at})


@router.post("/messages/do")
def change_messages(
    request: Request,
    endpoint: TEXT,
    action: TEXT,
    key: TEXT,
    m: Annotated[list[str], Form(default_factory=list)],
    due_at: TEXT = "",
) -> Response:
    """Do it."""
    services, who, some = services_of(request), visitor_of(request).name, chosen(m)
    if action == "cancel":
        return _shown_job(services.cancel(endpoint, ChangeRequest(messages=some, key=key), who))
    if action == "release":
        return _shown_job(services.release(endpoint, ChangeRequest(messages=some, key=key), who))
    if action == "reschedule":
        move = MoveRequest(messages=some, key=key, due_at=due_at)
        return _shown_job(services.move(endpoint, move, who))
    raise ConfigurationError(f"{action!r} is not an action on messages")


@router.post("/errors/look")
def look_at_errors(request: Request, endpoint: TEXT) -> Response:
    """Receive what is in the error queue, for the page."""
    failures.looked_at(services_of(request).source(endpoint), look=True)
    return RedirectResponse(f"/errors?endpoint={wire(endpoint)}", status_code=303)


@router.post("/errors/confirm")
def confirm_errors(
    request: Request,
    endpoint: TEXT,
    action: TEXT,
    m: Annotated[list[str], Form(default_factory=list)],
    reason: TEXT = "",
) -> Response:
    """What will happen to messages of the error queue."""
    source = services_of(request).source(endpoint)
    if not m and not reason:
        text = "choose messages in the list, or all with one reason"
        return page(
            request, "problem.html", {"title": "Nothing is chosen", "text": text}, status=400
        )
    confirmation = of_errors(source, action, m, unquote(reason) if reason else None)
    return _confirm(request, confirmation, m, None, {"reason": reason})


@router.post("/errors/do")
def change_errors(
    request: Request,
    endpoint: TEXT,
    action: TEXT,
    key: TEXT,
    m: Annotated[list[str], Form(default_factory=list)],
    reason: TEXT = "",
    undated_now: Annotated[bool, Form()] = False,
) -> Response:
    """Do it."""
    services, who = services_of(request), visitor_of(request).name
    which: dict[str, Any] = {"reason": unquote(reason)} if reason else {"keys": m}
    if action == "retry":
        retry = RetryRequest(key=key, undated_now=undated_now, **which)
        return _shown_job(services.retry(endpoint, retry, who))
    if action == "discard":
        return _shown_job(services.discard(endpoint, ErrorsRequest(key=key, **which), who))
    raise ConfigurationError(f"{action!r} is not an action on an error queue")


@router.post("/send/preview")
def preview(
    request: Request,
    endpoint: TEXT,
    body: TEXT = "",
    delay: TEXT = "",
    due_at: TEXT = "",
    id: TEXT = "",
    group: TEXT = "",
    attributes: TEXT = "",
) -> HTMLResponse:
    """Where a message would go and what it costs."""
    services = services_of(request)
    source = services.source(endpoint)
    given = {
        # A form's lines end in CR LF; the text in the field does not.
        "body": body.replace("\r\n", "\n"), "delay": delay, "due_at": due_at, "id": id, "group": group,
        "attributes": attributes,
    }  # fmt: skip
    values = unsent(source.name, given)
    try:
        values["preview"] = services.sends.preview(source, _message(given, None))
        values["key"] = new_key()
    except (SqsDelayError, ValueError) as error:
        values["trouble"] = one_line(error)
    return page(request, "send.html", values, status=400 if values["trouble"] else 200)


@router.post("/send/do")
def send(
    request: Request,
    endpoint: TEXT,
    key: TEXT,
    body: TEXT = "",
    delay: TEXT = "",
    due_at: TEXT = "",
    id: TEXT = "",
    group: TEXT = "",
    attributes: TEXT = "",
) -> Response:
    """Send what was previewed; its fields are percent-encoded, so that no browser alters them."""
    given = {
        "body": body, "delay": delay, "due_at": due_at, "id": id, "group": group,
        "attributes": attributes,
    }  # fmt: skip
    message = _message({name: unquote(value) for name, value in given.items()}, key)
    return _shown_job(services_of(request).send(endpoint, message, visitor_of(request).name))


def _message(given: dict[str, str], key: str | None) -> SendRequest:
    if not given["body"]:
        raise ConfigurationError("the body is empty; SQS requires at least 1 character")
    return SendRequest(
        body=given["body"],
        delay=given["delay"].strip() or None,
        due_at=utc_input(given["due_at"].strip()) or None,
        id=given["id"].strip() or None,
        group=given["group"].strip() or None,
        attributes=[line.strip() for line in given["attributes"].splitlines() if line.strip()],
        key=key,
    )


def _confirm(
    request: Request,
    confirmation: Confirmation,
    marks: list[str],
    trouble: str | None,
    given: dict[str, str],
) -> HTMLResponse:
    return page(
        request,
        "confirm.html",
        {
            "endpoint": confirmation.endpoint,
            "confirmation": confirmation,
            "marks": marks,
            "trouble": trouble,
            "given": {"delay": "", "due_at": "", "reason": ""} | given,
            "key": new_key(),
        },
    )
