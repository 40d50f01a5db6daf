"""What a delay consumer did, or a dispatcher that parks, as events of the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sqsdelay.core.message import OutgoingMessage
from sqsdelay.ledger.events import Event, EventKind, Source
from sqsdelay.relaying.outcome import Outcome, Status

_SETTLED: Final = {
    Status.HANDED_OVER: EventKind.HANDED_OVER,
    Status.DELIVERED: EventKind.HANDED_OVER,
    Status.REQUEUED: EventKind.HOP,
    Status.FORWARDED: EventKind.FORWARDED,
    Status.PARKED: EventKind.PARKED,
    Status.CANCELLED: EventKind.CANCELLED,
    Status.REJECTED: EventKind.REJECTED,
}
"""By a copy's status; one that failed is received again, and nothing befell it."""


def settled_copies(
    endpoint: str,
    outcomes: Sequence[tuple[Outcome, OutgoingMessage | None]],
    *,
    at_ms: int,
    batch: int | None,
    receive_batch: int | None,
    source: Source = Source.CONSUMER,
    to_due_queue: bool = False,
) -> Iterator[Event]:
    """Copies that were settled with one request, or with none where there is no message.

    Args:
        batch: messages in that request.
        receive_batch: copies received together; None of the parking queue, whose messages hold many.
        source: who settled them.
        to_due_queue: a hand-over goes to a FIFO endpoint's due queue, which is not the last step.
    """
    forwarded = sum(outcome.status is Status.FORWARDED for outcome, _ in outcomes)
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
            source=source,
            due_ms=outcome.due_ms,
            size=None if entry is None else entry.size,
            batch=forwarded if kind is EventKind.FORWARDED else batch,
            receive_batch=receive_batch,
            timer_seconds=outcome.delay_seconds,
            late_ms=None if waits_on else outcome.late_ms,
            reason=outcome.error,
        )
