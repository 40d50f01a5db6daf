"""What a dispatcher did, as events of the ledger: at once, or when its transaction has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.destinations import SENT_BEFORE, Outcome
from sqsdelay.errors import InvalidEndpoint
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.ports.queues import Failure, Released


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


@lru_cache
def _endpoint_name(destination: str) -> str:
    """The endpoint of a stored message's destination; a queue that is not SQS's is its own name."""
    try:
        return Endpoint.parse(destination).name
    except InvalidEndpoint:
        return destination


class ReleaseRecorder:
    """Records what one dispatcher released and rejected.

    Args:
        ledger: where to; None records nothing.
        now_ms: the destination's now, epoch milliseconds.
        in_transaction: events wait for the end of `transaction`, which may undo what they tell.
            Otherwise they are recorded before the messages leave the store: a dispatcher that dies
            in between releases, and records, again.
    """

    def __init__(
        self, ledger: Ledger | None, *, now_ms: Callable[[], int], in_transaction: bool
    ) -> None:
        self._ledger = ledger
        self._now_ms = now_ms
        self._in_transaction = in_transaction
        self._waiting: list[Iterable[Event]] = []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Wraps a claim; waiting events are recorded if it ends without an error."""
        self._waiting.clear()
        yield
        if self._ledger is not None:
            record_safely(self._ledger, chain.from_iterable(self._waiting))

    def released(self, messages: Sequence[StoredMessage], outcomes: Sequence[Outcome]) -> None:
        """Outcomes of a claim; those that failed, and those recorded when they were sent, are left out."""
        if self._ledger is not None:
            sent = [
                (message, outcome)
                for message, outcome in zip(messages, outcomes, strict=True)
                if not isinstance(outcome, Failure) and outcome is not SENT_BEFORE
            ]
            self._record(released(sent, at_ms=self._now_ms()))

    def rejected(
        self, messages: Sequence[tuple[StoredMessage, str]], failures: Sequence[Failure | None]
    ) -> None:
        """The error queue was sent these; those that failed are left out."""
        if self._ledger is not None:
            sent = [
                message
                for message, failure in zip(messages, failures, strict=True)
                if failure is None
            ]
            self._record(rejected(sent, at_ms=self._now_ms()))

    def _record(self, events: Iterable[Event]) -> None:
        if self._in_transaction:
            self._waiting.append(events)
        elif self._ledger is not None:
            record_safely(self._ledger, events)
