"""For receivers: what they got, into the ledger, with how late it came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.delay import seconds_until
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.identity import was_due_ms
from sqsdelay.core.message import text_of
from sqsdelay.core.received_message import ReceivedMessage, from_boto3, from_lambda_event
from sqsdelay.core.wire import MESSAGE_ID
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely
from sqsdelay.limits import FIFO_SUFFIX


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
            ``MessageSystemAttributeNames=["ApproximateFirstReceiveTimestamp", "SentTimestamp"]``
            (or All): the id, the due time and the broker's times are in there. Without the latter
            lateness is not known.
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
            late_ms=lateness_ms(copy, fifo=endpoint.endswith(FIFO_SUFFIX)),
            enqueued_ms=copy.sent_ms,
            sqs_message_id=copy.sqs_message_id,
        )


def lateness_ms(copy: ReceivedMessage, *, fifo: bool = False) -> int | None:
    """How long after its due time the destination queue showed the message; None if it cannot be known.

    A message timer cannot be read from a copy: it ends at the first whole second after the due time.

    Args:
        fifo: the destination is a FIFO queue, which takes no message timers.
    """
    due_ms = was_due_ms(copy.attributes)
    if due_ms is None or copy.first_receive_ms is None or copy.sent_ms is None:
        return None
    timer_ms = 0 if fifo else 1000 * seconds_until(due_ms, copy.sent_ms)
    return min(copy.sent_ms + timer_ms, copy.first_receive_ms) - due_ms


def waited_ms(copy: ReceivedMessage, *, fifo: bool = False) -> int | None:
    """How long the message then lay in the destination queue until it was first received; None if it
    cannot be known."""
    late_ms, due_ms = lateness_ms(copy, fifo=fifo), was_due_ms(copy.attributes)
    if late_ms is None or due_ms is None or copy.first_receive_ms is None:
        return None
    return copy.first_receive_ms - due_ms - late_ms


def _read(endpoint: str, messages: Sequence[Mapping[str, Any]], clock: Clock) -> Iterator[Event]:
    copies = [
        from_lambda_event(message, received_at=clock.monotonic())
        if "receiptHandle" in message
        else from_boto3(message, received_at=clock.monotonic())
        for message in messages
    ]
    yield from received_events(Endpoint.parse(endpoint).name, copies, now_ms=clock.now_ms())
