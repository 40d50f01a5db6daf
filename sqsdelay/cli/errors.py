"""``sqsdelay errors list|retry ENDPOINT``: look at an error queue, and send its messages on."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer
from typer import Option

from sqsdelay.cli import options
from sqsdelay.cli.console import counted, out, say, show, show_rows, start_of, tell
from sqsdelay.core.delay import Reject
from sqsdelay.core.message import size_of
from sqsdelay.core.readable import instant
from sqsdelay.core.rejection import Rejection
from sqsdelay.operating.error_queue import NO_REASON, ErrorQueue, Retry, RetryStatus
from sqsdelay.operating.status import latest_of_sqs, naming_the_command

app = typer.Typer(
    cls=options.Commands, help="Inspect an endpoint's error queue and retry its messages."
)


@app.command("list")
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
    with naming_the_command(target.endpoint, target.endpoint.error_queue):
        records = ErrorQueue(target.queues, target.endpoint).look(
            limit, lambda each: _record(each, bodies=bodies, whole=as_json)
        )
    columns = ["message_id", "due", "rejected", "receives", "bytes", "reason", "body"]
    show_rows(records, columns if bodies else columns[:-1], as_json=as_json)
    if out.is_terminal and not as_json:
        say(f"{len(records)} shown of {target.endpoint.error_queue.name}")


@app.command()
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
    with naming_the_command(of, of.error_queue):
        if delay is not None or due_at is not None:
            # By a local clock that is behind, messages would be early.
            given = options.new_due_ms(
                delay, due_at, now_ms=lambda: latest_of_sqs(queues, of.error_queue)
            )
        for done in ErrorQueue(queues, of).retry(message_id or None, due_ms=given, dry_run=dry_run):
            counts[done.status] += 1
            missing.pop(done.rejection.message_id, None)
            _tell(done, as_json=as_json)
    for absent in missing:
        tell(f"{absent}  not found")
    tell(counted(counts) or "no messages")
    if missing or counts[RetryStatus.LEFT] or counts[RetryStatus.NOT_DELETED]:
        raise typer.Exit(1)


def _record(rejection: Rejection, *, bodies: bool, whole: bool) -> dict[str, Any]:
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


def _tell(done: Retry, *, as_json: bool) -> None:
    message_id = done.rejection.message_id
    due = None if done.due_ms is None else instant(done.due_ms)
    to = f" to {done.queue}, due {due}"
    line = f"{done.status}{to if done.error is None else f': {done.error}'}"
    record = {"status": done.status, "queue": done.queue, "due": due, "error": done.error}
    show({"message_id": message_id, **record}, f"{message_id}  {line}", as_json=as_json)
