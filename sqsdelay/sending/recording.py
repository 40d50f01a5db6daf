"""What a sender did, as events of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sqsdelay.core.message import Route, size_of
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.ledger.events import Event, EventKind, Source
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sending.router import ToQueue


def sent_to_queue(
    endpoint: str,
    batch: Sequence[ToQueue],
    outcomes: Sequence[SendReceipt | Failure],
    *,
    at_ms: int,
) -> Iterator[Event]:
    """The messages of one request; those that SQS did not take were not sent."""
    for prepared, outcome in zip(batch, outcomes, strict=True):
        if isinstance(outcome, Failure):
            continue
        yield Event(
            kind=EventKind.SENT,
            at_ms=at_ms,
            endpoint=endpoint,
            message_id=prepared.message_id or outcome.sqs_message_id,
            source=Source.SENDER,
            due_ms=prepared.due_ms,
            size=prepared.entry.size,
            batch=len(batch),
            route=prepared.route,
            timer_seconds=prepared.entry.delay_seconds,
            sqs_message_id=outcome.sqs_message_id,
        )


def sent_to_store(endpoint: str, stored: Iterable[StoredMessage], *, at_ms: int) -> Iterator[Event]:
    """Messages that the sender parked at once; no request of a queue was needed."""
    for message in stored:
        yield Event(
            kind=EventKind.SENT,
            at_ms=at_ms,
            endpoint=endpoint,
            message_id=message.message_id,
            source=Source.SENDER,
            due_ms=message.due_ms,
            size=len(message.body) + size_of("", message.attributes),
            route=Route.STORE,
        )
