"""``sqsdelay demo``: the main job, seen, on a local AWS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from sqsdelay.cli.console import err, out, print_json, tell
from sqsdelay.cli.message_file import BadLine, Defaults, read_messages
from sqsdelay.cli.options import LedgerFile, opened_ledger
from sqsdelay.cli.pipeline.report import check_report, reported
from sqsdelay.cli.worker import stop_on_signals
from sqsdelay.core.delay import delay_ms, due_at_ms, seconds_until, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import MESSAGE_ID, WAS_DUE_AT, Message, attributes_of, text_of
from sqsdelay.core.outgoing import was_due_ms
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import ConfigurationError, InvalidMessage
from sqsdelay.ledger.events import Event, record_safely
from sqsdelay.ledger.files import received_events
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.relaying.mover import Outcome, Status
from sqsdelay.sending.sender import Route, SendResult
from sqsdelay.testing.local_aws import LocalAws

if TYPE_CHECKING:
    from sqsdelay.ledger import FileLedger


TOO_LATE_MS: Final = 2_000


@dataclass(slots=True)
class Tracked:
    """One message: as sent, and what has been seen of it since. Times are the broker's."""

    message: Message
    route: Route
    due_ms: int
    hops: int = 0
    arrivals: int = 0
    shown_late_ms: int | None = None
    received_ms: int | None = None
    intact: bool = True

    @property
    def late_ms(self) -> int | None:
        """How long after it was due, or after it was sent if that was later, its queue showed it."""
        if self.received_ms is None:
            return None
        received_late_ms = self.received_ms - self.due_ms
        if self.shown_late_ms is None:
            return received_late_ms
        return min(self.shown_late_ms, received_late_ms)

    @property
    def waited_ms(self) -> int | None:
        """How long it then lay there until it was received."""
        if self.received_ms is None or self.late_ms is None:
            return None
        return self.received_ms - self.due_ms - self.late_ms

    def handed_over(self, outcome: Outcome) -> None:
        """The consumer sent it to its destination; lateness is that of the first time."""
        if self.shown_late_ms is None:
            self.shown_late_ms = outcome.late_ms

    def arrived(self, copy: ReceivedMessage) -> None:
        """Count an arrival; times are those of the first."""
        self.arrivals += 1
        self.intact = self.intact and self._is_as_sent(copy)
        if self.received_ms is None and copy.first_receive_ms is not None:
            self.received_ms = copy.first_receive_ms
            relayed_ms = was_due_ms(copy.attributes)
            if relayed_ms is None:
                self._direct(copy.sent_ms or 0)
            else:
                self.due_ms = relayed_ms

    def _direct(self, sent_ms: int) -> None:
        """A relative delay counts from the broker's SentTimestamp; a message timer has whole seconds."""
        if self.message.due_at is not None:
            self.due_ms = max(due_at_ms(self.message.due_at), sent_ms)
        else:
            self.due_ms = sent_ms + delay_ms(self.message.delay or 0)
        timer_seconds = seconds_until(self.due_ms, sent_ms)
        self.shown_late_ms = sent_ms + 1000 * timer_seconds - self.due_ms

    def _is_as_sent(self, copy: ReceivedMessage) -> bool:
        ours = (MESSAGE_ID, WAS_DUE_AT)
        users = {name: value for name, value in copy.attributes.items() if name not in ours}
        return copy.body == self.message.body and users == attributes_of(self.message.attributes)


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run went. ``worst_late_ms`` is None if nothing arrived."""

    sent: int
    delivered: int
    lost: int
    duplicated: int
    early: int
    altered: int
    worst_late_ms: int | None

    @property
    def good(self) -> bool:
        """Nothing lost, duplicated, early or altered, and nothing more than 2 s late."""
        bad = self.lost or self.duplicated or self.early or self.altered
        return not bad and (self.worst_late_ms or 0) <= TOO_LATE_MS


class Tracker:
    """All messages of a run, by message id. Thread-safe."""

    def __init__(self) -> None:
        self._tracked: dict[str, Tracked] = {}
        self._lock = threading.Lock()

    def sent(self, message: Message, result: SendResult) -> None:
        """A message was sent; its ``message_id`` is set."""
        assert result.route is not None
        assert result.due is not None
        tracked = Tracked(message, result.route, due_at_ms(result.due))
        with self._lock:
            self._tracked[message.message_id or ""] = tracked

    def relayed(self, outcomes: Sequence[Outcome]) -> None:
        """The consumer settled copies: a hop each."""
        with self._lock:
            for outcome in outcomes:
                if outcome.status in (Status.REQUEUED, Status.HANDED_OVER):
                    self._tracked[outcome.copy.message_id].hops += 1
                if outcome.status is Status.HANDED_OVER:
                    self._tracked[outcome.copy.message_id].handed_over(outcome)

    def arrived(self, copies: Iterable[ReceivedMessage]) -> None:
        """Copies were received at the destination."""
        with self._lock:
            for copy in copies:
                self._tracked[text_of(copy.attributes, MESSAGE_ID) or ""].arrived(copy)

    def dated(self, event: Event) -> Event:
        """A reception, with what a receiver does not know of a direct message: when it was due."""
        entry = self._tracked[event.message_id]
        return replace(event, due_ms=entry.due_ms, late_ms=entry.late_ms)

    def rows(self) -> list[tuple[str, Tracked]]:
        """Message ids and messages, in the order sent."""
        with self._lock:
            return list(self._tracked.items())

    def summary(self) -> Summary:
        """The run so far."""
        tracked = [entry for _, entry in self.rows()]
        late = [entry.late_ms for entry in tracked if entry.late_ms is not None]
        return Summary(
            sent=len(tracked),
            delivered=sum(entry.arrivals > 0 for entry in tracked),
            lost=sum(entry.arrivals == 0 for entry in tracked),
            duplicated=sum(entry.arrivals > 1 for entry in tracked),
            early=sum(lateness < 0 for lateness in late),
            altered=sum(not entry.intact for entry in tracked),
            worst_late_ms=max(late, default=None),
        )


END_SECONDS: Final = 5.0


@contextmanager
def console_of(aws: LocalAws, endpoint: str, ledger: Path, *, hop: int) -> Iterator[None]:
    """A console of an endpoint on a local AWS, in its own process; its address is told.

    Raises:
        ConfigurationError: it did not start; what it said is on stderr.
    """
    program = [sys.executable, "-c", "from sqsdelay.cli import main; main()"]
    options = ["--endpoint", endpoint, "--ledger", str(ledger), "--hop", str(hop), "--port", "0"]
    others = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "SQSDELAY_"))}
    with subprocess.Popen(
        [*program, "console", *options, "--json"],
        env=others | aws.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            if not told:
                raise ConfigurationError("the console did not start; see above for the reason")
            tell(f"watch it at {json.loads(told)['url']}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


EXAMPLE: Final = Path(__file__).with_name("reminders.jsonl")
ENDPOINT: Final = "reminders"
PLAYED_FROM: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""Absolute due times are played as if it were this instant when the demo starts."""
PATIENCE_SECONDS: Final = 10
"""How long after the last due time a message that has not arrived counts as lost."""
GRACE_SECONDS: Final = 1
"""The report's: it is made when the demo has waited for its patience."""


def demo(
    file: Annotated[
        Path, typer.Option(help="Messages to send, JSON lines.", show_default="36 of its own")
    ] = EXAMPLE,
    hop: Annotated[
        int, typer.Option(help="Delivery delay of the delay queue, seconds; in production 900.")
    ] = 2,
    ledger: LedgerFile = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Folder for a report on the demo, see `pipeline report`; requires Java."),
    ] = None,
    console: Annotated[
        bool,
        typer.Option(
            "--console",
            help="Also show the messages in the console; it runs until SIGTERM or Ctrl-C.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Watch delayed messages arrive through a local AWS.

    Absolute due times in the file count as if the demo started at 2030-01-01T00:00:00Z.
    Exit code 1 if a message is lost, duplicated, early, altered or more than 2 s late.
    """
    from sqsdelay.testing.local_aws import LocalAws

    if report is not None:
        check_report(str(report))
    with TemporaryDirectory(prefix="sqsdelay-") as folder:
        kept = Path(folder) / "ledger.jsonl" if ledger is None and (report or console) else ledger
        book = opened_ledger(kept)
        with err.status("starting a local AWS (ministack)"), ExitStack() as started:
            aws = started.enter_context(LocalAws())
            running = started.pop_all()
        tell(f"{hop} s stand for the {DEFAULT_HOP_SECONDS} s of a hop on AWS")
        with running:
            if console and kept is not None:
                running.enter_context(console_of(aws, ENDPOINT, kept, hop=hop))
            summary = _run(aws, file, hop, book, quiet=as_json)
            if as_json:
                print_json(asdict(summary))
            else:
                _print_summary(summary)
            if report is not None and kept is not None:
                _report(kept, report)
            if console:
                tell("the console stays until you stop it with Ctrl-C")
                stop_on_signals().wait()
    if not summary.good:
        raise typer.Exit(1)


def _report(ledger: Path, folder: Path) -> None:
    reported(str(ledger), str(folder), grace=GRACE_SECONDS, as_of_ms=time.time_ns() // 1_000_000)
    tell(f"report: {folder / 'report.html'}")


def _run(aws: LocalAws, file: Path, hop: int, ledger: FileLedger | None, *, quiet: bool) -> Summary:
    from sqsdelay.sqs.consumer import DelayConsumer
    from sqsdelay.sqs.endpoints import create_endpoint
    from sqsdelay.sqs.queues import SqsQueues
    from sqsdelay.sqs.sender import DelaySender

    create_endpoint(aws.client("sqs"), Endpoint.parse(ENDPOINT), hop_seconds=hop)
    tracker = Tracker()
    started_ms = time.time_ns() // 1_000_000
    messages = read_demo_file(file, utc(started_ms))
    sender = DelaySender(aws.client("sqs"), hop_seconds=hop, ledger=ledger)
    results = sender.send_many(ENDPOINT, messages)
    for message, result in zip(messages, results, strict=True):
        if result.error is not None:
            raise result.error
        tracker.sent(message, result)
    consumer = DelayConsumer(
        ENDPOINT,
        aws.client("sqs"),
        hop_seconds=hop,
        wait_seconds=1,
        on_outcomes=tracker.relayed,
        ledger=ledger,
    )
    destination = SqsQueues(aws.client("sqs"))
    url = destination.url(Endpoint.parse(ENDPOINT).queue)

    def receive() -> None:
        copies = destination.receive_batch(url, wait_seconds=1)
        tracker.arrived(copies)
        if ledger is not None:
            now_ms = destination.broker_clock.now_ms()
            events = received_events(ENDPOINT, copies, now_ms=now_ms)
            record_safely(ledger, map(tracker.dated, events))
        if copies:
            destination.delete_batch(url, copies)

    stop = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        try:
            jobs = [pool.submit(consumer.run, stop)]
            jobs += [pool.submit(_until, stop, receive) for _ in range(2)]
            _watch(tracker, started_ms, hop, quiet=quiet)
        finally:
            stop.set()
        for job in jobs:
            job.result()
    return tracker.summary()


def _until(stop: threading.Event, work: Callable[[], None]) -> None:
    while not stop.is_set():
        work()


def read_demo_file(file: Path, now: datetime) -> list[Message]:
    """The file's messages, each with an id, absolute due times moved to be played from ``now``.

    Raises:
        typer.BadParameter: no such file.
        InvalidMessage: a bad line, with its number.
    """
    messages = []
    try:
        opened = file.open(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(
            f"--file {file}: {error.strerror}; name a file that can be read, or leave it out"
        ) from error
    with opened as lines:
        for number, message in read_messages(lines, Defaults()):
            if isinstance(message, BadLine):
                raise InvalidMessage(f"{file}, line {number}: {message.error}") from message.error
            due_at = None if message.due_at is None else now + (message.due_at - PLAYED_FROM)
            message_id = message.message_id or f"line-{number}"
            messages.append(replace(message, due_at=due_at, message_id=message_id))
    return messages


def _watch(tracker: Tracker, started_ms: int, hop: int, *, quiet: bool) -> None:
    """Show the table until all have arrived, or nothing more can be expected."""
    last_due_ms = max((entry.due_ms for _, entry in tracker.rows()), default=started_ms)
    give_up_ms = last_due_ms + PATIENCE_SECONDS * 1000
    console = Console(quiet=True) if quiet else out
    room = console.size.height - 5  # for the table's frame, and a line above it
    with Live(_table(tracker, started_ms, room), console=console, refresh_per_second=4) as live:
        while tracker.summary().lost and time.time_ns() // 1_000_000 < give_up_ms:
            time.sleep(0.25)
            live.update(_table(tracker, started_ms, room))
        time.sleep(hop + 1)  # a second copy would be a hop behind
        live.update(_table(tracker, started_ms))


def _table(tracker: Tracker, started_ms: int, most: int | None = None) -> Table:
    """All messages; where there is room for fewer, what happens next comes first, then what just did."""
    table = Table("message", "route", "hops", "due", "arrived", "lateness", "waited", padding=0)
    for column in table.columns[2:]:
        column.justify = "right"
    rows = tracker.rows()
    if most is not None and len(rows) > most:
        rows.sort(key=lambda row: (row[1].arrivals > 0, abs(row[1].due_ms - time.time_ns() / 1e6)))
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


def _print_summary(summary: Summary) -> None:
    if not out.is_terminal:
        out.print()  # the table of a pipe or log ends without a line break
    worst = "-" if summary.worst_late_ms is None else f"{summary.worst_late_ms / 1000:.3f} s"
    out.print(
        f"sent {summary.sent}, delivered {summary.delivered}, lost {summary.lost}, "
        f"duplicated {summary.duplicated}, early {summary.early}, altered {summary.altered}, "
        f"worst lateness {worst}",
        highlight=False,
        soft_wrap=True,
    )
