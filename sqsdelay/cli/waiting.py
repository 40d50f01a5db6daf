"""``sqsdelay pending``, ``cancel`` and ``reschedule``: messages that wait to become due."""

from __future__ import annotations

import shlex
from typing import Annotated, Final

import typer
from typer import Argument, Option

from sqsdelay.cli import options
from sqsdelay.cli.console import about, say, show, show_rows, tell
from sqsdelay.core.delay import too_far
from sqsdelay.core.readable import instant
from sqsdelay.core.stored_message import StoredMessage, check_stored_id
from sqsdelay.errors import ConfigurationError, InvalidDelay, InvalidMessage
from sqsdelay.operating.status import CHANGED, Listing, parse_cursor
from sqsdelay.parking.parking import Change, Schedule

EXIT_REQUESTED: Final = 3
"""Some messages were not in the store: their change is left to the delay consumer."""


def pending(
    endpoint: options.EndpointName,
    store: options.PlaceUrl,
    limit: Annotated[int, Option(min=1, help="How many to list, earliest first.")] = 50,
    due_from: Annotated[str | None, Option(help="Due from 2027-01-31T09:00:00Z on.")] = None,
    due_before: Annotated[str | None, Option(help="Due before 2027-02-01T00:00:00Z.")] = None,
    after: Annotated[str | None, Option(help="Cursor, printed below the last page.")] = None,
    as_json: options.JsonLines = False,
) -> None:
    """List the messages in a store by due time.

    If there are more, it prints a cursor for --after.

    SQS cannot list the messages in the delay queue.
    """
    try:
        cursor = None if after is None else parse_cursor(after)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--after") from error
    listing = Listing(
        after=cursor,
        due_from_ms=options.instant_ms("--due-from", due_from),
        due_before_ms=options.instant_ms("--due-before", due_before),
    )
    with options.Target(endpoint, store).opened_place() as opened:
        records = map(_record, listing.read(opened, limit))
        show_rows(records, ("due", "message_id", "bytes", "failures"), as_json=as_json)
        if not as_json:
            say(f"{listing.listed} of {opened.pending_count()} pending")
        more = listing.has_more(opened)
    if more:
        # Not among the lines that programs read.
        tell(f"more: --after {shlex.quote(listing.cursor)}")


def _checked_ids(given: list[str] | str) -> list[str] | str:
    """The ids as they are, if each can be a message's."""
    for message_id in [given] if isinstance(given, str) else given:
        try:
            check_stored_id(message_id)
        except InvalidMessage as error:
            raise typer.BadParameter(about(error, repr(message_id))) from error
    return given


def cancel(
    endpoint: options.EndpointName,
    message_ids: Annotated[list[str], Argument(help="The message ids.", callback=_checked_ids)],
    store: options.PlaceUrl,
    to: options.ReleasedTo = None,
    ledger: options.LedgerFile = None,
    as_json: options.JsonLines = False,
) -> None:
    """Cancel messages by id.

    Those that are not in the store are left to the delay consumer.

    Exit code 1 if any is being released; otherwise 3 if any was not in the store.
    """
    target, book = options.Target(endpoint, store, to), options.opened_ledger(ledger)
    with target.opened_place() as opened:
        now_ms = target.amended_until(opened)
        schedule = Schedule(opened, endpoint=target.name, ledger=book)
        changes = {i: schedule.cancel(i, now_ms=now_ms) for i in message_ids}
    _tell(changes, "cancelled", as_json=as_json)


def reschedule(
    endpoint: options.EndpointName,
    message_id: Annotated[str, Argument(help="The message id.", callback=_checked_ids)],
    store: options.PlaceUrl,
    delay: options.DelayOption = None,
    due_at: options.DueAt = None,
    max_delay: options.MaxDelay = options.DEFAULT_MAX_DELAY,
    to: options.ReleasedTo = None,
    ledger: options.LedgerFile = None,
    as_json: options.JsonLines = False,
) -> None:
    """Give a message another due time.

    If it is not in the store, that is left to the delay consumer.

    --delay counts from SQS's clock, or with --to from the store's.
    Exit code 1 if the message is being released, 3 if it was not in the store.
    """
    most = options.max_delay_seconds(max_delay)
    target, book = options.Target(endpoint, store, to), options.opened_ledger(ledger)
    with target.opened_place() as opened:
        due_ms = options.new_due_ms(delay, due_at, now_ms=lambda: target.delay_counts_from(opened))
        now_ms = target.amended_until(opened)
        if problem := too_far(due_ms, now_ms, most):
            raise InvalidDelay(problem)
        schedule = Schedule(opened, endpoint=target.name, ledger=book)
        change = schedule.reschedule(message_id, due_ms, now_ms=now_ms)
    _tell({message_id: change}, f"moved to {instant(due_ms)}", as_json=as_json)


def _record(message: StoredMessage) -> dict[str, object]:
    return {
        "message_id": message.message_id,
        "destination": message.destination,
        "due": instant(message.due_ms),
        "bytes": len(message.body),
        "failures": message.failures,
    }


def _tell(changes: dict[str, Change], done: str, *, as_json: bool) -> None:
    for message_id, change in changes.items():
        line = f"{message_id}  {CHANGED[change].format(done=done)}"
        show({"message_id": message_id, "change": change}, line, as_json=as_json)
    if Change.RELEASED in changes.values():
        raise typer.Exit(1)
    if Change.REQUESTED in changes.values():
        raise typer.Exit(EXIT_REQUESTED)
