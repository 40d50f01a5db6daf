"""The JSON API: what the pages show and do, for other programs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response

from sqsdelay.console import costs, failures, messages
from sqsdelay.console.guard import Visitor
from sqsdelay.console.jobs import Job
from sqsdelay.console.schemas import (
    ChangeRequest,
    CostView,
    EndpointView,
    ErrorBody,
    ErrorsRequest,
    ErrorsView,
    JobView,
    MessageView,
    MoveRequest,
    OutlookView,
    OverviewView,
    ParkedPage,
    RetryRequest,
    SendPreview,
    SendRequest,
    Span,
)
from sqsdelay.console.services import Services, job_view
from sqsdelay.core.delay import due_at_ms, parse_due_at
from sqsdelay.cost import Workload
from sqsdelay.limits import MAX_BATCH_ENTRIES

router = APIRouter(
    prefix="/api/v1",
    responses={code: {"model": ErrorBody} for code in (400, 401, 403, 404, 409, 503)},
)

BATCH_HELP = f"Messages that share a request, 1 to {MAX_BATCH_ENTRIES}."


def services_of(request: Request) -> Services:
    """The console's services."""
    found = request.app.state.services
    assert isinstance(found, Services)
    return found


def visitor_of(request: Request) -> Visitor:
    """Who asks."""
    found = request.state.visitor
    assert isinstance(found, Visitor)
    return found


def answered(job: Job, response: Response) -> JobView:
    """A job; 202 while it is under way."""
    view = job_view(job)
    if not view.finished:
        response.status_code = 202
    return view


@router.get("/overview")
def overview(request: Request) -> OverviewView:
    """Every endpoint's state, and the last events of the ledger."""
    return services_of(request).overview.all()


@router.get("/endpoints/{endpoint}")
def endpoint_state(endpoint: str, request: Request) -> EndpointView:
    """One endpoint's state."""
    services = services_of(request)
    return services.overview.of(services.source(endpoint))


@router.get("/endpoints/{endpoint}/outlook")
def endpoint_outlook(endpoint: str, request: Request, span: Span = Span.HOURS) -> OutlookView:
    """How many parked messages become due in the coming hours, days or months."""
    services = services_of(request)
    return services.overview.outlook(services.source(endpoint), span)


@router.get("/endpoints/{endpoint}/messages")
def list_messages(
    endpoint: str,
    request: Request,
    after: str | None = None,
    due_from: str | None = None,
    due_before: str | None = None,
    limit: Annotated[int, Query(ge=1, le=messages.MOST_ON_A_PAGE)] = messages.PAGE,
) -> ParkedPage:
    """Parked messages by due time, page by page."""
    return messages.listed(
        services_of(request).source(endpoint),
        after=after,
        due_from_ms=None if due_from is None else due_at_ms(parse_due_at(due_from)),
        due_before_ms=None if due_before is None else due_at_ms(parse_due_at(due_before)),
        limit=limit,
    )


@router.get("/endpoints/{endpoint}/message")
def find_message(
    endpoint: str, request: Request, id: Annotated[str, Query(min_length=1)]
) -> MessageView:
    """All that is known of a message, by its id or SQS's."""
    services = services_of(request)
    return messages.found(services.source(endpoint), id, services.ledger)


@router.post("/endpoints/{endpoint}/messages/cancel")
def cancel(endpoint: str, change: ChangeRequest, request: Request, response: Response) -> JobView:
    """Cancel messages."""
    job = services_of(request).cancel(endpoint, change, visitor_of(request).name)
    return answered(job, response)


@router.post("/endpoints/{endpoint}/messages/release")
def release(endpoint: str, change: ChangeRequest, request: Request, response: Response) -> JobView:
    """Make parked messages due now."""
    job = services_of(request).release(endpoint, change, visitor_of(request).name)
    return answered(job, response)


@router.post("/endpoints/{endpoint}/messages/reschedule")
def reschedule(endpoint: str, change: MoveRequest, request: Request, response: Response) -> JobView:
    """Move messages to another due time."""
    job = services_of(request).move(endpoint, change, visitor_of(request).name)
    return answered(job, response)


@router.get("/endpoints/{endpoint}/errors")
def list_errors(endpoint: str, request: Request) -> ErrorsView:
    """The error queue's messages by reason, as last looked at."""
    return failures.looked_at(services_of(request).source(endpoint))


@router.post("/endpoints/{endpoint}/errors/look")
def look_at_errors(endpoint: str, request: Request) -> ErrorsView:
    """Look at the error queue. That receives its messages: their receive counts grow."""
    return failures.looked_at(services_of(request).source(endpoint), look=True)


@router.post("/endpoints/{endpoint}/errors/retry")
def retry(endpoint: str, change: RetryRequest, request: Request, response: Response) -> JobView:
    """Send messages of the error queue on."""
    job = services_of(request).retry(endpoint, change, visitor_of(request).name)
    return answered(job, response)


@router.post("/endpoints/{endpoint}/errors/discard")
def discard(endpoint: str, change: ErrorsRequest, request: Request, response: Response) -> JobView:
    """Delete messages of the error queue for good."""
    job = services_of(request).discard(endpoint, change, visitor_of(request).name)
    return answered(job, response)


@router.post("/endpoints/{endpoint}/send/preview")
def preview(endpoint: str, message: SendRequest, request: Request) -> SendPreview:
    """Where a message would go and what that costs; nothing is sent."""
    services = services_of(request)
    return services.sends.preview(services.source(endpoint), message)


@router.post("/endpoints/{endpoint}/send")
def send(endpoint: str, message: SendRequest, request: Request, response: Response) -> JobView:
    """Send a message."""
    job = services_of(request).send(endpoint, message, visitor_of(request).name)
    return answered(job, response)


@router.get("/jobs/{key}", responses={404: {"model": ErrorBody}})
def job_state(key: str, request: Request) -> JobView:
    """A change, under way or ended."""
    job = services_of(request).jobs.get(key)
    if job is None:
        raise HTTPException(
            404, f"no job {key!r} is known; the console was restarted, or no longer keeps it"
        )
    return job_view(job)


@router.get("/cost")
def cost(
    delay_seconds: int,
    messages: int = 1,
    message_bytes: int = 1024,
    batch: Annotated[int, Query(description=BATCH_HELP)] = 1,
    infrequent_access: bool = False,
) -> CostView:
    """What every way of delaying costs, at the shipped prices."""
    return costs.cost_view(
        Workload(
            delay_seconds=delay_seconds,
            messages=messages,
            message_bytes=message_bytes,
            batch=batch,
            infrequent_access=infrequent_access,
        )
    )
