"""``sqsdelay store``: create a delayed message store, put messages into it, and move on from it."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sqsdelay.cli.console import print_json, say, tell
from sqsdelay.cli.message_file import (
    BadLine,
    Defaults,
    checked_input,
    given_attributes,
    opened_lines,
    read_messages,
)
from sqsdelay.cli.options import (
    Attributes,
    Body,
    Delay,
    DueAt,
    EndpointName,
    Group,
    JsonLines,
    MessagesFile,
    PlaceUrl,
    ReleasedTo,
    StoreUrl,
    opened_place,
)
from sqsdelay.cli.waiting import DueClock
from sqsdelay.core.delay import due_at_ms, parse_due_at, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message, size_of
from sqsdelay.core.readable import instant
from sqsdelay.core.stored_message import StoredMessage, to_store
from sqsdelay.errors import ConfigurationError, SqsDelayError
from sqsdelay.operating.migration import (
    Migrated,
    Migration,
    MigrationStatus,
    Plan,
)
from sqsdelay.parking.parking import kept_as, refused
from sqsdelay.ports.queues import SizeLimits

if TYPE_CHECKING:
    from sqsdelay.ports.stores import ParkingPlace

app = typer.Typer(
    help="Set up a delayed message store and put messages into it.", no_args_is_help=True
)

CHUNK: Final = 1_000
"""Messages stored in one call."""


@app.command()
def create(endpoint: EndpointName, store: PlaceUrl) -> None:
    """Create what a store needs: a table, a bucket, a file or a schedule group."""
    name = Endpoint.parse(endpoint).name
    with opened_place(name, store, create=True) as opened:
        opened.set_up()
    say(f"the store of {name} is ready")


@app.command()
def send(
    endpoint: EndpointName,
    store: StoreUrl,
    delay: Delay = None,
    due_at: DueAt = None,
    body: Body = None,
    file: MessagesFile = None,
    message_id: Annotated[
        str | None, typer.Option(help="Message id (with --body); each id is stored once.")
    ] = None,
    group: Group = None,
    attribute: Attributes = None,
    to: ReleasedTo = None,
    as_json: JsonLines = False,
) -> None:
    """Store one message or a file of messages. Exit code 1 if any was not stored.

    --delay counts from SQS's clock, or with --to from the store's.
    """
    defaults = checked_input(body, file, delay, due_at, message_id, group, attribute)
    failed = 0
    with _opened(endpoint, store) as opened:
        clock = DueClock(endpoint, opened, store, to)
        limits = _limits() if to is None else None
        if body is not None:
            message = Message(
                body,
                delay=defaults.delay,
                due_at=defaults.due_at,
                message_id=message_id,
                message_group_id=group,
                attributes=given_attributes(attribute),
            )
            failed = _store(opened, [_stored(message, endpoint, clock, limits)], as_json=as_json)
        elif file is not None:
            failed = _store_file(opened, endpoint, clock, limits, file, defaults, as_json=as_json)
    if failed:
        tell(f"{failed} not stored")
        raise typer.Exit(1)


@app.command()
def migrate(
    endpoint: EndpointName,
    store: StoreUrl,
    due_from: Annotated[
        str | None,
        typer.Option(
            help="Migrate messages due at or after this time, e.g. 2027-01-31T09:00:00Z; "
            "default: a day from now."
        ),
    ] = None,
    amendments_to: Annotated[
        str | None,
        typer.Option(
            help="URL of the store that the delay consumer has, if it is another: cancellations and new due "
            "times go there."
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Send and remove; without it, only show the plan.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Move messages of a SQLite or PostgreSQL store to SQS's delay queues.

    Only shows the plan unless --live is given.
    Messages due earlier than --due-from stay for the timeout manager or dispatcher, which may keep
    running. Repeat until nothing is left, one run at a time. Exit code 1 if any message could not be sent.
    """
    from sqsdelay.sqs.sender import DelaySender

    due_from_ms = None if due_from is None else max(0, due_at_ms(parse_due_at(due_from)))
    with ExitStack() as opening:
        opened = opening.enter_context(_opened(endpoint, store))
        kept = None
        if amendments_to is not None:
            kept = opening.enter_context(_opened(endpoint, amendments_to))
        sender = DelaySender(idempotent=True)
        migration = Migration(opened, sender, due_from_ms=due_from_ms, amendments_to=kept)
        if not live:
            _print_plan(migration.plan(), migration.due_from_ms, as_json=as_json)
            return
        counts: Counter[str] = Counter()
        for outcome in migration.run():
            counts[outcome.status] += 1
            _print_outcome(outcome, as_json=as_json)
    line = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "nothing"
    tell(line)
    if counts[MigrationStatus.FAILED]:
        raise typer.Exit(1)


def _opened(endpoint: str, url: str) -> AbstractContextManager[ParkingPlace]:
    return opened_place(Endpoint.parse(endpoint).name, url)


def _limits() -> SizeLimits | None:
    """What queues take; None where there is no SQS to ask, which storing does not need."""
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.queues import SqsQueues

    try:
        return SizeLimits(SqsQueues(default_client(connections=1, attempts=1)))
    except ConfigurationError:
        return None


def _stored(
    message: Message, endpoint: str, clock: DueClock, limits: SizeLimits | None
) -> StoredMessage:
    # A due time needs no clock, and so neither SQS nor its region and credentials.
    now_ms = clock.latest_ms() if message.due_at is None else 0
    stored = to_store(message, endpoint, now_ms=now_ms)
    if limits is not None:
        # Found out now, when a person still knows the message; not when it is due.
        own, parsed = size_of(message.body, stored.attributes), Endpoint.parse(endpoint)
        for queue in {parsed.hand_over_queue, parsed.queue}:
            limits.check(queue, own)
    return stored


def _store_file(
    store: ParkingPlace,
    endpoint: str,
    clock: DueClock,
    limits: SizeLimits | None,
    file: Path,
    defaults: Defaults,
    *,
    as_json: bool,
) -> int:
    """Store chunk by chunk; returns how many lines were not stored."""
    failed = 0
    chunk: list[StoredMessage] = []
    with opened_lines(file) as lines:
        for number, line in read_messages(lines, defaults):
            try:
                if isinstance(line, BadLine):
                    raise line.error
                chunk.append(_stored(line, endpoint, clock, limits))
            except SqsDelayError as error:
                failed += 1
                tell(f"line {number}: {error}")
            if len(chunk) == CHUNK:
                failed += _store(store, chunk, as_json=as_json)
                chunk = []
    return failed + _store(store, chunk, as_json=as_json)


def _store(store: ParkingPlace, messages: list[StoredMessage], *, as_json: bool) -> int:
    """Returns how many were not stored, since another message has their id."""
    failed = 0
    for message, new in zip(messages, store.store(messages), strict=True):
        problem = None if new else refused(message, kept_as(store, message))
        if problem is not None:
            failed += 1
            tell(f"{message.message_id}: {problem}")
        elif as_json:
            print_json(_as_json(message, new=new))
        else:
            line = f"due {instant(message.due_ms)}" if new else "already stored"
            say(f"{message.message_id}  {line}")
    return failed


def _as_json(message: StoredMessage, *, new: bool) -> dict[str, object]:
    return {
        "message_id": message.message_id,
        "destination": message.destination,
        "due": instant(message.due_ms),
        "bytes": len(message.body),
        "failures": message.failures,
        "new": new,
    }


def _print_plan(plan: Plan, due_from_ms: int, *, as_json: bool) -> None:
    first, last = (
        None if due_ms is None else instant(due_ms) for due_ms in (plan.earliest_ms, plan.latest_ms)
    )
    due_from = utc(due_from_ms).isoformat()
    if as_json:
        print_json(
            {
                "would_migrate": plan.messages,
                "left": plan.left,
                "due_from": due_from,
                "earliest": first,
                "latest": last,
                "destinations": plan.destinations,
            }
        )
        return
    say(f"due from {due_from}: {plan.messages} would be migrated")
    if plan.messages:
        say(f"first due {first}, last due {last}")
    for destination, count in sorted(plan.destinations.items()):
        say(f"  {count} to {destination}")
    say(f"due earlier: {plan.left} would stay")
    say("nothing was sent; add --live to migrate")


def _print_outcome(outcome: Migrated, *, as_json: bool) -> None:
    message = outcome.message
    if as_json:
        print_json(
            {
                "message_id": message.message_id,
                "destination": message.destination,
                "due": instant(message.due_ms),
                "status": outcome.status,
                "error": outcome.error,
            }
        )
    elif outcome.status is not MigrationStatus.MIGRATED:
        line = f"{message.message_id}  {outcome.status}: {outcome.error}"
        tell(line)
