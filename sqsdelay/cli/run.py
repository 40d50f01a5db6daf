"""Commands that run until they are stopped: their log, their counts, a stop by signal; `sqsdelay consume`,
`dispatch` and `timeout-manager`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from rich.logging import RichHandler
from typer import Argument, Option

from sqsdelay.cli import options
from sqsdelay.cli.console import OneLine, counted, err, print_json, tell
from sqsdelay.core import limits
from sqsdelay.core.readable import instant
from sqsdelay.dispatching import dispatcher as dispatching
from sqsdelay.errors import StoreUnavailable
from sqsdelay.opentelemetry import if_installed
from sqsdelay.operating.status import naming_the_command
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, check
from sqsdelay.ports.stores import TransactionMode
from sqsdelay.relaying.outcomes import DEFAULT_MAX_RECEIVES
from sqsdelay.timeouts import manager as timeouts

if TYPE_CHECKING:
    from sqsdelay.dispatching.settlement import Round
    from sqsdelay.ports.queues import Tracing
    from sqsdelay.ports.stores import DelayedMessageStore
    from sqsdelay.rabbitmq import RabbitMqOutbox, RabbitMqTimeouts
    from sqsdelay.relaying.outcomes import Outcome
    from sqsdelay.sqs.outbox import SqsOutbox
    from sqsdelay.sqs.timeouts import SqsTimeouts

CLOSING_SECONDS: Final = 0.5
"""What a store may take to close: with the `STOP_SECONDS` before, a process ends in 5 s."""
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


def log_to_stderr() -> None:
    """Log what matters to a person, one line each. With --verbose more is logged already."""
    if logging.getLogger("sqsdelay").level == logging.DEBUG:
        return
    handler: logging.Handler = logging.StreamHandler()
    shown = "%(asctime)s %(levelname)s %(message)s"
    if err.is_terminal:
        handler, shown = RichHandler(console=err, show_path=False), "%(message)s"
    handler.setFormatter(OneLine(shown))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for chatty in ("botocore", "boto3", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # It logs each failed connection several times, with tracebacks; our own errors say why, once.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


def stop_on_signals(last_words: Callable[[], str] | None = None) -> threading.Event:
    """An event set by the first SIGTERM or SIGINT; the second one ends the process as usual. Work that cannot
    leave a call that is not answered has ``last_words``: the process ends after `STOP_SECONDS`, wherever it
    is, and prints these. What it had in hand comes back, as after a crash."""
    stop, (told, teller) = threading.Event(), os.pipe()

    def await_the_first() -> None:
        while os.read(told, 1)[0] not in _STOPPING:
            pass
        stop.set()
        if last_words is not None:
            end_soon(last_words, limits.STOP_SECONDS)

    # A thread that begins or ends may take the signal from the main one. That would wait on, and it alone
    # runs Python's handlers.
    os.set_blocking(teller, False)
    signal.set_wakeup_fd(teller)
    for number in _STOPPING:
        signal.signal(number, lambda number, _: signal.signal(number, signal.SIG_DFL))
    threading.Thread(target=await_the_first, daemon=True).start()
    return stop


def end_soon(last_words: Callable[[], str], seconds: float = CLOSING_SECONDS) -> None:
    """End the process then, even if a call is not answered or a connection cannot be closed by then."""
    ending = threading.Timer(seconds, _end, [last_words])
    ending.daemon = True
    ending.start()


def _end(last_words: Callable[[], str]) -> None:
    """End the process without its threads and connections: closing these can take as long."""
    tell(f"stopped while a call is not answered; what is in hand comes back\n{last_words()}")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(0)


class Tally:
    """What became of messages, by status; a line of JSON for each where that was asked for. Thread-safe.
    A line that cannot be written sets ``stop``: whoever reads them would miss what comes after it."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json, self._lock, self._counts = as_json, threading.Lock(), Counter[str]()
        self.stop, self._unwritten = threading.Event(), list[OSError]()

    def add(self, status: str, message_id: str, **record: Any) -> None:
        """Count a message, and print it; ``record`` is the rest of it."""
        with self._lock:
            self._counts[status] += 1
            if self._as_json and not self._unwritten:
                try:
                    print_json({"message_id": message_id, "status": status, **record})
                except OSError as error:
                    self._unwritten.append(error)
                    self.stop.set()

    def relayed(self, outcomes: Sequence[Outcome]) -> None:
        """Add what became of a batch of a delay consumer's."""
        for outcome in outcomes:
            self.add(
                outcome.status.value,
                outcome.copy.message_id,
                due_ms=outcome.due_ms,
                delay_seconds=outcome.delay_seconds,
                late_ms=outcome.late_ms,
                receive_count=outcome.copy.receive_count,
                error=outcome.error,
            )

    def tell(self) -> None:
        """Say it on stderr. Raises OSError: that of the line that could not be written."""
        tell(str(self))
        for error in self._unwritten:
            raise error

    def __str__(self) -> str:
        return f"stopped; {counted(self._counts) or 'nothing'}"


def consume(
    endpoint: options.EndpointName,
    hop: Annotated[
        int, Option(help="Shortest delivery delay the delay queue may have, seconds.")
    ] = limits.DEFAULT_HOP_SECONDS,
    receivers: Annotated[
        int | None, Option(help="Receive loops a queue; default: as needed.")
    ] = None,
    wait: options.Wait = limits.MAX_RECEIVE_WAIT_SECONDS,
    visibility: Annotated[
        int, Option(help="If this worker dies, seconds until others receive its messages.")
    ] = limits.WORKER_VISIBILITY_SECONDS,
    max_receives: Annotated[
        int, Option(help="Receives after which a message SQS refuses goes to the error queue.")
    ] = DEFAULT_MAX_RECEIVES,
    max_delay: options.MaxDelay = options.DEFAULT_MAX_DELAY,
    store: options.OptionalPlaceUrl = None,
    park_after: options.ParkAfter = DEFAULT_PARK_AFTER_SECONDS,
    ledger: options.LedgerFile = None,
    http: Annotated[
        Literal["botocore", "curl"],
        Option(help="Who makes the requests; curl needs the extra sqsdelay[curl]."),
    ] = "botocore",
    as_json: options.JsonLines = False,
) -> None:
    """Relay an endpoint's delayed messages.

    Runs until SIGTERM or Ctrl-C, and finishes the messages in hand first.
    """
    from sqsdelay.sqs.consumer import DelayConsumer
    from sqsdelay.sqs.receivers import STOP_LOOK_SECONDS, in_thread

    log_to_stderr()
    tally = Tally(as_json=as_json)
    tracing, book = if_installed(options.opened_ledger(ledger))
    with options.Target(endpoint, store).optional_place() as opened:
        consumer = DelayConsumer(
            endpoint,
            http=http,
            hop_seconds=hop,
            receivers=receivers,
            wait_seconds=wait,
            visibility_seconds=visibility,
            max_receives=max_receives,
            max_delay_seconds=max_delay,
            store=opened,
            park_after_seconds=park_after,
            on_outcomes=tally.relayed,
            ledger=book,
            tracing=tracing,
        )
        stop = tally.stop = stop_on_signals()
        if opened is not None:
            # What cannot be used is refused before anything is said; what does not answer is waited for.
            looking = in_thread(check, opened)
            while not looking.done() and not stop.wait(STOP_LOOK_SECONDS):
                pass
            with suppress(StoreUnavailable):
                _ = looking.done() and looking.result()
        served = consumer.endpoint.delay_queue.name
        if consumer.endpoint.fifo:
            served += f" and {consumer.endpoint.due_queue.name}"
        tell(f"consuming {served}; stop with Ctrl-C or SIGTERM")
        hops = "" if hop == limits.DEFAULT_HOP_SECONDS else f" --hop {hop}"
        with naming_the_command(consumer.endpoint, consumer.endpoint.delay_queue, hops):
            consumer.run(stop)
        end_soon(lambda: str(tally))
    tally.tell()


def dispatch(
    endpoint: Annotated[str, Argument(help="The endpoint whose messages to release.")],
    store: options.StoreUrl,
    to: Annotated[
        str | None,
        Option(
            envvar="SQSDELAY_DISPATCH_TO",
            help="RabbitMQ to release to, amqp://user:password@host:5672/vhost or amqps://…; "
            "default: SQS. Due times go by SQS's clock; with RabbitMQ, by the database's "
            "(PostgreSQL) or this machine's (SQLite).",
        ),
    ] = None,
    retries: options.Retries = 0,
    release_ahead: Annotated[
        int | None,
        Option(help="Release so many seconds before due: SQS 0 to 900 (default), RabbitMQ 0."),
    ] = None,
    batch: Annotated[int, Option(help="Messages claimed at a time.")] = dispatching.DEFAULT_BATCH,
    poll: Annotated[
        float | None, Option(help="Longest time between polls, seconds; default: the store's own.")
    ] = None,
    fetch_breaker: Annotated[
        float, Option(help="Exit after the store has failed for this many seconds.")
    ] = dispatching.DEFAULT_TRIGGER_SECONDS,
    dispatch_breaker: Annotated[
        float, Option(help="Exit after the destination has failed for this many seconds.")
    ] = dispatching.DEFAULT_TRIGGER_SECONDS,
    recovery_failures: Annotated[
        int, Option(help="Exit when recording failures fails more often than this per second.")
    ] = dispatching.DEFAULT_FAILURES_PER_SECOND,
    ledger: options.LedgerFile = None,
    as_json: options.JsonLines = False,
) -> None:
    """Release a store's messages when they are due.

    Runs until SIGTERM or Ctrl-C, and finishes the messages in hand first. A released one cannot be cancelled.

    Exit code 75 if a circuit breaker triggered: let a supervisor restart the dispatcher.
    """
    log_to_stderr()
    target = options.Target(endpoint, store, to)
    settings = dispatching.DispatchSettings(
        number_of_retries=retries,
        release_ahead_seconds=release_ahead,
        batch_size=batch,
        poll_seconds=poll,
        fetch_breaker_seconds=fetch_breaker,
        dispatch_breaker_seconds=dispatch_breaker,
        maximum_recovery_failures_per_second=recovery_failures,
    )
    tally = Tally(as_json=as_json)

    def report(done: Round) -> None:
        for status in ("released", "rejected", "failed", "held"):
            for message in getattr(done, status):
                tally.add(
                    status,
                    message.message_id,
                    due=instant(message.due_ms),
                    late_ms=max(0, done.now_ms - message.due_ms),
                    failures=message.failures,
                )

    tracing, book = if_installed(options.opened_ledger(ledger))
    with target.opened_store() as opened, closing(_outbox(target, opened, tracing)) as outbox:
        dispatcher = dispatching.Dispatcher(
            opened, outbox, settings=settings, on_round=report, ledger=book
        )
        stop = tally.stop = stop_on_signals(lambda: str(tally))
        opened.initialize(TransactionMode.AT_LEAST_ONCE)
        tell(f"dispatching {target.name}; stop with Ctrl-C or SIGTERM")
        dispatcher.run(stop)
    tally.tell()


def _outbox(
    target: options.Target, store: DelayedMessageStore, tracing: Tracing | None
) -> SqsOutbox | RabbitMqOutbox:
    if target.to is not None:
        from sqsdelay.rabbitmq import RabbitMqOutbox
        from sqsdelay.stores.shared import StoreClock

        # RabbitMQ tells no time: what is stored and released elsewhere goes by the clock between them.
        return RabbitMqOutbox(target.to, target.name, clock=StoreClock(store))
    from sqsdelay.sqs.outbox import SqsOutbox

    return SqsOutbox(target.queues, target.endpoint, tracing=tracing)


def timeout_manager(
    endpoint: Annotated[str, Argument(help="The endpoint whose timeouts to manage.")],
    store: options.StoreUrl,
    to: Annotated[
        str | None,
        Option(
            envvar="SQSDELAY_TIMEOUT_MANAGER_TO",
            help="RabbitMQ to serve on, amqp://user:password@host:5672/vhost or amqps://…; "
            "default: SQS.",
        ),
    ] = None,
    set_up: Annotated[bool, Option("--set-up", help="Create queues and table first.")] = False,
    outage: Annotated[
        float, Option(help="Exit after the storage has failed for this many seconds.")
    ] = timeouts.DEFAULT_OUTAGE_SECONDS,
    announce_again: Annotated[
        float,
        Option(help="Seconds before announcing a message again that another process announced."),
    ] = timeouts.DEFAULT_ANNOUNCE_AGAIN_SECONDS,
    retries: options.Retries = timeouts.DEFAULT_RETRIES,
    wait: options.Wait = timeouts.DEFAULT_WAIT_SECONDS,
    as_json: options.JsonLines = False,
) -> None:
    """Manage an endpoint's timeouts.

    Runs until SIGTERM or Ctrl-C, and finishes the timeouts in hand first.

    Exit code 75 if the storage failed for too long: let a supervisor restart the manager.
    """
    log_to_stderr()
    target = options.Target(endpoint, store, to)
    transport, queues, create = _on_sqs(target, wait) if to is None else _on_rabbitmq(target, to)
    settings = timeouts.TimeoutSettings(
        outage_seconds=outage,
        announce_again_seconds=announce_again,
        number_of_retries=retries,
        wait_seconds=wait,
    )
    tally = Tally(as_json=as_json)

    def report(status: str, message_ids: Sequence[str]) -> None:
        for each in message_ids:
            tally.add(status, each)

    with target.opened_store(create=set_up) as opened, closing(transport):
        if set_up:
            create()
            opened.set_up()
        manager = timeouts.TimeoutManager(opened, transport, settings=settings, on_done=report)
        stop = tally.stop = stop_on_signals(lambda: str(tally))
        opened.initialize(TransactionMode.AT_LEAST_ONCE)
        tell(f"serving {' and '.join(queues)}; stop with Ctrl-C or SIGTERM")
        manager.run(stop)
    tally.tell()


_Served = tuple["SqsTimeouts | RabbitMqTimeouts", Sequence[str], Callable[[], object]]
"""A transport, its two queues' names, and what creates them."""


def _on_sqs(target: options.Target, wait_seconds: int) -> _Served:
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.queues import SqsQueues
    from sqsdelay.sqs.timeouts import SqsTimeouts, create_timeout_queues, timeout_queues

    client, of, attempts = target.client, target.endpoint, limits.SHORT_CALL_ATTEMPTS
    receiving = default_client(connections=1, wait_seconds=wait_seconds, attempts=attempts)
    timeouts = SqsTimeouts(SqsQueues(client, receiving=receiving), of)
    create = partial(create_timeout_queues, client, of)
    return timeouts, [queue.name for queue in timeout_queues(of)], create


def _on_rabbitmq(target: options.Target, url: str) -> _Served:
    from sqsdelay.rabbitmq import RabbitMqTimeouts, create_timeout_queues
    from sqsdelay.rabbitmq.timeouts import timeout_queues

    create = partial(create_timeout_queues, url, target.name)
    return RabbitMqTimeouts(url, target.name), timeout_queues(target.name), create
