"""``sqsdelay status``: what waits for an endpoint, what failed, and what is due next."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from sqsdelay.cli.console import print_json, print_rows, tell
from sqsdelay.cli.options import (
    EndpointName,
    Json,
    OptionalPlaceUrl,
    parked_messages,
)
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import age, instant
from sqsdelay.errors import StoreError
from sqsdelay.operating.status import (
    NOBODY,
    EndpointStatus,
    StoreStatus,
    endpoint_status,
    overdue_remedy,
)


def status(
    endpoint: EndpointName,
    store: OptionalPlaceUrl = None,
    as_json: Json = False,
) -> None:
    """Count an endpoint's pending, failed and parked messages.

    Queue counts are SQS's approximations. The age of the oldest message comes from CloudWatch and is
    a few minutes old; "-" means that CloudWatch has none or may not be read. Parked messages and the
    next due time are exact; without --store they come from the DynamoDB table that a deployment
    creates for the endpoint, if it exists and may be read.

    Exit code 1 if the store cannot be read, or messages in it are overdue.
    """
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.cloudwatch import CloudWatchAges, short_client
    from sqsdelay.sqs.queues import SqsQueues

    parsed = Endpoint.parse(endpoint)
    queues = SqsQueues(default_client(connections=1))
    found = endpoint_status(queues, parsed, CloudWatchAges(short_client("cloudwatch")))
    url, parked, trouble = "", None, None
    try:
        now_ms = queues.broker_clock.now_ms()
        seen = parked_messages(parsed, store, now_ms=now_ms)
        if seen is not None:
            url, parked = seen
    except StoreError as error:
        trouble = error  # The queues are worth showing all the same.
    if as_json:
        print_json(_as_json(found, parked))
    else:
        _print(found, parked)
    if trouble is not None:
        tell(f"store: {trouble}")
        raise typer.Exit(1)
    if parked is not None and parked.overdue:
        overdue = f"the earliest message in the store is {age(parked.late_ms // 1000)} overdue"
        remedy = overdue_remedy(parsed, url)
        tell(f"{overdue}: {NOBODY}; {remedy}")
        raise typer.Exit(1)


def _as_json(found: EndpointStatus, parked: StoreStatus | None) -> dict[str, Any]:
    return {
        "endpoint": found.endpoint,
        "pending": found.pending,
        "in_flight": found.in_flight,
        "oldest_seconds": found.oldest_seconds,
        "errors": found.errors,
        "parked": None if parked is None else parked.parked,
        "next_due": _next_due(parked),
        "overdue_seconds": None if parked is None else parked.late_ms // 1000,
        "queues": [asdict(queue) for queue in found.queues],
    }


def _next_due(parked: StoreStatus | None) -> str | None:
    if parked is None or parked.next_due_ms is None:
        return None
    return instant(parked.next_due_ms)


def _print(found: EndpointStatus, parked: StoreStatus | None) -> None:
    summary = (
        ("pending", f"about {found.pending:,}"),
        ("in flight", f"about {found.in_flight:,}"),
        ("oldest", age(found.oldest_seconds)),
        ("errors", f"about {found.errors:,}"),
        ("parked", "-" if parked is None else f"{parked.parked:,}"),
        ("next due", _next_due(parked) or "-"),
    )
    print_rows(("", ""), summary, box=None, show_header=False)
    rows = []
    for queue in found.queues:
        counts = (queue.visible, queue.in_flight, queue.delayed)
        shown = [f"{count:,}" for count in counts]
        rows.append((queue.name, queue.role, *shown, age(queue.oldest_seconds)))
    print_rows(("queue", "", "visible", "in flight", "delayed", "oldest"), rows)
