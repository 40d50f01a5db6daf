"""``sqsdelay store``: put messages into a delayed message store, list, cancel and move them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column
from rich.table import Table as PrintedTable
from rich.text import Text

from sqsdelay.cli.console import err, instant, out, print_json
from sqsdelay.cli.due_clock import DueClock, To
from sqsdelay.cli.listing import Listing, parse_cursor
from sqsdelay.cli.message_file import BadLine, Defaults, read_messages
from sqsdelay.cli.opened_store import Schema, StoreUrl, Table, opened_store
from sqsdelay.core.delay import checked_due_ms, delay_ms, due_at_ms, parse_delay, parse_due_at, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message
from sqsdelay.core.stored_message import StoredMessage, check_stored_id, to_store
from sqsdelay.errors import SqsDelayError
from sqsdelay.parking.parking import refused

if TYPE_CHECKING:
    from sqsdelay.ports.stores import DelayedMessageStore

app = typer.Typer(help="Messages in a delayed message store.", no_args_is_help=True)

CHUNK = 1_000
"""Messages stored in one call, or listed in one table."""

Name = Annotated[str, typer.Argument(help="The endpoint (destination queue) the store serves.")]
Delay = Annotated[
    str | None, typer.Option(help="Delay: seconds (90), 32m5s, 1d12h or ISO 8601 (PT32M5S).")
]
DueAt = Annotated[str | None, typer.Option(help="Due time with its offset: 2027-01-31T09:00:00Z.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON line per message.")]


@app.command()
def create(endpoint: Name, store: StoreUrl, table: Table = None, schema: Schema = None) -> None:
    """Create the store's table and index, where they do not exist yet."""
    with _opened(endpoint, store, table, schema) as opened:
        opened.set_up()
    out.print(f"the store of {Endpoint.parse(endpoint).name} is ready", highlight=False)


@app.command()
def send(
    endpoint: Name,
    store: StoreUrl,
    table: Table = None,
    schema: Schema = None,
    delay: Delay = None,
    due_at: DueAt = None,
    body: Annotated[str | None, typer.Option(help="The message's body.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines, one message each; --delay and --due-at serve lines that name neither.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    message_id: Annotated[
        str | None, typer.Option(help="The message's id (with --body); the same id is stored once.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Message group (with --body); a FIFO queue needs one.")
    ] = None,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Store one message or a file of messages. Exit code 1 if any was not stored.

    A --delay counts from the clock by which the dispatcher releases: SQS's, or with --to the store's.
    """
    if (body is None) == (file is None):
        raise typer.BadParameter("give one of --body and --file")
    if delay is not None and due_at is not None:
        raise typer.BadParameter("give one of --delay and --due-at")
    if file is not None and (message_id is not None or group is not None):
        raise typer.BadParameter(
            'in a file, the id is the field "message_id", the group "message_group_id"'
        )
    defaults = Defaults(
        None if delay is None else parse_delay(delay),
        None if due_at is None else parse_due_at(due_at),
    )
    failed = 0
    with _opened(endpoint, store, table, schema) as opened:
        clock = DueClock(endpoint, opened, store, to)
        if body is not None:
            message = Message(
                body,
                delay=defaults.delay,
                due_at=defaults.due_at,
                message_id=message_id,
                message_group_id=group,
            )
            failed = _store(opened, [_stored(message, endpoint, clock)], as_json=as_json)
        elif file is not None:
            failed = _store_file(opened, endpoint, clock, file, defaults, as_json=as_json)
    if failed:
        err.print(f"{failed} not stored", highlight=False)
        raise typer.Exit(1)


@app.command()
def pending(
    endpoint: Name,
    store: StoreUrl,
    table: Table = None,
    schema: Schema = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to list, the earliest first.")] = 50,
    due_from: Annotated[
        str | None, typer.Option(help="Leave out what is due before: 2027-01-31T09:00:00Z.")
    ] = None,
    due_before: Annotated[
        str | None, typer.Option(help="Leave out what is due then or later: 2027-02-01T00:00:00Z.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Go on behind a page: the cursor printed at its end.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the messages that wait, by due time, and a cursor for --after where there are more."""
    listing = Listing(
        after=None if after is None else parse_cursor(after),
        due_from_ms=None if due_from is None else due_at_ms(parse_due_at(due_from)),
        due_before_ms=None if due_before is None else due_at_ms(parse_due_at(due_before)),
    )
    with _opened(endpoint, store, table, schema) as opened:
        if as_json:
            for message in listing.read(opened, limit):
                print_json(_as_json(message))
        else:
            _print_tables(listing.read(opened, limit))
            told = f"{listing.listed} of {opened.pending_count()} pending"
            out.print(told, highlight=False)
        more = listing.has_more(opened)
    if more:
        # Not among the lines that programs read.
        err.print(
            f"more: --after {shlex.quote(listing.cursor)}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _print_tables(messages: Iterable[StoredMessage]) -> None:
    """A table for every thousand, so that any number of them takes the memory of as many."""
    rows = ((_due(m), m.message_id, str(len(m.body)), str(m.failures)) for m in messages)
    first = True
    while (some := list(islice(rows, CHUNK))) or first:
        first = False
        # An id that is cut off cannot be copied into `cancel`.
        printed = PrintedTable("due", Column("message id", overflow="fold"), "bytes", "failures")
        for due, message_id, size, failures in some:
            printed.add_row(due, Text(message_id), size, failures)
        out.print(printed)


@app.command()
def cancel(
    endpoint: Name,
    message_ids: Annotated[list[str], typer.Argument(help="The messages' ids.")],
    store: StoreUrl,
    table: Table = None,
    schema: Schema = None,
) -> None:
    """Remove messages before they are released. Exit code 1 if any was not there any more."""
    for message_id in message_ids:
        check_stored_id(message_id)
    with _opened(endpoint, store, table, schema) as opened:
        cancelled = opened.cancel(message_ids)
    for message_id, done in zip(message_ids, cancelled, strict=True):
        told = "cancelled" if done else "not in the store (released already, or never stored)"
        out.print(f"{message_id}  {told}", highlight=False, markup=False, soft_wrap=True)
    if not all(cancelled):
        raise typer.Exit(1)


@app.command()
def reschedule(
    endpoint: Name,
    message_id: Annotated[str, typer.Argument(help="The message's id.")],
    store: StoreUrl,
    table: Table = None,
    schema: Schema = None,
    delay: Delay = None,
    due_at: DueAt = None,
    to: To = None,
) -> None:
    """Move a message to another due time. Exit code 1 if it was not there any more.

    A --delay counts from the clock by which the dispatcher releases: SQS's, or with --to the store's.
    """
    check_stored_id(message_id)
    with _opened(endpoint, store, table, schema) as opened:
        clock = DueClock(endpoint, opened, store, to)
        due_ms = new_due_ms(delay, due_at, now_ms=clock.latest_ms)
        moved = opened.reschedule(message_id, due_ms)
    told = f"due {utc(due_ms)}" if moved else "not in the store (released already, or never stored)"
    out.print(f"{message_id}  {told}", highlight=False, markup=False, soft_wrap=True)
    if not moved:
        raise typer.Exit(1)


def new_due_ms(delay: str | None, due_at: str | None, *, now_ms: Callable[[], int]) -> int:
    """The due time that --delay or --due-at names, epoch milliseconds.

    Args:
        now_ms: what a delay counts from; asked for a delay only.

    Raises:
        BadParameter: both or none of them.
        InvalidDelay
    """
    if (delay is None) == (due_at is None):
        raise typer.BadParameter("give one of --delay and --due-at")
    if due_at is not None:
        return due_at_ms(parse_due_at(due_at))
    added_ms = delay_ms(parse_delay(delay or ""))
    return checked_due_ms(now_ms() + added_ms)


def _opened(
    endpoint: str, url: str, table: str | None, schema: str | None
) -> AbstractContextManager[DelayedMessageStore]:
    return opened_store(Endpoint.parse(endpoint).name, url, table, schema)


def _stored(message: Message, endpoint: str, clock: DueClock) -> StoredMessage:
    # A due time needs no clock, and so neither SQS nor its region and credentials.
    now_ms = clock.latest_ms() if message.due_at is None else 0
    return to_store(message, endpoint, now_ms=now_ms)


def _store_file(
    store: DelayedMessageStore,
    endpoint: str,
    clock: DueClock,
    file: Path,
    defaults: Defaults,
    *,
    as_json: bool,
) -> int:
    """Store chunk by chunk; returns how many lines were not stored."""
    failed = 0
    chunk: list[StoredMessage] = []
    with file.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in read_messages(lines, defaults):
            try:
                if isinstance(line, BadLine):
                    raise line.error
                chunk.append(_stored(line, endpoint, clock))
            except SqsDelayError as error:
                failed += 1
                err.print(f"line {number}: {error}", highlight=False, markup=False)
            if len(chunk) == CHUNK:
                failed += _store(store, chunk, as_json=as_json)
                chunk = []
    return failed + _store(store, chunk, as_json=as_json)


def _store(store: DelayedMessageStore, messages: list[StoredMessage], *, as_json: bool) -> int:
    """Returns how many were not stored, since another message has their id."""
    failed = 0
    for message, new in zip(messages, store.store(messages), strict=True):
        problem = None if new else refused(message, store.find(message.message_id))
        if problem is not None:
            failed += 1
            err.print(f"{message.message_id}: {problem}", highlight=False, markup=False)
        elif as_json:
            print_json(_as_json(message) | {"new": new})
        else:
            told = f"due {_due(message)}" if new else "was stored before"
            out.print(f"{message.message_id}  {told}", highlight=False, markup=False)
    return failed


def _due(message: StoredMessage) -> str:
    return instant(message.due_ms)


def _as_json(message: StoredMessage) -> dict[str, object]:
    return {
        "message_id": message.message_id,
        "destination": message.destination,
        "due": _due(message),
        "bytes": len(message.body),
        "failures": message.failures,
    }
