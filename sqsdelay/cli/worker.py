"""Commands that run until they are stopped: their log, a stop by signal, and `sqsdelay consume`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.logging import RichHandler

from sqsdelay.cli.console import OneLine, err, print_json, tell
from sqsdelay.cli.options import (
    DEFAULT_MAX_DELAY,
    EndpointName,
    JsonLines,
    LedgerFile,
    MaxDelay,
    OptionalPlaceUrl,
    ParkAfter,
    Wait,
    max_delay_seconds,
    opened_ledger,
    optional_place,
)
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    MAX_RECEIVE_WAIT_SECONDS,
    STOP_SECONDS,
    WORKER_VISIBILITY_SECONDS,
)
from sqsdelay.opentelemetry import if_installed
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS
from sqsdelay.relaying.mover import DEFAULT_MAX_RECEIVES

CLOSING_SECONDS: Final = 0.5
"""What a store may take to close: with the `STOP_SECONDS` before, a process ends in 5 s."""


def log_to_stderr() -> None:
    """Log what matters to a person, one line each. With --verbose more is logged already."""
    if logging.getLogger("sqsdelay").level == logging.DEBUG:
        return
    handler: logging.Handler
    if err.is_terminal:
        handler = RichHandler(console=err, show_path=False)
        handler.setFormatter(OneLine("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for chatty in ("botocore", "boto3", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # It logs each failed connection several times, with tracebacks; our own errors say why, once.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


def stop_on_signals(last_words: Callable[[], str] | None = None) -> threading.Event:
    """An event set by the first SIGTERM or SIGINT; the second one ends the process as usual.

    Args:
        last_words: for work that cannot leave a call that is not answered: the process ends after
            `STOP_SECONDS`, wherever it is, and prints these. What it had in hand comes
            back, as after a crash. Left out, the work ends by itself.
    """
    stop = threading.Event()

    def ask_to_stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()
        if last_words is not None:
            ending = threading.Timer(STOP_SECONDS, _end, [last_words])
            ending.daemon = True
            ending.start()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    return stop


def end_soon(last_words: Callable[[], str]) -> None:
    """All work is done: end the process in a moment, even if a connection cannot be closed by then."""
    ending = threading.Timer(CLOSING_SECONDS, _end, [last_words])
    ending.daemon = True
    ending.start()


def _end(last_words: Callable[[], str]) -> None:
    """End the process without its threads and connections: closing these can take as long."""
    err.print("stopped while a call is not answered; what is in hand comes back", soft_wrap=True)
    err.print(last_words(), highlight=False, soft_wrap=True)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(0)


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
    with optional_place(name, store) as opened:
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
