"""What runs until it is stopped to be looked at: ``sqsdelay console``, ``demo`` and ``local``."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table
from typer import Argument, Option

from sqsdelay.cli.console import err, out, show, tell
from sqsdelay.cli.followed import Run, Summary, seconds
from sqsdelay.cli.options import DEFAULT_MAX_DELAY, Hop, Json, LedgerFile, MaxDelay, opened_ledger
from sqsdelay.cli.run import Tally, log_to_stderr, stop_on_signals
from sqsdelay.cli.send import opened_lines, read_messages
from sqsdelay.core.delay import SystemClock, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS
from sqsdelay.core.message import Message
from sqsdelay.errors import InvalidMessage, SqsDelayError
from sqsdelay.relaying.outcomes import Outcome, Status
from sqsdelay.testing.local_aws import LocalAws

if TYPE_CHECKING:
    from sqsdelay.ledger import FileLedger
    from sqsdelay.sqs.consumer import DelayConsumer


@contextmanager
def local_aws(port: int | None = None) -> Iterator[LocalAws]:
    """A local AWS, which a process that SIGTERM ends does not leave behind."""
    with ExitStack() as running:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        running.callback(signal.signal, signal.SIGTERM, before)
        with err.status("starting a local AWS (ministack)"):
            aws = running.enter_context(LocalAws(port=port))
        yield aws


def consumer_of(
    endpoint: Endpoint, aws: LocalAws, hop: int, on_outcomes: Callable[..., None], **more: Any
) -> DelayConsumer:
    """The delay consumer of an endpoint that is made there."""
    from sqsdelay.sqs.consumer import DelayConsumer
    from sqsdelay.sqs.endpoints import create_endpoint

    client = aws.client("sqs")
    create_endpoint(client, endpoint, hop_seconds=hop)
    more |= {"hop_seconds": hop, "wait_seconds": 1, "on_outcomes": on_outcomes}
    return DelayConsumer(endpoint.name, client, **more)


@contextmanager
def console_of(aws: LocalAws, endpoint: str, ledger: Path, *, hop: int) -> Iterator[None]:
    """A console of an endpoint on a local AWS, which is this process's AWS meanwhile; its address is told."""
    from unittest.mock import patch

    from sqsdelay.console import ConsoleSettings
    from sqsdelay.console.guard import Access
    from sqsdelay.console.server import serving
    from sqsdelay.console.services import Services

    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    settings = ConsoleSettings(endpoints=(endpoint,), ledger=ledger, hop_seconds=hop)
    with (
        patch.dict(os.environ, kept | aws.environment(), clear=True),
        serving(Services(settings, Access()), port=0) as url,
    ):
        tell(f"watch it at {url}")
        yield


EXAMPLE: Final = Path(__file__).with_name("reminders.jsonl")
ENDPOINT: Final = Endpoint.parse("reminders")
PLAYED_FROM: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""Absolute due times are played as if it were this instant when the demo starts."""
PATIENCE_SECONDS: Final = 10
"""How long after the last due time a message that has not arrived counts as lost."""


def demo(
    file: Annotated[
        Path, Option(help="Messages to send, JSON lines.", show_default="36 of its own")
    ] = EXAMPLE,
    hop: Annotated[int, Option(help="Delivery delay of the delay queue, seconds; on AWS 900.")] = 2,
    ledger: LedgerFile = None,
    console: Annotated[
        bool, Option("--console", help="Also show them in the console, until SIGTERM or Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch delayed messages arrive through a local AWS.

    Absolute due times in the file count as if the demo started at 2030-01-01T00:00:00Z.
    Exit code 1 if a message is lost, duplicated, early, altered or more than 2 s late.
    """
    with ExitStack() as running:
        folder = running.enter_context(TemporaryDirectory(prefix="sqsdelay-"))
        aws = running.enter_context(local_aws())
        kept = Path(folder) / "ledger.jsonl" if ledger is None and console else ledger
        tell(f"{hop} s stand for the {DEFAULT_HOP_SECONDS} s of a hop on AWS")
        if console and kept is not None:
            running.enter_context(console_of(aws, ENDPOINT.name, kept, hop=hop))
        summary = _run(aws, file, hop, opened_ledger(kept), quiet=as_json)
        if not (as_json or out.is_terminal):
            out.print()  # the table of a pipe or log ends without a line break
        line = (
            f"sent {summary.sent}, delivered {summary.delivered}, lost {summary.lost}, "
            f"duplicated {summary.duplicated}, early {summary.early}, altered {summary.altered}, "
            f"worst lateness {seconds(summary.worst_late_ms)}"
        )
        show(asdict(summary), line, as_json=as_json)
        if console:
            tell("the console stays until you stop it with Ctrl-C")
            stop_on_signals().wait()
    if not summary.good:
        raise typer.Exit(1)


def _run(aws: LocalAws, file: Path, hop: int, ledger: FileLedger | None, *, quiet: bool) -> Summary:
    from sqsdelay.sqs.queues import SqsQueues
    from sqsdelay.sqs.sender import DelaySender

    run = Run(ENDPOINT, SqsQueues(aws.client("sqs")), ledger)

    def hopped(outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.status in (Status.REQUEUED, Status.HANDED_OVER):
                run.hopped(outcome.copy.message_id, outcome.late_ms)

    consumer = consumer_of(ENDPOINT, aws, hop, hopped, ledger=ledger)
    started_ms = SystemClock().now_ms()
    messages = read_demo_file(file, utc(started_ms))
    sender = DelaySender(aws.client("sqs"), hop_seconds=hop, ledger=ledger)
    run.sent(messages, sender.send_many(ENDPOINT.name, messages))
    run.follow(
        lambda room: _table(run, started_ms, room),
        patience_seconds=PATIENCE_SECONDS,
        second_copy_seconds=hop + 1,
        wait_seconds=1,
        beside=[consumer.run],
        quiet=quiet,
    )
    return run.summary()


def read_demo_file(file: Path, now: datetime) -> list[Message]:
    """The file's messages, each with an id, absolute due times moved to be played from ``now``."""
    messages = []
    with opened_lines(file) as lines:
        for number, message in read_messages(lines, {}):
            if isinstance(message, SqsDelayError):
                raise InvalidMessage(f"{file}, line {number}: {message}") from message
            due_at = None if message.due_at is None else now + (message.due_at - PLAYED_FROM)
            message_id = message.message_id or f"line-{number}"
            messages.append(replace(message, due_at=due_at, message_id=message_id))
    return messages


def _table(run: Run, started_ms: int, most: int | None = None) -> Table:
    """All messages; where there is room for fewer, what happens next comes first, then what just did."""
    table = Table("message", "route", "hops", "due", "arrived", "lateness", "waited", padding=0)
    table.columns[0].overflow = "fold"
    for column in table.columns[2:]:
        column.justify = "right"
    rows = run.rows()
    if most is not None and len(rows) > most:
        rows.sort(key=lambda row: (bool(row[1].copies), abs(row[1].due_ms - 1000 * time.time())))
        rows = sorted(rows[:most], key=lambda row: row[1].due_ms)
    for message_id, entry in rows:
        due = (entry.due_ms - started_ms) / 1000
        late = None if entry.late_ms is None else entry.late_ms / 1000
        table.add_row(
            message_id,
            entry.route.value,
            str(entry.hops),
            f"{due:+.3f} s",
            "…" if late is None else f"{due + late:+.3f} s",
            "" if late is None else f"{late:.3f} s",
            "" if entry.waited_ms is None else f"{entry.waited_ms / 1000:.3f} s",
        )
    return table


PORT: Final = 4566
"""Where local AWS servers usually listen."""
HOPS_SHOWN: Final = 5
"""The example's delay, in hops: seen to travel, and there within seconds."""
_EXPORTED: Final = tuple(
    f"AWS_{name}"
    for name in ("ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "DEFAULT_REGION", "REGION")
)


def local(
    endpoint: Annotated[str, Argument(help="The destination queue's name.")] = "orders",
    hop: Hop = 2,
    port: Annotated[int, Option(min=0, max=65_535, help="Its port; 0: any free one.")] = PORT,
    as_json: Json = False,
) -> None:
    """Run a local AWS with an endpoint and its delay consumer.

    Runs until SIGTERM or Ctrl-C.

    Prints commands to paste into another terminal. All messages are gone when it ends.
    """
    parsed, tally = Endpoint.parse(endpoint), Tally()
    log_to_stderr()
    with local_aws(port or None) as aws:
        consumer = consumer_of(parsed, aws, hop, tally.relayed)
        stop = stop_on_signals()
        exported = {name: aws.environment()[name] for name in _EXPORTED}
        commands = _commands(parsed.name, hop)
        show(
            {"environment": exported, "commands": commands},
            f"{parsed.name} accepts messages with any delay, on a local AWS that is gone when you stop it.",
            f"A hop takes {hop} s here, {DEFAULT_HOP_SECONDS} s on AWS. Paste into another terminal:",
            "",
            "  export " + " ".join(f"{name}={value}" for name, value in exported.items()),
            *(f"  {command}" for command in commands),
            "",
            "Stop with Ctrl-C.",
            as_json=as_json,
        )
        consumer.run(stop)
        tally.tell()


def _commands(endpoint: str, hop: int) -> list[str]:
    """What to type first. The program is named as it can be found from the same folder."""
    program = "sqsdelay" if shutil.which("sqsdelay") else shlex.quote(sys.argv[0])
    group = " --group customer-7" if endpoint.endswith(".fifo") else ""
    delay = HOPS_SHOWN * hop
    return [
        f"{program} send {endpoint} --hop {hop} --delay {delay}s --body 'hello from the future'{group}",
        f"{program} status {endpoint}",
        f"{program} receive {endpoint} --count 1",
    ]


def serve_console(
    endpoint: Annotated[
        list[str],
        Option(help="An endpoint to show: its queue's name, URL or ARN; may be repeated."),
    ],
    store: Annotated[
        list[str] | None,
        Option(envvar="SQSDELAY_STORE", help="The store, or ENDPOINT=URL; may be repeated."),
    ] = None,
    rabbitmq: Annotated[
        str | None,
        Option(
            envvar="SQSDELAY_CONSOLE_RABBITMQ",
            help="amqp://user:password@host:5672/vhost: the endpoints are queues there, not on SQS.",
        ),
    ] = None,
    prefix: Annotated[str | None, Option(help="Name prefix there; default: sqsdelay.")] = None,
    ledger: Annotated[
        Path | None, Option(dir_okay=False, help="The ledger file; changes made here are added.")
    ] = None,
    hop: Hop = DEFAULT_HOP_SECONDS,
    max_delay: MaxDelay = DEFAULT_MAX_DELAY,
    host: Annotated[
        str, Option(help="Address to listen on; other than loopback only with a token or proxy.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65_535, help="Port to listen on; 0: any free.")] = 8710,
    allowed_host: Annotated[
        list[str] | None,
        Option(help="Another host name of the console, besides localhost; may be repeated."),
    ] = None,
    user_header: Annotated[
        str | None,
        Option(help="Header in which a proxy that authenticates names the user; with --proxy."),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        Option(help="IP address that proxy calls from, or one that ends TLS; may be repeated."),
    ] = None,
    token: Annotated[
        str | None,
        Option(
            envvar="SQSDELAY_CONSOLE_TOKEN",
            help="The token users must enter; other users of this machine see it in the process "
            "list unless it comes from the variable.",
        ),
    ] = None,
    read_only: Annotated[bool, Option("--read-only", help="Refuse all changes.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a web page to watch endpoints and act on messages.

    It shows what waits, what is late and what failed, and can cancel, move, retry and send.

    Listens on this machine only, until SIGTERM or Ctrl-C. Every change is logged with its user.
    """
    from sqsdelay.console import ConsoleSettings, stores_of
    from sqsdelay.console.guard import Access
    from sqsdelay.console.server import serving
    from sqsdelay.console.services import Services

    access = Access(
        host=host,
        allowed_hosts=tuple(allowed_host or ()),
        token=token,
        user_header=user_header,
        proxies=tuple(proxy or ()),
        read_only=read_only,
    )
    settings = ConsoleSettings(
        endpoints=tuple(endpoint),
        stores=stores_of(store or (), endpoint),
        rabbitmq=rabbitmq,
        prefix=prefix,
        ledger=ledger,
        hop_seconds=hop,
        max_delay_seconds=max_delay,
    )
    log_to_stderr()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    services = Services(settings, access)
    services.check_stores()
    stop = stop_on_signals()
    with serving(services, port=port) as url:
        line = f"the console is at {url}{' (read-only)' if read_only else ''}; stop it with Ctrl-C"
        show({"url": url}, line, as_json=as_json)
        if token is not None:
            tell(
                "it asks for the token; without TLS before it, that crosses the network in the clear"
            )
        stop.wait()
    tell("stopped")
