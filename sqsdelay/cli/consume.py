"""``sqsdelay consume``: the delay consumer as a worker process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sqsdelay.cli.console import print_json, tell
from sqsdelay.cli.options import (
    DEFAULT_MAX_DELAY,
    EndpointName,
    JsonLines,
    LedgerFile,
    MaxDelay,
    OptionalPlaceUrl,
    ParkAfter,
    Schema,
    Table,
    Wait,
    max_delay_seconds,
    opened_ledger,
    optional_place,
)
from sqsdelay.cli.worker import end_soon, log_to_stderr, stop_on_signals
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    MAX_RECEIVE_WAIT_SECONDS,
    WORKER_VISIBILITY_SECONDS,
)
from sqsdelay.opentelemetry import if_installed
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS
from sqsdelay.relaying.mover import DEFAULT_MAX_RECEIVES

if TYPE_CHECKING:
    from sqsdelay.relaying.mover import Outcome


class Http(StrEnum):
    """Whose HTTP a worker's requests are made with."""

    BOTOCORE = "botocore"
    CURL = "curl"


def consume(
    endpoint: EndpointName,
    hop: Annotated[
        int, typer.Option(help="Shortest delivery delay the delay queue may have, seconds.")
    ] = DEFAULT_HOP_SECONDS,
    receivers: Annotated[
        int | None,
        typer.Option(
            help="Parallel receive loops per queue; default: as many as the work needs.",
            show_default=False,
        ),
    ] = None,
    wait: Wait = MAX_RECEIVE_WAIT_SECONDS,
    visibility: Annotated[
        int,
        typer.Option(help="If this worker dies, seconds until others receive its messages."),
    ] = WORKER_VISIBILITY_SECONDS,
    max_receives: Annotated[
        int,
        typer.Option(help="Receives after which a message SQS refuses goes to the error queue."),
    ] = DEFAULT_MAX_RECEIVES,
    max_delay: MaxDelay = DEFAULT_MAX_DELAY,
    store: OptionalPlaceUrl = None,
    table: Table = None,
    schema: Schema = None,
    park_after: ParkAfter = DEFAULT_PARK_AFTER_SECONDS,
    ledger: LedgerFile = None,
    http: Annotated[
        Http, typer.Option(help="Who makes the requests; curl needs the extra sqsdelay[curl].")
    ] = Http.BOTOCORE,
    as_json: JsonLines = False,
) -> None:
    """Relay an endpoint's delayed messages.

    Runs until SIGTERM or Ctrl-C, and finishes the messages in hand first.
    """
    from sqsdelay.sqs.consumer import DelayConsumer

    log_to_stderr()
    counts: Counter[str] = Counter()

    def report(outcomes: Sequence[Outcome]) -> None:
        counts.update(outcome.status.value for outcome in outcomes)
        if as_json:
            for outcome in outcomes:
                print_json(_as_json(outcome))

    name = Endpoint.parse(endpoint).name
    tracing, book = if_installed(opened_ledger(ledger))
    with optional_place(name, store, table, schema) as opened:
        consumer = DelayConsumer(
            endpoint,
            http=http.value,
            hop_seconds=hop,
            receivers=receivers,
            wait_seconds=wait,
            visibility_seconds=visibility,
            max_receives=max_receives,
            max_delay_seconds=max_delay_seconds(max_delay),
            store=opened,
            park_after_seconds=park_after,
            on_outcomes=report,
            ledger=book,
            tracing=tracing,
        )
        stop = stop_on_signals()
        served = consumer.endpoint.delay_queue.name
        if consumer.endpoint.fifo:
            served += f" and {consumer.endpoint.due_queue.name}"
        tell(f"consuming {served}; stop with Ctrl-C or SIGTERM")
        consumer.run(stop)
        end_soon(lambda: _summary(counts))
    tell(_summary(counts))


def _summary(counts: Counter[str]) -> str:
    line = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"stopped; {line or 'nothing'}"


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "message_id": outcome.copy.message_id,
        "status": outcome.status,
        "due_ms": outcome.due_ms,
        "delay_seconds": outcome.delay_seconds,
        "late_ms": outcome.late_ms,
        "receive_count": outcome.copy.receive_count,
        "error": outcome.error,
    }
