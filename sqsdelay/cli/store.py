"""``sqsdelay store``: create a delayed message store, and move on from it."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from sqsdelay.cli.console import print_json, say, tell
from sqsdelay.cli.options import EndpointName, PlaceUrl, StoreUrl, opened_place
from sqsdelay.core.delay import due_at_ms, parse_due_at, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import instant
from sqsdelay.operating.migration import Migrated, Migration, MigrationStatus, Plan

if TYPE_CHECKING:
    from sqsdelay.ports.stores import ParkingPlace

app = typer.Typer(help="Set up a delayed message store, or leave it.", no_args_is_help=True)


@app.command()
def create(endpoint: EndpointName, store: PlaceUrl) -> None:
    """Create what a store needs: a table, a bucket, a file or a schedule group."""
    name = Endpoint.parse(endpoint).name
    with opened_place(name, store, create=True) as opened:
        opened.set_up()
    say(f"the store of {name} is ready")


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
