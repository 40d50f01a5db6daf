"""``sqsdelay cancel`` and ``sqsdelay reschedule``: for messages that wait, wherever that is."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sqsdelay.cli.console import err, out, print_json
from sqsdelay.cli.due_clock import DueClock, To
from sqsdelay.cli.opened_ledger import LedgerFile, opened_ledger
from sqsdelay.cli.opened_store import Schema, StoreUrl, Table, opened_store
from sqsdelay.cli.store import Delay, DueAt, Json, new_due_ms
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import SqsDelayError
from sqsdelay.parking.schedule import Change, Schedule

EXIT_MARKED: Final = 3
"""Not everything asked for is done: a mark was left for what does not wait in the store."""

_TOLD: Final = {
    Change.DONE: "{done}",
    Change.RELEASED: "too late: it is being released at this moment",
    Change.MARKED: "not in the store: if it is in the delay queue, it is {done} at its next hop; "
    "if it was released or never sent, nothing happens",
}

Name = Annotated[str, typer.Argument(help="The destination queue's name, URL or ARN.")]


def cancel(
    endpoint: Name,
    message_ids: Annotated[list[str], typer.Argument(help="The messages' ids.")],
    store: StoreUrl,
    table: Table = None,
    schema: Schema = None,
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Cancel messages that wait in the store, or leave a mark for the delay consumer.

    Exit code 1 if any is being released, else 3 if any was not in the store and only marked.
    """
    now_ms = latest_ms(endpoint)
    name, book = Endpoint.parse(endpoint).name, opened_ledger(ledger)
    with opened_store(name, store, table, schema) as opened:
        schedule = Schedule(opened, endpoint=name, ledger=book)
        changes = {i: schedule.cancel(i, now_ms=now_ms) for i in message_ids}
    _tell(changes, "cancelled", as_json=as_json)


def reschedule(
    endpoint: Name,
    message_id: Annotated[str, typer.Argument(help="The message's id.")],
    store: StoreUrl,
    table: Table = None,
    schema: Schema = None,
    delay: Delay = None,
    due_at: DueAt = None,
    to: To = None,
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Move a message that waits in the store, or leave a mark for the delay consumer.

    A --delay counts from the clock by which it will be released: SQS's, or with --to the store's.
    Exit code 1 if it is being released, 3 if it was not in the store and was only marked.
    """
    name, book = Endpoint.parse(endpoint).name, opened_ledger(ledger)
    with opened_store(name, store, table, schema) as opened:
        clock = DueClock(endpoint, opened, store, to)
        due_ms = new_due_ms(delay, due_at, now_ms=clock.latest_ms)
        now_ms = latest_ms(endpoint) if to is None else clock.latest_ms()
        schedule = Schedule(opened, endpoint=name, ledger=book)
        change = schedule.reschedule(message_id, due_ms, now_ms=now_ms)
    _tell({message_id: change}, f"moved to {utc(due_ms).isoformat()}", as_json=as_json)


def latest_ms(endpoint: str) -> int:
    """The latest that SQS's clock may read: a mark is of what was sent by then.

    Where SQS cannot be asked it is the machine's clock: messages in the store need no more.
    """
    from botocore.exceptions import BotoCoreError

    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.queues import SqsQueues

    try:
        queues = SqsQueues(default_client(connections=1))
        try:
            queues.synchronise(Endpoint.parse(endpoint).queue)
        except SqsDelayError:
            # A refusal is dated, too.
            if not queues.broker_clock.synchronised:
                raise
        return queues.broker_clock.latest_ms()
    except (SqsDelayError, BotoCoreError) as error:
        err.print(
            f"by this machine's clock, for SQS's could not be asked: {error}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return SystemClock().now_ms()


def _tell(changes: dict[str, Change], done: str, *, as_json: bool) -> None:
    for message_id, change in changes.items():
        if as_json:
            print_json({"message_id": message_id, "change": change})
            continue
        told = _TOLD[change].format(done=done)
        out.print(f"{message_id}  {told}", highlight=False, markup=False, soft_wrap=True)
    if Change.RELEASED in changes.values():
        raise typer.Exit(1)
    if Change.MARKED in changes.values():
        raise typer.Exit(EXIT_MARKED)
