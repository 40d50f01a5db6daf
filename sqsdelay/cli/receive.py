"""``sqsdelay receive``: watch messages arrive at an endpoint."""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsdelay.cli.console import err, out, print_json
from sqsdelay.cli.options import JsonLines, LedgerFile, opened_ledger
from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Attribute, text_of
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.wire import MESSAGE_ID
from sqsdelay.errors import SqsDelayError
from sqsdelay.ledger.events import record_safely
from sqsdelay.ledger.receipts import lateness_ms, received_events, waited_ms
from sqsdelay.limits import MAX_BATCH_ENTRIES, MAX_RECEIVE_WAIT_SECONDS

if TYPE_CHECKING:
    from sqsdelay.s3 import BodyReader


def receive(
    endpoint: Annotated[str, typer.Argument(help="The queue's name, URL or ARN.")],
    count: Annotated[
        int, typer.Option(min=0, help="Stop after this many messages; 0: no limit.")
    ] = 0,
    idle: Annotated[
        int, typer.Option(min=0, help="Stop after this many seconds without a message; 0: never.")
    ] = 0,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Do not delete the messages (they will be received again)."),
    ] = False,
    bucket: Annotated[
        str | None,
        typer.Option(help="Read large bodies from this S3 bucket (the sender's)."),
    ] = None,
    ledger: LedgerFile = None,
    as_json: JsonLines = False,
) -> None:
    """Print messages as they arrive, how late they were and how long they waited, and delete them.

    Lateness ends when the destination queue shows the message; what it then waited there for its
    receiver stands beside it. Both are known only for relayed messages, which carry their due time. A
    message sent with a delay of 900 s or less is a plain SQS message and shows "-".

    Exit code 1 if a large body could not be read; that message is not deleted.
    """
    from sqsdelay.s3 import BodyReader
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.queues import SqsQueues

    parsed, book = Endpoint.parse(endpoint), opened_ledger(ledger)
    queues = SqsQueues(default_client(connections=1, wait_seconds=MAX_RECEIVE_WAIT_SECONDS))
    url = queues.url(parsed.queue)
    reader = None if bucket is None else BodyReader(bucket)
    received = unread = 0
    last = time.monotonic()
    while not (count and received >= count) and not (idle and time.monotonic() - last > idle):
        wait = min(idle, MAX_RECEIVE_WAIT_SECONDS) if idle else MAX_RECEIVE_WAIT_SECONDS
        most = min(count - received, MAX_BATCH_ENTRIES) if count else MAX_BATCH_ENTRIES
        copies = queues.receive_batch(url, wait_seconds=wait, limit=most)
        if book is not None:
            now_ms = queues.broker_clock.now_ms()
            record_safely(book, received_events(parsed.name, copies, now_ms=now_ms))
        whole = [copy for copy in copies if _show(copy, reader, fifo=parsed.fifo, as_json=as_json)]
        unread += len(copies) - len(whole)
        if copies:
            received += len(copies)
            last = time.monotonic()
            if whole and not keep:
                queues.delete_batch(url, whole)
    if unread:
        raise typer.Exit(1)


def _show(copy: ReceivedMessage, reader: BodyReader | None, *, fifo: bool, as_json: bool) -> bool:
    """Print a message; False if its body could not be read."""
    try:
        body = copy.body if reader is None else reader.read(copy.body, copy.attributes)
    except SqsDelayError as error:
        err.print(f"{copy.message_id}: {error}", highlight=False, markup=False, soft_wrap=True)
        return False
    _print(replace(copy, body=body), fifo=fifo, as_json=as_json)
    return True


def _print(copy: ReceivedMessage, *, fifo: bool, as_json: bool) -> None:
    late, waited = lateness_ms(copy, fifo=fifo), waited_ms(copy, fifo=fifo)
    sent_id = text_of(copy.attributes, MESSAGE_ID) or copy.sqs_message_id
    arrived = None if copy.first_receive_ms is None else utc(copy.first_receive_ms)
    if as_json:
        print_json(
            {
                "message_id": sent_id,
                "arrived": None if arrived is None else arrived.isoformat(timespec="milliseconds"),
                "late_ms": late,
                "waited_ms": waited,
                "body": copy.body,
                "attributes": {name: _plain(value) for name, value in copy.attributes.items()},
            }
        )
        return
    shown = "-" if late is None else f"{late / 1000:+.3f} s"
    lay = "" if waited is None else f"waited {waited / 1000:.3f} s"
    at = "-" if arrived is None else f"{arrived:%H:%M:%S.%f}"
    body = copy.body if len(copy.body) <= 60 else f"{copy.body[:57]}…"
    out.print(f"{at:15}  {shown:>10}  {lay:>16}  {sent_id}  {body}", highlight=False, markup=False)


def _plain(attribute: Attribute) -> dict[str, Any]:
    if "BinaryValue" in attribute:
        return {**attribute, "BinaryValue": base64.b64encode(attribute["BinaryValue"]).decode()}
    return dict(attribute)
