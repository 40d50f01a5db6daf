"""``sqsdelay pending``, ``cancel`` and ``reschedule``: messages that wait to become due; ``errors list`` and
``retry``: messages that failed."""

from __future__ import annotations

import shlex
from collections import Counter
from functools import partial
from typing import Annotated, Any, Final

import typer
from typer import Argument, Option

from sqsdelay.cli import options
from sqsdelay.cli.console import counted, out, say, show, show_rows, start_of, tell
from sqsdelay.core.delay import Reject, too_far
from sqsdelay.core.message import size_of
from sqsdelay.core.readable import about, instant
from sqsdelay.core.rejection import Rejection
from sqsdelay.core.stored_message import StoredMessage, check_stored_id
from sqsdelay.errors import ConfigurationError, InvalidDelay, InvalidMessage
from sqsdelay.operating import status
from sqsdelay.operating.error_queue import NO_REASON, ErrorQueue, Retry, RetryStatus
from sqsdelay.parking.parking import Change, Listing, Schedule

EXIT_REQUESTED: Final = 3
"""Some messages were not in the store: their change is left to the delay consumer."""


def pending(
    endpoint: options.EndpointName,
    store: options.PlaceUrl,
    limit: Annotated[int, Option(min=1, help="How many to list, earliest first.")] = 50,
    due_from: Annotated[
        int | None, options.time_option("Due from 2027-01-31T09:00:00Z on.")
    ] = None,
    due_before: Annotated[
        int | None, options.time_option("Due before 2027-02-01T00:00:00Z.")
    ] = None,
    after: Annotated[str | None, Option(help="Cursor, printed below the last page.")] = None,
    as_json: options.JsonLines = False,
) -> None:
    """List the messages in a store by due time.

    If there are more, it prints a cursor for --after.

    SQS cannot list the messages in the delay queue.
    """
    try:
        cursor = None if after is None else status.parse_cursor(after)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--after") from error
    listing = Listing(after=cursor, due_from_ms=due_from, due_before_ms=due_before)
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
    target, book = options.Target(endpoint, store, to), options.opened_ledger(ledger)
    with target.opened_place() as opened:
        due_ms = options.new_due_ms(delay, due_at, now_ms=lambda: target.delay_counts_from(opened))
        now_ms = target.amended_until(opened)
        if problem := too_far(due_ms, now_ms, max_delay):
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
        line = f"{message_id}  {status.CHANGED[change].format(done=done)}"
        show({"message_id": message_id, "change": change}, line, as_json=as_json)
    if Change.RELEASED in changes.values():
        raise typer.Exit(1)
    if Change.REQUESTED in changes.values():
        raise typer.Exit(EXIT_REQUESTED)


_ERRORS: Final = "Inspect an endpoint's error queue and retry its messages."
errors_app = typer.Typer(cls=options.Commands, help=_ERRORS)


@errors_app.command("list")
def list_errors(
    endpoint: options.EndpointName,
    limit: Annotated[int, Option(min=1, help="Show at most this many.")] = 50,
    bodies: Annotated[bool, Option("--bodies", help="Show bodies, which may be secret.")] = False,
    as_json: options.JsonLines = False,
) -> None:
    """Show the messages that could not be delivered, and why. They stay in the queue.

    SQS shows messages only by receiving them: their receive counts grow, and other readers do not see
    them for a while.
    """
    target = options.Target(endpoint)
    with status.naming_the_command(target.endpoint, target.endpoint.error_queue):
        records = ErrorQueue(target.queues, target.endpoint).look(
            limit, lambda each: _failed(each, bodies=bodies, whole=as_json)
        )
    columns = ["message_id", "due", "rejected", "receives", "bytes", "reason", "body"]
    show_rows(records, columns if bodies else columns[:-1], as_json=as_json)
    if out.is_terminal and not as_json:
        say(f"{len(records)} shown of {target.endpoint.error_queue.name}")


@errors_app.command()
def retry(
    endpoint: options.EndpointName,
    message_id: Annotated[list[str] | None, Option(help="A message; may be repeated.")] = None,
    every: Annotated[bool, Option("--all", help="Retry all messages.")] = False,
    delay: options.DelayOption = None,
    due_at: options.DueAt = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be sent where.")] = False,
    as_json: options.JsonLines = False,
) -> None:
    """Send failed messages again.

    Those that are not due yet go to the delay queue.

    A message keeps its id and due time; one that is overdue is delivered at once. --delay and
    --due-at apply to messages without a due time. A message is deleted from the error queue only
    after the other queue has confirmed it.

    Exit code 1 if any was left behind or not found.
    """
    if (not message_id) == (not every):
        raise typer.BadParameter("give either --message-id or --all")
    target = options.Target(endpoint)
    queues, of = target.queues, target.endpoint
    given = None
    counts: Counter[RetryStatus] = Counter()
    missing = dict.fromkeys(message_id or ())
    with status.naming_the_command(of, of.error_queue):
        if delay is not None or due_at is not None:
            # By a local clock that is behind, messages would be early.
            now_ms = partial(status.latest_of_sqs, queues, of.error_queue)
            given = options.new_due_ms(delay, due_at, now_ms=now_ms)
        for done in ErrorQueue(queues, of).retry(message_id or None, due_ms=given, dry_run=dry_run):
            counts[done.status] += 1
            missing.pop(done.rejection.message_id, None)
            _retried(done, as_json=as_json)
    for absent in missing:
        tell(f"{absent}  not found")
    tell(counted(counts) or "no messages")
    if missing or counts[RetryStatus.LEFT] or counts[RetryStatus.NOT_DELETED]:
        raise typer.Exit(1)


def _failed(rejection: Rejection, *, bodies: bool, whole: bool) -> dict[str, Any]:
    """What `list` shows; in a table a missing reason is explained, and a body is cut."""
    copy = rejection.copy
    return {
        "message_id": rejection.message_id,
        "due": None if isinstance(rejection.due, Reject) else instant(rejection.due),
        "rejected": None if copy.sent_ms is None else instant(copy.sent_ms),
        "receives": copy.receive_count,
        "bytes": size_of(copy.body, {}),
        "reason": rejection.reason or (None if whole else NO_REASON),
        "destination": rejection.destination,
        **({"body": copy.body if whole else start_of(copy.body)} if bodies else {}),
    }


def _retried(done: Retry, *, as_json: bool) -> None:
    message_id = done.rejection.message_id
    due = None if done.due_ms is None else instant(done.due_ms)
    to = f" to {done.queue}, due {due}"
    line = f"{done.status}{to if done.error is None else f': {done.error}'}"
    record = {"status": done.status, "queue": done.queue, "due": due, "error": done.error}
    show({"message_id": message_id, **record}, f"{message_id}  {line}", as_json=as_json)
