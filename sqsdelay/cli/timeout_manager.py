"""``sqsdelay timeout-manager``: store what is to be delayed, dispatch what is due."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sqsdelay.cli.console import print_json, tell
from sqsdelay.cli.dispatch import EXIT_CRITICAL
from sqsdelay.cli.options import JsonLines, Retries, StoreUrl, Wait, opened_store
from sqsdelay.cli.worker import log_to_stderr, stop_on_signals
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import CriticalError
from sqsdelay.limits import SHORT_CALL_ATTEMPTS
from sqsdelay.timeouts.arrivals import (
    DEFAULT_ANNOUNCE_AGAIN_SECONDS,
    DEFAULT_OUTAGE_SECONDS,
    DEFAULT_RETRIES,
    DEFAULT_WAIT_SECONDS,
    TimeoutSettings,
    TimeoutStatus,
)
from sqsdelay.timeouts.manager import TimeoutManager

if TYPE_CHECKING:
    from sqsdelay.rabbitmq import RabbitMqTimeouts
    from sqsdelay.sqs.timeouts import SqsTimeouts


class _Report:
    """Counts what happened, and prints it; called from the manager's threads."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def done(self, status: TimeoutStatus, message_ids: Sequence[str]) -> None:
        with self._lock:
            self._counts[status] += len(message_ids)
            for message_id in message_ids if self._as_json else ():
                print_json({"message_id": message_id, "status": status})

    def __str__(self) -> str:
        counts = sorted(self._counts.items())
        return ", ".join(f"{count} {status}" for status, count in counts) or "nothing"


@dataclass(frozen=True, kw_only=True)
class _Served:
    """A transport, its two queues' names, and what creates them."""

    transport: SqsTimeouts | RabbitMqTimeouts
    queues: tuple[str, str]
    set_up: Callable[[], object]


def timeout_manager(
    endpoint: Annotated[str, typer.Argument(help="The endpoint whose timeouts to manage.")],
    store: StoreUrl,
    to: Annotated[
        str | None,
        typer.Option(
            envvar="SQSDELAY_TIMEOUT_MANAGER_TO",
            help="RabbitMQ to serve on, amqp://user:password@host:5672/vhost or amqps://…; "
            "default: SQS.",
        ),
    ] = None,
    set_up: Annotated[
        bool, typer.Option("--set-up", help="Create the queues and the store's table first.")
    ] = False,
    outage: Annotated[
        float, typer.Option(help="Exit after the storage has failed for this many seconds.")
    ] = DEFAULT_OUTAGE_SECONDS,
    announce_again: Annotated[
        float,
        typer.Option(
            help="Seconds before announcing a message again that another process announced."
        ),
    ] = DEFAULT_ANNOUNCE_AGAIN_SECONDS,
    retries: Retries = DEFAULT_RETRIES,
    wait: Wait = DEFAULT_WAIT_SECONDS,
    as_json: JsonLines = False,
) -> None:
    """Manage an endpoint's timeouts.

    Runs until SIGTERM or Ctrl-C, and finishes the timeouts in hand first.

    Exit code 75 if the storage failed for too long: let a supervisor restart the manager.
    """
    log_to_stderr()
    parsed = Endpoint.parse(endpoint)
    served = _on_sqs(parsed, wait) if to is None else _on_rabbitmq(parsed, to)
    settings = TimeoutSettings(
        outage_seconds=outage,
        announce_again_seconds=announce_again,
        number_of_retries=retries,
        wait_seconds=wait,
    )
    report = _Report(as_json=as_json)
    with (
        opened_store(parsed.name, store, create=set_up) as opened,
        closing(served.transport) as transport,
    ):
        if set_up:
            served.set_up()
            opened.set_up()
        manager = TimeoutManager(opened, transport, settings=settings, on_done=report.done)
        stop = stop_on_signals(lambda: f"stopped; {report}")
        line = f"serving {' and '.join(served.queues)}; stop with Ctrl-C or SIGTERM"
        tell(line)
        try:
            manager.run(stop)
        except CriticalError as critical:
            tell(f"sqsdelay: {critical}")
            raise typer.Exit(EXIT_CRITICAL) from critical
    tell(f"stopped; {report}")


def _on_sqs(endpoint: Endpoint, wait_seconds: int) -> _Served:
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.outbox import DEFAULT_CONCURRENCY
    from sqsdelay.sqs.queues import SqsQueues
    from sqsdelay.sqs.timeouts import SqsTimeouts, create_timeout_queues, timeout_queues

    timeouts, dispatcher = timeout_queues(endpoint)
    client = default_client(connections=DEFAULT_CONCURRENCY)
    receiving = default_client(
        connections=DEFAULT_CONCURRENCY, wait_seconds=wait_seconds, attempts=SHORT_CALL_ATTEMPTS
    )
    return _Served(
        transport=SqsTimeouts(SqsQueues(client, receiving=receiving), endpoint),
        queues=(timeouts.name, dispatcher.name),
        set_up=lambda: create_timeout_queues(client, endpoint),
    )


def _on_rabbitmq(endpoint: Endpoint, url: str) -> _Served:
    from sqsdelay.rabbitmq import RabbitMqTimeouts, create_timeout_queues
    from sqsdelay.rabbitmq.timeouts import timeout_queues

    return _Served(
        transport=RabbitMqTimeouts(url, endpoint.name),
        queues=timeout_queues(endpoint.name),
        set_up=lambda: create_timeout_queues(url, endpoint.name),
    )
