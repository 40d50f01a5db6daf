"""The pages to look at; to get one changes nothing. They show what the API has; `forms` changes things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from sqsdelay.console import costs, failures, messages
from sqsdelay.console.api import services_of
from sqsdelay.console.charts import cost_chart, outlook_chart
from sqsdelay.console.rendering import page, wire
from sqsdelay.console.schemas import ParkedPage, Span, When, bounds_of
from sqsdelay.console.services import Services, job_view
from sqsdelay.console.source import Source
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.delay import due_at_ms, parse_due_at
from sqsdelay.core.readable import one_line
from sqsdelay.cost import Workload
from sqsdelay.errors import NoStore, StoreError
from sqsdelay.limits import MAX_BATCH_ENTRIES

router = APIRouter(include_in_schema=False)


def chosen_source(services: Services, endpoint: str | None) -> Source:
    """The endpoint a page is about; the first one where none is named.

    Raises:
        InvalidEndpoint
    """
    return services.source(endpoint) if endpoint else next(iter(services.sources.values()))


@router.get("/")
def overview(request: Request, span: Span = Span.HOURS) -> HTMLResponse:
    """How everything is."""
    services = services_of(request)
    for source in services.sources.values():
        source.outlooks[span].start()
    view = services.overview.all()
    outlooks = {
        name: services.overview.outlook(source, span) for name, source in services.sources.items()
    }
    charts = {name: outlook_chart(found) for name, found in outlooks.items()}
    return page(
        request,
        "overview.html",
        {
            "view": view,
            "outlooks": outlooks,
            "charts": charts,
            "span": span,
            "spans": list(Span),
            "has_ledger": services.ledger is not None,
        },
    )


@router.get("/messages")
def list_messages(
    request: Request,
    endpoint: str | None = None,
    after: str | None = None,
    due_from: str | None = None,
    due_before: str | None = None,
    when: When | None = None,
    id: str | None = None,
) -> Response:
    """Parked messages, or one that is looked for."""
    services = services_of(request)
    source = chosen_source(services, endpoint)
    if id:
        return RedirectResponse(
            f"/message?endpoint={wire(source.name)}&id={wire(id)}", status_code=303
        )
    found: ParkedPage | None = None
    trouble = None
    source.outlooks[Span.HOURS].start()
    if when is None:
        from_ms = due_at_ms(parse_due_at(utc_input(due_from))) if due_from else None
        before_ms = due_at_ms(parse_due_at(utc_input(due_before))) if due_before else None
    else:
        from_ms, before_ms = bounds_of(when, SystemClock().now_ms())
    try:
        found = messages.listed(
            source, after=after or None, due_from_ms=from_ms, due_before_ms=before_ms
        )
    except (StoreError, NoStore) as error:
        trouble = one_line(error)
    return page(
        request,
        "messages.html",
        {
            "endpoint": source.name,
            "found": found,
            "trouble": trouble,
            "can_release": source.soonest_seconds is None,
            "filters": _filters(services, source, None if found is None else found.total),
            "when": when,
            "after": after,
            "due_from": due_from or "",
            "due_before": due_before or "",
        },
    )


def _filters(
    services: Services, source: Source, total: int | None
) -> list[tuple[When | None, str, int | None]]:
    """Which of the parked messages may be listed, and how many these are, where that is counted."""
    view = services.overview.outlook(source, Span.HOURS)
    counts = [bar.count for bar in view.bars] if view.complete_until is None else []
    return [
        (None, "All", total),
        (When.OVERDUE, "Overdue", counts[0] if counts else None),
        (When.DAY, "Next 24 hours", sum(counts[1:]) if counts else None),
    ]


def utc_input(text: str) -> str:
    """What a browser's field for date and time gives, which has no time zone: here it is UTC."""
    bare = len(text) <= 19 and "T" in text and not text.endswith("Z")
    return f"{text}Z" if bare else text


@router.get("/message")
def message(request: Request, id: str, endpoint: str | None = None) -> HTMLResponse:
    """All that is known of a message."""
    services = services_of(request)
    source = chosen_source(services, endpoint)
    view = messages.found(source, id, services.ledger)
    can_change = source.store_url is not None and view.where in ("store", "elsewhere", "unknown")
    return page(
        request,
        "message.html",
        {
            "endpoint": source.name,
            "view": view,
            "can_change": can_change,
            "can_release": source.soonest_seconds is None,
            "has_ledger": services.ledger is not None,
        },
    )


@router.get("/errors")
def errors(request: Request, endpoint: str | None = None) -> HTMLResponse:
    """What could not be delivered."""
    source = chosen_source(services_of(request), endpoint)
    view = failures.looked_at(source) if source.on_sqs else None
    return page(request, "errors.html", {"endpoint": source.name, "view": view})


@router.get("/jobs/{key}")
def job(request: Request, key: str) -> HTMLResponse:
    """A change, under way or ended."""
    found = services_of(request).jobs.get(key)
    if found is None:
        values = {
            "title": "This change is not known",
            "text": "The console was restarted, or no longer keeps it. Its log has the result.",
        }
        return page(request, "problem.html", values, status=404)
    return page(request, "job.html", {"endpoint": found.endpoint, "job": job_view(found)})


@router.get("/send")
def send(request: Request, endpoint: str | None = None) -> HTMLResponse:
    """A form for a message."""
    source = chosen_source(services_of(request), endpoint)
    return page(request, "send.html", unsent(source.name, {}))


def unsent(endpoint: str, given: Mapping[str, str]) -> dict[str, Any]:
    """What the page of a message that is not sent yet has: what was filled in, and no preview."""
    fields = ("body", "delay", "due_at", "id", "group", "attributes")
    filled = {name: given.get(name, "") for name in fields}
    return {"endpoint": endpoint, "given": filled, "preview": None, "trouble": None, "key": ""}


@router.get("/cost")
def cost(
    request: Request,
    delay: Annotated[int, Query(ge=0, lt=len(costs.DELAYS))] = 12,
    messages: Annotated[int, Query(ge=0, lt=len(costs.COUNTS))] = 6,
    size: Annotated[int, Query(ge=0, lt=len(costs.SIZES))] = 2,
    batch: Annotated[int, Query(ge=1, le=MAX_BATCH_ENTRIES)] = 1,
    rare: bool = False,
) -> HTMLResponse:
    """What delays cost, by sliders."""
    load = Workload(
        delay_seconds=costs.DELAYS[delay],
        messages=costs.COUNTS[messages],
        message_bytes=costs.SIZES[size],
        batch=batch,
        infrequent_access=rare,
    )
    view = costs.cost_view(load)
    found = costs.series(load)
    numbers = {each.strategy: n for n, each in enumerate(found)}
    return page(
        request,
        "cost.html",
        {
            "view": view,
            "chart": cost_chart(found, load.delay_seconds),
            "numbers": numbers,
            "at": {
                "delay": delay,
                "messages": messages,
                "size": size,
                "batch": batch,
                "rare": rare,
            },
            "most": {
                "delay": len(costs.DELAYS) - 1,
                "messages": len(costs.COUNTS) - 1,
                "size": len(costs.SIZES) - 1,
                "batch": MAX_BATCH_ENTRIES,
            },
        },
    )
