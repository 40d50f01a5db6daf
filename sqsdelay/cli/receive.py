"""``sqsdelay receive``: watch messages arrive at an endpoint."""

from __future__ import annotations

import base64
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sqsdelay.cli.console import print_json, say, start_of, tell
from sqsdelay.cli.followed import let_go
from sqsdelay.cli.options import JsonLines, LedgerFile, Target, opened_ledger
from sqsdelay.core.delay import utc
from sqsdelay.core.limits import MAX_BATCH_ENTRIES, MAX_RECEIVE_WAIT_SECONDS
from sqsdelay.core.message import MESSAGE_ID, Attribute, text_of
from sqsdelay.core.readable import instant
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import ConfigurationError, SqsDelayError
from sqsdelay.ledger.events import record_safely
from sqsdelay.ledger.files import lateness_ms, received_events, waited_ms

if TYPE_CHECKING:
    from sqsdelay.s3 import BodyReader


def receive(
    endpoint: Annotated[str, Argument(help="The queue's name, URL or ARN.")],
    count: Annotated[int, Option(min=0, help="Stop after this many messages; 0: no limit.")] = 0,
    idle: Annotated[int, Option(min=0, help="Stop after so many idle seconds; 0: never.")] = 0,
    delete: Annotated[bool, Option("--delete", help="Delete each message once printed.")] = False,
    bucket: Annotated[str | None, Option(help="The sender's S3 bucket for large bodies.")] = None,
    ledger: LedgerFile = None,
    as_json: JsonLines = False,
) -> None:
    """Print messages as they arrive, and how late they were.

    They stay in the queue unless --delete is given.

    Lateness ends when the destination queue shows the message; its wait for the receiver is
    printed beside it. Both are known only for relayed messages, which carry their due time. A
    message sent with a delay of 900 s or less is a plain SQS message and shows "-".

    SQS shows messages only by receiving them: their receive counts grow, and other receivers do not see
    them until this command ends, or the queue's visibility timeout has passed.

    Exit code 1 if a large body could not be read (that message is not deleted), or a message could
    not be deleted.
    """
    from sqsdelay.s3 import BodyReader

    target = Target(endpoint, wait_seconds=MAX_RECEIVE_WAIT_SECONDS)
    book = opened_ledger(ledger)
    queues, queue = target.queues, target.endpoint.queue
    if delete and sys.stdout is None:
        raise ConfigurationError(
            "stdout is closed: messages would be deleted and never shown; open it, or leave out --delete"
        )
    reader = None if bucket is None else BodyReader(bucket)
    url, wait = queues.url(queue), min(idle or MAX_RECEIVE_WAIT_SECONDS, MAX_RECEIVE_WAIT_SECONDS)
    # One that is kept is seen again, and passed over then.
    seen, held = set[str](), dict[str, ReceivedMessage]()
    failed, last = 0, time.monotonic()
    try:
        while not (0 < count <= len(seen) or 0 < idle < time.monotonic() - last):
            most = min(count - len(seen), MAX_BATCH_ENTRIES) if count else MAX_BATCH_ENTRIES
            copies = queues.receive_batch(url, wait_seconds=wait, limit=most)
            held |= {copy.sqs_message_id: copy for copy in copies}
            new = [copy for copy in copies if copy.sqs_message_id not in seen]
            seen |= held.keys()
            if not new:
                continue
            last = time.monotonic()
            if book is not None:
                now_ms = queues.broker_clock.now_ms()
                record_safely(book, received_events(target.name, new, now_ms=now_ms))
            fifo = target.endpoint.fifo
            shown = [copy for copy in new if _show(copy, reader, fifo=fifo, as_json=as_json)]
            failed += len(new) - len(shown)
            wanted = shown if delete else []
            gone = queues.delete_batch(url, wanted) if wanted else []
            for copy, failure in zip(wanted, gone, strict=True):
                if failure is None:
                    held.pop(copy.sqs_message_id, None)
                else:
                    failed += 1
                    tell(f"{_sent_id(copy)}: not deleted: {failure.error}")
    finally:
        let_go(queues, queue, held.values())
    if failed:
        raise typer.Exit(1)


def _show(copy: ReceivedMessage, reader: BodyReader | None, *, fifo: bool, as_json: bool) -> bool:
    """Print a message; False if its body could not be read."""
    try:
        body = copy.body if reader is None else reader.read(copy.body, copy.attributes)
    except SqsDelayError as error:
        tell(f"{_sent_id(copy)}: {error}")
        return False
    late, waited = lateness_ms(copy, fifo=fifo), waited_ms(copy, fifo=fifo)
    arrived = copy.first_receive_ms
    if as_json:
        at = None if arrived is None else instant(arrived)
        attributes = {name: _plain(value) for name, value in copy.attributes.items()}
        told = {"message_id": _sent_id(copy), "arrived": at, "late_ms": late, "waited_ms": waited}
        print_json({**told, "body": body, "attributes": attributes})
        return True
    at = "-" if arrived is None else f"{utc(arrived):%H:%M:%S.%f}"[:-3]
    shown = "-" if late is None else f"{late / 1000:+.3f} s"
    lay = "" if waited is None else f"waited {waited / 1000:.3f} s"
    say(f"{at:12}  {shown:>10}  {lay:>16}  {_sent_id(copy)}  {start_of(body)}")
    return True


def _sent_id(copy: ReceivedMessage) -> str:
    return text_of(copy.attributes, MESSAGE_ID) or copy.sqs_message_id


def _plain(attribute: Attribute) -> dict[str, Any]:
    if "BinaryValue" in attribute:
        return {**attribute, "BinaryValue": base64.b64encode(attribute["BinaryValue"]).decode()}
    return dict(attribute)
