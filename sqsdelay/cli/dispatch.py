"""``sqsdelay dispatch``: the dispatcher as a worker process."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sqsdelay.cli.console import print_json, tell
from sqsdelay.cli.options import (
    JsonLines,
    LedgerFile,
    Retries,
    StoreUrl,
    opened_ledger,
    opened_store,
)
from sqsdelay.cli.worker import log_to_stderr, stop_on_signals
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import instant
from sqsdelay.dispatching.circuit_breakers import (
    DEFAULT_FAILURES_PER_SECOND,
    DEFAULT_TRIGGER_SECONDS,
)
from sqsdelay.dispatching.dispatcher import DEFAULT_BATCH, Dispatcher, DispatchSettings
from sqsdelay.dispatching.settlement import Round
from sqsdelay.errors import CriticalError
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.opentelemetry import if_installed

if TYPE_CHECKING:
    from sqsdelay.ports.stores import DelayedMessageStore
    from sqsdelay.ports.tracing import Tracing
    from sqsdelay.rabbitmq import RabbitMqOutbox
    from sqsdelay.sqs.outbox import SqsOutbox

EXIT_CRITICAL: Final = 75
"""A circuit breaker triggered: "temporary failure" in sysexits.h; a supervisor may restart."""


def dispatch(
    endpoint: Annotated[str, typer.Argument(help="The endpoint whose messages to release.")],
    store: StoreUrl,
    to: Annotated[
        str | None,
        typer.Option(
            envvar="SQSDELAY_DISPATCH_TO",
            help="RabbitMQ to release to, amqp://user:password@host:5672/vhost or amqps://…; "
            "default: SQS. Due times go by SQS's clock; with RabbitMQ, by the database's "
            "(PostgreSQL) or this machine's (SQLite).",
        ),
    ] = None,
    retries: Retries = 0,
    release_ahead: Annotated[
        int | None,
        typer.Option(
            help="Release this many seconds before due; a released message cannot be cancelled. "
            f"SQS: 0 to {MAX_MESSAGE_TIMER_SECONDS} (default); RabbitMQ: 0."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Messages claimed at a time.")] = DEFAULT_BATCH,
    poll: Annotated[
        float | None,
        typer.Option(help="Longest time between polls, seconds; default: the store's own."),
    ] = None,
    fetch_breaker: Annotated[
        float, typer.Option(help="Exit after the store has failed for this many seconds.")
    ] = DEFAULT_TRIGGER_SECONDS,
    dispatch_breaker: Annotated[
        float, typer.Option(help="Exit after the destination has failed for this many seconds.")
    ] = DEFAULT_TRIGGER_SECONDS,
    recovery_failures: Annotated[
        int,
        typer.Option(
            help="Exit when recording failures in the store fails more often than this per second."
        ),
    ] = DEFAULT_FAILURES_PER_SECOND,
    ledger: LedgerFile = None,
    as_json: JsonLines = False,
) -> None:
    """Release a store's messages when they are due.

    Runs until SIGTERM or Ctrl-C, and finishes the messages in hand first.

    Exit code 75 if a circuit breaker triggered: let a supervisor restart the dispatcher.
    """
    log_to_stderr()
    parsed = Endpoint.parse(endpoint)
    settings = DispatchSettings(
        number_of_retries=retries,
        release_ahead_seconds=release_ahead,
        batch_size=batch,
        poll_seconds=poll,
        fetch_breaker_seconds=fetch_breaker,
        dispatch_breaker_seconds=dispatch_breaker,
        maximum_recovery_failures_per_second=recovery_failures,
    )
    counts: Counter[str] = Counter()
    tracing, book = if_installed(opened_ledger(ledger))
    with (
        opened_store(parsed.name, store) as opened,
        closing(_outbox(parsed, to, opened, tracing)) as outbox,
    ):
        dispatcher = Dispatcher(
            opened,
            outbox,
            settings=settings,
            on_round=lambda done: _report(done, counts, as_json=as_json),
            ledger=book,
        )
        stop = stop_on_signals(lambda: _summary(counts))
        tell(f"dispatching {parsed.name}; stop with Ctrl-C or SIGTERM")
        try:
            dispatcher.run(stop)
        except CriticalError as critical:
            tell(f"sqsdelay: {critical}")
            raise typer.Exit(EXIT_CRITICAL) from critical
    tell(_summary(counts))


def _summary(counts: Counter[str]) -> str:
    line = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"stopped; {line or 'nothing'}"


def _outbox(
    endpoint: Endpoint, to: str | None, store: DelayedMessageStore, tracing: Tracing | None
) -> SqsOutbox | RabbitMqOutbox:
    if to is not None:
        from sqsdelay.rabbitmq import RabbitMqOutbox
        from sqsdelay.stores.clocks import StoreClock

        # RabbitMQ tells no time. What is stored on one machine and released on another goes by the
        # clock between them.
        return RabbitMqOutbox(to, endpoint.name, clock=StoreClock(store))
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.outbox import DEFAULT_CONCURRENCY, SqsOutbox
    from sqsdelay.sqs.queues import SqsQueues

    queues = SqsQueues(default_client(connections=DEFAULT_CONCURRENCY))
    return SqsOutbox(queues, endpoint, tracing=tracing)


def _report(done: Round, counts: Counter[str], *, as_json: bool) -> None:
    fates = {
        "released": done.released,
        "rejected": done.rejected,
        "failed": done.failed,
        "held": done.held,
    }
    for status, messages in fates.items():
        counts[status] += len(messages)
        for message in messages if as_json else ():
            print_json(
                {
                    "message_id": message.message_id,
                    "status": status,
                    "due": instant(message.due_ms),
                    "late_ms": max(0, done.now_ms - message.due_ms),
                    "failures": message.failures,
                }
            )
    counts += Counter()
