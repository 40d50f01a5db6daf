"""For receivers: what they got, into the ledger, with how late it came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.identity import was_due_ms
from sqsdelay.core.message import text_of
from sqsdelay.core.received_message import ReceivedMessage, from_boto3, from_lambda_event
from sqsdelay.core.wire import MESSAGE_ID
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely


def record_received(
    ledger: Ledger | None,
    endpoint: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    clock: Clock | None = None,
) -> None:
    """Record messages that a worker received from an endpoint's destination queue. Never raises.

    Args:
        ledger: None does nothing.
        endpoint: the queue's name, URL or ARN.
        messages: what one ``receive_message`` returned, or the records of one Lambda event. Receive
            with ``MessageAttributeNames=["sqsdelay.*"]`` (or All) and
            ``MessageSystemAttributeNames=["ApproximateFirstReceiveTimestamp"]`` (or All): the id,
            the due time and the broker's time are in there. Without the latter lateness is not told.
        clock: the local clock, for messages without the broker's time.
    """
    if ledger is not None and messages:
        record_safely(ledger, _read(endpoint, messages, clock or SystemClock()))


def received_events(
    endpoint: str, copies: Sequence[ReceivedMessage], *, now_ms: int
) -> Iterator[Event]:
    """The events of copies that were received together.

    Args:
        endpoint: the endpoint's name.
        now_ms: when a copy was received that does not bring the broker's time.
    """
    for copy in copies:
        yield Event(
            kind=EventKind.RECEIVED,
            at_ms=now_ms if copy.first_receive_ms is None else copy.first_receive_ms,
            endpoint=endpoint,
            message_id=text_of(copy.attributes, MESSAGE_ID) or copy.sqs_message_id,
            source=Source.RECEIVER,
            due_ms=was_due_ms(copy.attributes),
            batch=len(copies),
            late_ms=lateness_ms(copy),
            sqs_message_id=copy.sqs_message_id,
        )


def lateness_ms(copy: ReceivedMessage) -> int | None:
    """How long after its due time the broker first handed the message out; None if it has none."""
    due_ms = was_due_ms(copy.attributes)
    if due_ms is None or copy.first_receive_ms is None:
        return None
    return copy.first_receive_ms - due_ms


def _read(endpoint: str, messages: Sequence[Mapping[str, Any]], clock: Clock) -> Iterator[Event]:
    copies = [
        from_lambda_event(message, received_at=clock.monotonic())
        if "receiptHandle" in message
        else from_boto3(message, received_at=clock.monotonic())
        for message in messages
    ]
    yield from received_events(Endpoint.parse(endpoint).name, copies, now_ms=clock.now_ms())
