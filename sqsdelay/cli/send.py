"""``sqsdelay send``: one message of the options, or a file of JSON lines with `Message`'s field names."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Option

from sqsdelay import errors
from sqsdelay.cli import options
from sqsdelay.cli.console import err, print_json, show, tell
from sqsdelay.core.delay import utc
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS, MAX_MESSAGE_BYTES
from sqsdelay.core.message import Message, Route, check_trace_header, size_of
from sqsdelay.core.readable import attribute_of, attributes_of_texts, parse_delay, parse_due_at
from sqsdelay.core.stored_message import StoredMessage, to_store
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, Parking, check
from sqsdelay.sending.sender import SendResult
from sqsdelay.sending.sizes import SizeLimits

if TYPE_CHECKING:
    from sqsdelay.ports.stores import ParkingPlace

Send = Callable[[Sequence[Message]], list[SendResult]]
Times = Mapping[str, Any]
"""A delay or a due time, as a `Message` takes them."""
CHUNK: Final = 2_000
"""Lines sent with one `send_many`: enough for full batches, small enough for a moving bar."""
ONLY_HOPS = {"hop", "max_delay", "bucket", "park_after", "ledger"}
"""What says how messages hop: --store-only refuses it, and takes --to alone."""


def send(
    context: typer.Context,
    endpoint: options.EndpointName,
    delay: options.DelayOption = None,
    due_at: options.DueAt = None,
    body: options.Body = None,
    file: options.MessagesFile = None,
    message_id: Annotated[
        str | None, Option(help="Message id (with --body), for deduplication by receivers.")
    ] = None,
    group: options.Group = None,
    attribute: options.Attributes = None,
    hop: options.Hop = DEFAULT_HOP_SECONDS,
    max_delay: options.MaxDelay = options.DEFAULT_MAX_DELAY,
    bucket: Annotated[str | None, Option(help="S3 bucket for bodies too large for SQS.")] = None,
    # No variable: one that is set for `pending` or `consume` must not change where messages wait.
    store: Annotated[
        str | None, Option(help=f"Park messages due far ahead in this store: {options.PLACES}")
    ] = None,
    park_after: options.ParkAfter = DEFAULT_PARK_AFTER_SECONDS,
    store_only: Annotated[
        bool,
        Option("--store-only", help="Put all into --store or SQSDELAY_STORE, for a dispatcher."),
    ] = False,
    to: options.ReleasedTo = None,
    ledger: options.LedgerFile = None,
    as_json: options.JsonLines = False,
) -> None:
    """Send one message or a file of messages with any delay. Exit code 1 if any was not sent.

    In a --file, --delay and --due-at are for lines that have neither. With --store-only, --delay counts from
    SQS's clock, or with --to from the store's.
    """
    from sqsdelay.s3 import Bucket
    from sqsdelay.sqs.sender import DelaySender

    if (body is None) == (file is None):
        raise typer.BadParameter("give either --body or --file")
    if delay is not None and due_at is not None:
        raise typer.BadParameter("give either --delay or --due-at, not both")
    if file is not None and (message_id is not None or group is not None or attribute):
        raise typer.BadParameter(
            "--message-id, --group and --attribute require --body; in a file, use the fields "
            '"message_id", "message_group_id" and "attributes"'
        )
    times = options.times(delay, due_at)
    for name in ONLY_HOPS if store_only else {"to"}:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            rule = "not allowed with" if store_only else "requires"
            raise typer.BadParameter(f"--{name.replace('_', '-')} {rule} --store-only")
    if store_only:
        store = store or os.environ.get("SQSDELAY_STORE")
    target = options.Target(endpoint, store, to)
    with target.optional_place() as place:
        if place is not None:
            with suppress(errors.StoreUnavailable):  # What is due soon needs none.
                check(place)
        if store_only:
            if place is None:
                raise typer.BadParameter("--store-only requires --store or SQSDELAY_STORE")
            sending = _into(target, endpoint, place)
        else:
            sender = DelaySender(
                hop_seconds=hop,
                max_delay_seconds=max_delay,
                large_bodies=None if bucket is None else Bucket(bucket),
                store=place,
                park_after_seconds=park_after,
                ledger=options.opened_ledger(ledger),
            )
            sending = partial(sender.send_many, endpoint)
        if body is not None:
            message = Message(
                body,
                **times,
                message_id=message_id,
                message_group_id=group,
                attributes=attributes_of_texts(attribute or ()),
            )
            (result,) = sending([message])
            if result.error is not None:
                raise result.error
            line = f"{result.message_id}  {result.route}  due {_due(result)}"
            show(_record(result), line, as_json=as_json)
        elif file is not None:
            with opened_lines(file) as lines:
                failed = _send_file(sending, lines, times, as_json=as_json)
            if failed:
                raise typer.Exit(1)


def _into(target: options.Target, endpoint: str, place: ParkingPlace) -> Send:
    """Puts messages into a store, whatever their delay."""
    parking, limits = Parking(place, after_seconds=DEFAULT_PARK_AFTER_SECONDS), None
    if target.to is None:
        from sqsdelay.sqs.client import default_client
        from sqsdelay.sqs.queues import SqsQueues

        with suppress(errors.ConfigurationError):  # No SQS to ask, which storing does not need.
            limits = SizeLimits(SqsQueues(default_client(connections=1, attempts=1)))

    def checked(message: Message) -> StoredMessage | errors.SqsDelayError:
        """What is to be stored. A message that no queue takes is found out now, while a person still
        knows it, and not when it is due."""
        try:
            # A due time needs no clock, and so neither SQS nor its region and credentials.
            now_ms = target.delay_counts_from(place) if message.due_at is None else 0
            stored = to_store(message, endpoint, now_ms=now_ms)
            if limits is not None:
                own = size_of(message.body, stored.attributes)
                for queue in {target.endpoint.hand_over_queue, target.endpoint.queue}:
                    limits.check(queue, own)
            return stored
        except (errors.InvalidDelay, errors.InvalidMessage) as error:
            return error

    def store(messages: Sequence[Message]) -> list[SendResult]:
        kept = [checked(message) for message in messages]
        outcomes = iter(parking.park([e for e in kept if isinstance(e, StoredMessage)]))
        results = []
        for each in kept:
            if isinstance(each, errors.SqsDelayError):
                results.append(SendResult(error=each))
            elif isinstance(outcome := next(outcomes), errors.SqsDelayError):
                results.append(SendResult(error=outcome))
            else:
                results.append(SendResult(each.message_id, Route.STORE, utc(each.due_ms)))
        return results

    return store


def _send_file(send: Send, lines: IO[str], times: Times, *, as_json: bool) -> int:
    """Send chunk by chunk and tell how far it is; returns how many messages were not sent."""
    sent = failed = 0
    with err.status("sending") as told:
        found = read_messages(lines, times)
        while chunk := list(islice(found, CHUNK)):
            results = iter(send([each for _, each in chunk if isinstance(each, Message)]))
            for number, each in chunk:
                result = next(results) if isinstance(each, Message) else SendResult(error=each)
                if result.error is None:
                    sent += 1
                else:
                    failed += 1
                    tell(f"line {number}: {result.error}")
                if as_json:
                    print_json({"line": number, **_record(result)})
            told.update(f"sending: {sent + failed:,}")
    tell(f"{sent} sent, {failed} not sent")
    return failed


def _due(result: SendResult) -> str | None:
    return None if result.due is None else result.due.isoformat(timespec="milliseconds")


def _record(result: SendResult) -> dict[str, Any]:
    names = ("message_id", "route", "sqs_message_id")
    error = None if result.error is None else str(result.error)
    return {name: getattr(result, name) for name in names} | {"due": _due(result), "error": error}


FIELDS: Final = {"body_repeat", *(field.name for field in fields(Message))}


def opened_lines(file: Path) -> IO[str]:
    """The file's lines, or stdin's for "-"; bytes that are not UTF-8 spoil their own line only."""
    if str(file) == "-":
        return open(sys.stdin.fileno(), encoding="utf-8", errors="surrogateescape", closefd=False)
    try:
        return file.open(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise typer.BadParameter(f"--file {file}: {error.strerror}") from error


def read_messages(
    lines: Iterable[str], times: Times
) -> Iterator[tuple[int, Message | errors.SqsDelayError]]:
    """A file's lines by number, from 1: each a message, or why it is none. Blank lines are passed over.
    ``times`` is for lines that name neither delay nor due time."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, read_message(line, times)
        except errors.SqsDelayError as error:
            yield number, error


def read_message(line: str, times: Times) -> Message:
    """One line's message."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise errors.InvalidMessage(f"not JSON: {error}") from error
    if not isinstance(given, dict) or "body" not in given:
        raise errors.InvalidMessage('not a JSON object with a "body"')
    if unknown := sorted(set(given) - FIELDS):
        raise errors.InvalidMessage(
            f"unknown field {unknown[0]!r}; use only {', '.join(sorted(FIELDS))}"
        )
    body = _body(given.pop("body"), given.pop("body_repeat", 1))
    attributes = given.pop("attributes", {})
    if not isinstance(attributes, dict):
        raise errors.InvalidMessage(f"attributes {attributes!r} is not a JSON object")
    own: dict[str, Any] = {n: given.pop(n) for n in ("delay", "due_at") if given.get(n) is not None}
    texts = {n: each if isinstance(each, str) else json.dumps(each) for n, each in own.items()}
    if type(own.get("delay", 0)) not in (int, float):
        own["delay"] = parse_delay(texts["delay"])
    if "due_at" in own:
        own["due_at"] = parse_due_at(texts["due_at"])
    given |= own or times
    check_trace_header(given.get("trace_header"))
    found = {name: attribute_of(name, value) for name, value in attributes.items()}
    # The others are checked by the sender.
    return Message(body, attributes=found, **given)


def _body(body: Any, repeat: Any) -> str:
    """The body; ``body_repeat`` keeps a file of large bodies small."""
    if not isinstance(body, str):
        try:
            body = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        except RecursionError as error:
            raise errors.InvalidMessage(
                "body is nested too deeply; send it as a JSON string"
            ) from error
    whole = isinstance(repeat, int) and not isinstance(repeat, bool)
    if not whole or not 1 <= repeat <= MAX_MESSAGE_BYTES:
        shown = str(repeat)[:20]
        raise errors.InvalidMessage(
            f"body_repeat={shown}; use a whole number, 1 to {MAX_MESSAGE_BYTES}"
        )
    if repeat > 1 and (size := len(body) * repeat) > MAX_MESSAGE_BYTES:
        made = f"body_repeat={repeat} makes a body of {size} characters"
        raise errors.InvalidMessage(f"{made}; the limit is {MAX_MESSAGE_BYTES} bytes")
    return str(body * repeat)
