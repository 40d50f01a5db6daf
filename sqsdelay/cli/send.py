"""``sqsdelay send``: one message, or a file of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from sqsdelay.cli.console import err, out, print_json
from sqsdelay.cli.max_delay import DEFAULT_MAX_DELAY, MaxDelay, max_delay_seconds
from sqsdelay.cli.message_file import BadLine, Defaults, read_messages
from sqsdelay.cli.opened_ledger import LedgerFile, opened_ledger
from sqsdelay.core.delay import parse_delay, parse_due_at
from sqsdelay.core.message import Message
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.sending.sender import DEFAULT_CONCURRENCY, SendResult

if TYPE_CHECKING:
    from sqsdelay.sqs.sender import DelaySender

CHUNK = 2_000
"""Lines sent with one `send_many`: enough for full batches, small enough for a moving bar."""


def send(
    endpoint: Annotated[str, typer.Argument(help="The destination queue's name, URL or ARN.")],
    delay: Annotated[
        str | None, typer.Option(help="Delay: seconds (90), 32m5s, 1d12h or ISO 8601 (PT32M5S).")
    ] = None,
    due_at: Annotated[
        str | None, typer.Option(help="Due time with its offset: 2027-01-31T09:00:00Z.")
    ] = None,
    body: Annotated[str | None, typer.Option(help="The message's body.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines, one message each ('-' for stdin); "
            "--delay and --due-at serve lines that name neither.",
            allow_dash=True,
            dir_okay=False,
        ),
    ] = None,
    message_id: Annotated[
        str | None, typer.Option(help="What receivers deduplicate on (with --body).")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Message group (with --body); a FIFO queue needs one."),
    ] = None,
    hop: Annotated[
        int, typer.Option(help="Delivery delay of the endpoint's delay queue, seconds.")
    ] = MAX_MESSAGE_TIMER_SECONDS,
    max_delay: MaxDelay = DEFAULT_MAX_DELAY,
    bucket: Annotated[
        str | None, typer.Option(help="S3 bucket for bodies that are too large for SQS.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Batches in flight.")] = DEFAULT_CONCURRENCY,
    ledger: LedgerFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line per message.")] = False,
) -> None:
    """Send one message or a file of messages with any delay. Exit code 1 if any was not sent."""
    from sqsdelay.s3 import Bucket
    from sqsdelay.sqs.sender import DelaySender

    if (body is None) == (file is None):
        raise typer.BadParameter("give one of --body and --file")
    if delay is not None and due_at is not None:
        raise typer.BadParameter("give one of --delay and --due-at")
    if file is not None and (message_id is not None or group is not None):
        raise typer.BadParameter(
            "--message-id and --group go with --body; in a file they are the fields "
            '"message_id" and "message_group_id"'
        )
    defaults = Defaults(
        None if delay is None else parse_delay(delay),
        None if due_at is None else parse_due_at(due_at),
    )
    sender = DelaySender(
        hop_seconds=hop,
        max_delay_seconds=max_delay_seconds(max_delay),
        concurrency=concurrency,
        large_bodies=None if bucket is None else Bucket(bucket),
        ledger=opened_ledger(ledger),
    )
    if body is not None:
        result = sender.send(
            endpoint,
            body,
            delay=defaults.delay,
            due_at=defaults.due_at,
            message_id=message_id,
            message_group_id=group,
        )
        _print_one(result, as_json=as_json)
    elif file is not None:
        with _opened(file) as lines:
            failed = _send_file(sender, endpoint, lines, defaults, as_json=as_json)
        if failed:
            raise typer.Exit(1)


def _opened(file: Path) -> IO[str]:
    """The file's lines, or stdin's for "-"; bytes that are no UTF-8 spoil their own line only."""
    if str(file) == "-":
        return open(sys.stdin.fileno(), encoding="utf-8", errors="surrogateescape", closefd=False)
    try:
        return file.open(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise typer.BadParameter(f"--file {file}: {error.strerror}") from error


def _print_one(result: SendResult, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(None, result))
    else:
        told = f"{result.message_id}  {result.route}  due {result.due}"
        out.print(told, highlight=False, markup=False)


def _send_file(
    sender: DelaySender, endpoint: str, lines: IO[str], defaults: Defaults, *, as_json: bool
) -> int:
    """Send chunk by chunk with a progress bar; returns how many messages were not sent."""
    sent = failed = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("sending", total=None)
        for chunk in _chunks(read_messages(lines, defaults)):
            for number, result in _send_chunk(sender, endpoint, chunk):
                if result.error is None:
                    sent += 1
                else:
                    failed += 1
                    err.print(f"line {number}: {result.error}", highlight=False, markup=False)
                if as_json:
                    print_json(_as_json(number, result))
            progress.update(task, completed=sent + failed)
    err.print(f"{sent} sent, {failed} not sent", highlight=False)
    return failed


def _chunks(
    items: Iterable[tuple[int, Message | BadLine]],
) -> Iterator[list[tuple[int, Message | BadLine]]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _send_chunk(
    sender: DelaySender, endpoint: str, chunk: list[tuple[int, Message | BadLine]]
) -> Iterator[tuple[int, SendResult]]:
    good = [item for _, item in chunk if isinstance(item, Message)]
    results = iter(sender.send_many(endpoint, good))
    for number, item in chunk:
        if isinstance(item, BadLine):
            yield number, SendResult(error=item.error)
        else:
            yield number, next(results)


def _as_json(line: int | None, result: SendResult) -> dict[str, Any]:
    return {
        **({} if line is None else {"line": line}),
        "message_id": result.message_id,
        "route": result.route,
        "due": None if result.due is None else result.due.isoformat(timespec="milliseconds"),
        "sqs_message_id": result.sqs_message_id,
        "error": None if result.error is None else str(result.error),
    }
