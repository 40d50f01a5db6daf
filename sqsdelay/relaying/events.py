"""What sender, consumer and dispatcher did, as events of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage, size_of
from sqsdelay.core.route import Route
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidEndpoint
from sqsdelay.ledger.events import Event, EventKind, Source
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.ports.queues import Failure, Released, SendReceipt

if TYPE_CHECKING:
    from sqsdelay.relaying.mover import Outcome
    from sqsdelay.sending.router import ToQueue

_SETTLED: Final = {
    "handed-over": EventKind.HANDED_OVER,
    "delivered": EventKind.HANDED_OVER,
    "requeued": EventKind.HOP,
    "parked": EventKind.PARKED,
    "cancelled": EventKind.CANCELLED,
    "rejected": EventKind.REJECTED,
}
"""By a copy's status; one that failed is received again, and nothing befell it."""


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


def settled_copies(
    endpoint: str,
    outcomes: Sequence[tuple[Outcome, OutgoingMessage | None]],
    *,
    at_ms: int,
    batch: int | None,
    receive_batch: int,
    to_due_queue: bool = False,
) -> Iterator[Event]:
    """Copies that a consumer settled with one request, or with none where there is no message.

    Args:
        batch: messages in that request.
        receive_batch: copies received together.
        to_due_queue: a hand-over goes to a FIFO endpoint's due queue, which is not the last step.
    """
    for outcome, entry in outcomes:
        kind = _SETTLED.get(outcome.status)
        if kind is None:
            continue
        waits_on = to_due_queue and kind is EventKind.HANDED_OVER
        yield Event(
            kind=EventKind.HOP if waits_on else kind,
            at_ms=at_ms,
            endpoint=endpoint,
            message_id=outcome.copy.message_id,
            source=Source.CONSUMER,
            due_ms=outcome.due_ms,
            size=None if entry is None else entry.size,
            batch=batch,
            receive_batch=receive_batch,
            timer_seconds=outcome.delay_seconds,
            late_ms=None if waits_on else outcome.late_ms,
            reason=outcome.error,
        )


def released(
    messages: Iterable[tuple[StoredMessage, Released | None]], *, at_ms: int
) -> Iterator[Event]:
    """Messages that left their store for their destination."""
    for message, how in messages:
        late_ms = at_ms - message.due_ms
        if how is not None:
            late_ms += 1000 * how.timer_seconds
        yield Event(
            kind=EventKind.RELEASED,
            at_ms=at_ms,
            endpoint=_endpoint_name(message.destination),
            message_id=message.message_id,
            source=Source.DISPATCHER,
            due_ms=message.due_ms,
            batch=None if how is None else how.batch,
            timer_seconds=None if how is None else how.timer_seconds,
            # Ahead of its due time it has a message timer, which this outbox does not tell.
            late_ms=None if how is None and late_ms < 0 else late_ms,
        )


def rejected(messages: Iterable[tuple[StoredMessage, str]], *, at_ms: int) -> Iterator[Event]:
    """Messages that left their store for the error queue, and why."""
    for message, reason in messages:
        yield Event(
            kind=EventKind.REJECTED,
            at_ms=at_ms,
            # A row that is no message may lack either, and an event without them cannot be read back.
            endpoint=_endpoint_name(message.destination) or "-",
            message_id=message.message_id or "-",
            source=Source.DISPATCHER,
            due_ms=message.due_ms if 0 <= message.due_ms <= MAX_DUE_MS else None,
            reason=reason,
        )


def changed(
    endpoint: str, message_id: str, *, at_ms: int, due_ms: int | None = None
) -> Iterator[Event]:
    """A message that waits in a store was moved to ``due_ms``, or cancelled without one."""
    yield Event(
        kind=EventKind.CANCELLED if due_ms is None else EventKind.RESCHEDULED,
        at_ms=at_ms,
        endpoint=endpoint,
        message_id=message_id,
        source=Source.SENDER,
        due_ms=due_ms,
    )


@lru_cache
def _endpoint_name(destination: str) -> str:
    """The endpoint of a stored message's destination; a queue that is not SQS's is its own name."""
    try:
        return Endpoint.parse(destination).name
    except InvalidEndpoint:
        return destination
