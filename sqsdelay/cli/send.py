"""``sqsdelay send``: one message, or a file of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from sqsdelay.cli.console import err, print_json, show, tell
from sqsdelay.cli.message_file import (
    BadLine,
    Defaults,
    checked_input,
    given_attributes,
    opened_lines,
    read_messages,
)
from sqsdelay.cli.options import (
    DEFAULT_MAX_DELAY,
    PLACE_HELP,
    Attributes,
    Body,
    Delay,
    DueAt,
    EndpointName,
    Group,
    Hop,
    JsonLines,
    LedgerFile,
    MaxDelay,
    MessagesFile,
    ParkAfter,
    ReleasedTo,
    Target,
    max_delay_seconds,
    opened_ledger,
)
from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message, Route, size_of
from sqsdelay.core.stored_message import StoredMessage, to_store
from sqsdelay.errors import ConfigurationError, InvalidDelay, InvalidMessage, SqsDelayError
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, Parking
from sqsdelay.ports.queues import SizeLimits
from sqsdelay.sending.router import DEFAULT_CONCURRENCY
from sqsdelay.sending.sender import SendResult

if TYPE_CHECKING:
    from sqsdelay.ports.stores import ParkingPlace
    from sqsdelay.sqs.sender import DelaySender

CHUNK = 2_000
"""Lines sent with one `send_many`: enough for full batches, small enough for a moving bar."""


ONLY_HOPS = {"hop", "max_delay", "bucket", "concurrency", "park_after", "ledger"}
"""What says how messages hop: --store-only refuses it, and takes --to alone."""


def send(
    context: typer.Context,
    endpoint: EndpointName,
    delay: Delay = None,
    due_at: DueAt = None,
    body: Body = None,
    file: MessagesFile = None,
    message_id: Annotated[
        str | None, typer.Option(help="Message id (with --body), for deduplication by receivers.")
    ] = None,
    group: Group = None,
    attribute: Attributes = None,
    hop: Hop = DEFAULT_HOP_SECONDS,
    max_delay: MaxDelay = DEFAULT_MAX_DELAY,
    bucket: Annotated[
        str | None, typer.Option(help="S3 bucket for bodies too large for SQS.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Batches in flight.")] = DEFAULT_CONCURRENCY,
    # No variable: one that is set for `pending` or `consume` must not change where messages wait.
    store: Annotated[
        str | None, typer.Option(help=f"Park messages due far ahead in this store: {PLACE_HELP}")
    ] = None,
    park_after: ParkAfter = DEFAULT_PARK_AFTER_SECONDS,
    store_only: Annotated[
        bool,
        typer.Option(
            "--store-only",
            help="Put all messages into the store (--store or SQSDELAY_STORE), whatever their delay; a "
            "dispatcher sends them.",
        ),
    ] = False,
    to: ReleasedTo = None,
    ledger: LedgerFile = None,
    as_json: JsonLines = False,
) -> None:
    """Send one message or a file of messages with any delay. Exit code 1 if any was not sent.

    With --store-only, --delay counts from SQS's clock, or with --to from the store's.
    """
    from sqsdelay.s3 import Bucket
    from sqsdelay.sqs.sender import DelaySender

    defaults = checked_input(body, file, delay, due_at, message_id, group, attribute)
    for name in ONLY_HOPS if store_only else {"to"}:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            rule = "not allowed with" if store_only else "requires"
            raise typer.BadParameter(f"--{name.replace('_', '-')} {rule} --store-only")
    if store_only:
        store = store or os.environ.get("SQSDELAY_STORE")
    target = Target(endpoint, store, to)
    with target.optional_place() as place:
        sender: DelaySender | StoringSender
        if store_only and place is None:
            raise typer.BadParameter("--store-only requires --store or SQSDELAY_STORE")
        if store_only and place is not None:
            sender = StoringSender(target, place)
        else:
            sender = DelaySender(
                hop_seconds=hop,
                max_delay_seconds=max_delay_seconds(max_delay),
                concurrency=concurrency,
                large_bodies=None if bucket is None else Bucket(bucket),
                store=place,
                park_after_seconds=park_after,
                ledger=opened_ledger(ledger),
            )
        if body is not None:
            message = Message(
                body,
                delay=defaults.delay,
                due_at=defaults.due_at,
                message_id=message_id,
                message_group_id=group,
                attributes=given_attributes(attribute),
            )
            (result,) = sender.send_many(endpoint, [message])
            if result.error is not None:
                raise result.error
            line = f"{result.message_id}  {result.route}  due {_due(result)}"
            show(_as_json(None, result), line, as_json=as_json)
        elif file is not None:
            with opened_lines(file) as lines:
                failed = _send_file(sender, endpoint, lines, defaults, as_json=as_json)
            if failed:
                raise typer.Exit(1)


class StoringSender:
    """Puts messages into a store, whatever their delay."""

    def __init__(self, target: Target, place: ParkingPlace) -> None:
        self._target = target
        self._place = place
        self._parking = Parking(place, after_seconds=DEFAULT_PARK_AFTER_SECONDS)
        self._limits = None
        if target.to is None:
            from sqsdelay.sqs.client import default_client
            from sqsdelay.sqs.queues import SqsQueues

            with suppress(ConfigurationError):  # No SQS to ask, which storing does not need.
                self._limits = SizeLimits(SqsQueues(default_client(connections=1, attempts=1)))

    def send_many(self, endpoint: str, messages: Sequence[Message]) -> list[SendResult]:
        """Store them in one call; a result for each, in order."""
        checked = [self._checked(message, endpoint) for message in messages]
        good = [each for each in checked if isinstance(each, StoredMessage)]
        outcomes = iter(self._parking.park(good))
        results = []
        for each in checked:
            if isinstance(each, StoredMessage):
                outcome = next(outcomes)
                if isinstance(outcome, bool):
                    results.append(SendResult(each.message_id, Route.STORE, utc(each.due_ms)))
                    continue
                each = outcome
            results.append(SendResult(error=each))
        return results

    def _checked(self, message: Message, endpoint: str) -> StoredMessage | SqsDelayError:
        """What is to be stored. A message that no queue takes is found out now, while a person still
        knows it, and not when it is due."""
        try:
            # A due time needs no clock, and so neither SQS nor its region and credentials.
            now_ms = self._target.delay_counts_from(self._place) if message.due_at is None else 0
            stored = to_store(message, endpoint, now_ms=now_ms)
            if self._limits is not None:
                own, parsed = size_of(message.body, stored.attributes), Endpoint.parse(endpoint)
                for queue in {parsed.hand_over_queue, parsed.queue}:
                    self._limits.check(queue, own)
            return stored
        except (InvalidDelay, InvalidMessage) as error:
            return error


def _send_file(
    sender: DelaySender | StoringSender,
    endpoint: str,
    lines: IO[str],
    defaults: Defaults,
    *,
    as_json: bool,
) -> int:
    """Send chunk by chunk with a progress bar; returns how many messages were not sent."""
    sent = failed = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    off = not err.is_terminal  # Its last line break is not transient.
    with Progress(*columns, console=err, transient=True, disable=off) as progress:
        task = progress.add_task("sending", total=None)
        for chunk in _chunks(read_messages(lines, defaults)):
            for number, result in _send_chunk(sender, endpoint, chunk):
                if result.error is None:
                    sent += 1
                else:
                    failed += 1
                    tell(f"line {number}: {result.error}")
                if as_json:
                    print_json(_as_json(number, result))
            progress.update(task, completed=sent + failed)
    tell(f"{sent} sent, {failed} not sent")
    return failed


def _chunks(
    items: Iterable[tuple[int, Message | BadLine]],
) -> Iterator[list[tuple[int, Message | BadLine]]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _send_chunk(
    sender: DelaySender | StoringSender, endpoint: str, chunk: list[tuple[int, Message | BadLine]]
) -> Iterator[tuple[int, SendResult]]:
    good = [item for _, item in chunk if isinstance(item, Message)]
    results = iter(sender.send_many(endpoint, good))
    for number, item in chunk:
        if isinstance(item, BadLine):
            yield number, SendResult(error=item.error)
        else:
            yield number, next(results)


def _due(result: SendResult) -> str | None:
    return None if result.due is None else result.due.isoformat(timespec="milliseconds")


def _as_json(line: int | None, result: SendResult) -> dict[str, Any]:
    return {
        **({} if line is None else {"line": line}),
        "message_id": result.message_id,
        "route": result.route,
        "due": _due(result),
        "sqs_message_id": result.sqs_message_id,
        "error": None if result.error is None else str(result.error),
    }
