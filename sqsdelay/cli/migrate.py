"""``sqsdelay store migrate``: send what waits in a timeout store through native delays."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing
from typing import Annotated

import typer

from sqsdelay.cli.console import err, instant, out, print_json
from sqsdelay.cli.opened_store import Schema, StoreUrl, Table
from sqsdelay.cli.store import Name
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.delay import due_at_ms, parse_due_at, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.operating.migration import (
    HasMarks,
    Migrated,
    Migration,
    MigrationStatus,
    Plan,
    Transfer,
)

DEFAULT_CUT_OFF_MS = 24 * 3600 * 1000
"""A day from now: a dispatcher that releases ahead, and clocks that differ, are far from it."""


def migrate(
    endpoint: Name,
    store: StoreUrl,
    table: Table = None,
    schema: Schema = None,
    to: Annotated[
        str | None,
        typer.Option(help="Move into this store instead of sending: dynamodb://TABLE, or another."),
    ] = None,
    due_from: Annotated[
        str | None,
        typer.Option(
            help="Cut-off: migrate what is due from here on, 2027-01-31T09:00:00Z; a day from now "
            "if left out, all of it with --to."
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Send and remove. Without it, only say what would be.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send what waits in a store through native delays, or move it into another (--to); remove it here.

    A preview unless --live.

    What is due before the cut-off stays for the timeout manager or dispatcher, which may keep
    running. Repeat it until nothing is left. Exit code 1 if any message could not be sent.
    """
    from sqsdelay.sqs.sender import DelaySender
    from sqsdelay.stores import open_source, open_store

    name = Endpoint.parse(endpoint).name
    if due_from is None and to is not None:
        due_from_ms = 0
    elif due_from is None:
        due_from_ms = SystemClock().now_ms() + DEFAULT_CUT_OFF_MS
    else:
        due_from_ms = max(0, due_at_ms(parse_due_at(due_from or "")))
    with ExitStack() as stack:
        opened = stack.enter_context(
            closing(open_source(store, endpoint=name, table=table, schema=schema))
        )
        migration: Migration
        if to is None:
            migration = Migration(opened, DelaySender(), due_from_ms=due_from_ms)
        else:
            target = stack.enter_context(closing(open_store(to, endpoint=name)))
            migration = Transfer(opened, target, due_from_ms=due_from_ms)
            if live and isinstance(opened, HasMarks):
                for mark in opened.all_marks():
                    target.mark([mark])
        if not live:
            _print_plan(migration.plan(), due_from_ms, as_json=as_json)
            return
        counts: Counter[str] = Counter()
        for outcome in migration.run():
            counts[outcome.status] += 1
            _print_outcome(outcome, as_json=as_json)
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "nothing"
    err.print(told, highlight=False)
    if counts[MigrationStatus.FAILED]:
        raise typer.Exit(1)


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
    out.print(f"due from {due_from} on: {plan.messages} would be migrated", highlight=False)
    if plan.messages:
        out.print(f"the first due {first}, the last {last}", highlight=False)
    for destination, count in sorted(plan.destinations.items()):
        out.print(f"  {count} to {destination}", highlight=False, markup=False, soft_wrap=True)
    out.print(f"due before: {plan.left} would stay", highlight=False)
    out.print("nothing was sent; add --live to migrate", highlight=False)


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
        told = f"{message.message_id}  {outcome.status}: {outcome.error}"
        err.print(told, highlight=False, markup=False, soft_wrap=True)
