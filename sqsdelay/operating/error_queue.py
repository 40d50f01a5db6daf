"""An endpoint's error queue, for its operator: look at what is in it, and retry it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, overload

from sqsdelay.core import outgoing
from sqsdelay.core.delay import Reject, seconds_until
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.limits import MAX_BATCH_ENTRIES, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.message import OutgoingMessage, full_batches
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage, misdirected
from sqsdelay.core.rejection import Rejection, read_rejection
from sqsdelay.errors import InvalidMessage, SqsDelayError
from sqsdelay.ports.queues import Failure, Queues, SendReceipt

T = TypeVar("T")

HOLD_SECONDS: Final = 120
"""How long a received message stays hidden if the process dies before releasing it."""
NO_REASON: Final = "(did not fit on the message; see the delay consumer's log)"
"""What people read where a message left no room for its reason."""
_WAIT_SECONDS: Final = 1
"""A long poll asks all of SQS's servers; a short one may miss messages that are there."""


class RetryStatus(StrEnum):
    """What became of a message in the error queue."""

    SENT = "sent"
    """Its next home has confirmed it, and it is deleted from the error queue."""
    WOULD_SEND = "would-send"
    """As `SENT`, if this were no dry run."""
    LEFT = "left"
    """Still in the error queue; ``error`` says why."""
    NOT_DELETED = "not-deleted"
    """Sent, but still in the error queue: another retry would send it twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """One message's retry: where it went (or would go), when it is due there, or why it was left."""

    rejection: Rejection
    status: RetryStatus
    queue: str | None = None
    due_ms: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """One message's removal from the error queue; ``error`` says why it is still there."""

    rejection: Rejection
    error: str | None = None


class _Way(NamedTuple):
    """A message's retry as it would be, and the send that it takes."""

    would: Retry
    target: QueueRef
    entry: OutgoingMessage

    def ended(self, status: RetryStatus, failure: Failure | None = None) -> Retry:
        error = None if failure is None else str(failure.error)
        return replace(self.would, status=status, error=error)


class ErrorQueue:
    """What could not be delivered to an endpoint. SQS shows a message only to a receiver. So both methods
    receive: receive counts grow, and while they work nobody else sees the messages. What is not sent on is
    visible again at the end, or two minutes after the process has died."""

    def __init__(self, queues: Queues, endpoint: Endpoint) -> None:
        self._queues, self._endpoint = queues, endpoint

    @overload
    def look(self, limit: int) -> list[Rejection]: ...
    @overload
    def look(self, limit: int, keep: Callable[[Rejection], T]) -> list[T]: ...
    def look(self, limit: int, keep: Callable[[Rejection], Any] | None = None) -> list[Any]:
        """Up to ``limit`` messages, as SQS hands them out, oldest rejection first.

        Args:
            keep: what to keep of each; all of it when left out, which may be 1 MiB.

        Raises:
            QueueMissing, QueueUnavailable
        """
        with _Held(self._queues, self._endpoint.error_queue) as held:
            found = [
                (each.copy.sent_ms or 0, keep(each) if keep else each)
                for batch in held.batches(limit)
                for each in batch
            ]
        return [kept for _, kept in sorted(found, key=lambda each: each[0])]

    def retry(
        self,
        message_ids: Collection[str] | None = None,
        *,
        where: Callable[[Rejection], bool] | None = None,
        due_ms: int | None = None,
        dry_run: bool = False,
    ) -> Iterator[Retry]:
        """Send messages on: to their destination, or to the delay queue if they are due later.

        Each keeps its message id, its due time and all it was sent with, and is deleted from the
        error queue only after its next home has confirmed it. An error queue that is written to
        meanwhile may end with messages in it that were not retried.

        Args:
            message_ids: which; all when left out. Ends when each was found once.
            where: of these, only those for which it is True.
            due_ms: when those are due that do not say so themselves, epoch milliseconds.
            dry_run: send nothing, and say what would be.

        Raises:
            QueueMissing, QueueUnavailable: the error queue cannot be read, or the broker's time
                cannot be learned; what was answered until then has happened.
        """
        clock = self._queues.broker_clock
        with _Held(self._queues, self._endpoint.error_queue) as held:
            for wanted in held.wanted(message_ids, where):
                if not clock.synchronised:
                    self._queues.synchronise(self._endpoint.error_queue)
                yield from self._retry(wanted, held, due_ms=due_ms, dry_run=dry_run)

    def discard(
        self,
        message_ids: Collection[str] | None = None,
        *,
        where: Callable[[Rejection], bool] | None = None,
    ) -> Iterator[Discard]:
        """Delete messages for good; there is no other copy. ``message_ids``: which; all when left out. Ends
        when each was found once. ``where``: of these, only those for which it is True. Raises QueueMissing,
        QueueUnavailable: the error queue cannot be read; what was answered until then has happened."""
        with _Held(self._queues, self._endpoint.error_queue) as held:
            for wanted in held.wanted(message_ids, where):
                failures = held.delete([rejection.copy for rejection in wanted])
                # A batch whole: who stops reading in between knows of each that is gone.
                yield from [
                    Discard(rejection=each, error=None if failed is None else str(failed.error))
                    for each, failed in zip(wanted, failures, strict=True)
                ]

    def _retry(
        self, wanted: Sequence[Rejection], held: _Held, *, due_ms: int | None, dry_run: bool
    ) -> list[Retry]:
        """All of a batch at once: a caller that stops reading in between leaves nothing half done."""
        done, ways = list[Retry](), list[_Way]()
        for each in wanted:
            try:
                ways.append(self._way(each, due_ms))
            except SqsDelayError as error:
                done.append(Retry(rejection=each, status=RetryStatus.LEFT, error=str(error)))
        if dry_run:
            return done + [way.would for way in ways]
        for batch in full_batches(ways, target=lambda w: w.target, size=lambda w: w.entry.size):
            done += self._send(batch, held)
        return done

    def _way(self, rejection: Rejection, due_ms: int | None) -> _Way:
        """Where a message goes from here. Raises why it cannot: rejecting it again would be pointless."""
        self._check(rejection)
        due = rejection.due
        if isinstance(due, Reject):
            if due_ms is None:
                told = f"its due time is unknown: {due.reason}; give it with --due-at"
                raise InvalidMessage(told)
            due = due_ms
        message = DelayedMessage(rejection.message_id, due)
        original, of = rejection.original, self._endpoint
        seconds = seconds_until(due, self._queues.broker_clock.now_ms())
        if seconds <= MAX_MESSAGE_TIMER_SECONDS:
            target = of.hand_over_queue
            entry = outgoing.handed_over(original, message, of, delay_seconds=seconds)
        else:
            target, again, first_ms = of.delay_queue, rejection.requeueable, original.first_sent_ms
            entry = outgoing.requeued(again, message, seconds, first_sent_ms=first_ms)
        would, name = RetryStatus.WOULD_SEND, target.name
        return _Way(Retry(rejection=rejection, status=would, queue=name, due_ms=due), target, entry)

    def _check(self, rejection: Rejection) -> None:
        if (encoding := rejection.body_encoding) is not None:
            raise InvalidMessage(f"SQS cannot carry its body ({encoding}); handle it by hand")
        if rejection.original.unreadable is not None:
            raise InvalidMessage(f"{rejection.original.unreadable}; handle it by hand")
        if (destination := rejection.destination) is not None:
            ours = self._queues.url(self._endpoint.queue)
            if self._queues.url(Endpoint.parse(destination).queue) != ours:
                raise InvalidMessage(f"its destination is {destination}, not {self._endpoint.name}")
        if (refused := misdirected(rejection.original, self._endpoint)) is not None:
            raise InvalidMessage(refused.reason)

    def _send(self, ways: Sequence[_Way], held: _Held) -> list[Retry]:
        outcomes: Sequence[SendReceipt | Failure]
        try:
            send = partial(self._queues.send_batch, self._queues.url(ways[0].target))
            outcomes = outgoing.send_fitting(send, [way.entry for way in ways])
        except SqsDelayError as error:
            outcomes = [Failure(type(error).__name__, error, transient=True)] * len(ways)
        answered = list(zip(ways, outcomes, strict=True))
        done = [w.ended(RetryStatus.LEFT, no) for w, no in answered if isinstance(no, Failure)]
        sent = [way for way, outcome in answered if not isinstance(outcome, Failure)]
        failures = held.delete([way.would.rejection.copy for way in sent])
        for way, failed in zip(sent, failures, strict=True):
            done.append(way.ended(RetryStatus.NOT_DELETED if failed else RetryStatus.SENT, failed))
        return done


class _Held:
    """Messages received from a queue and kept hidden until the context ends."""

    def __init__(self, queues: Queues, queue: QueueRef) -> None:
        self._queues, self._url = queues, queues.url(queue)
        self._held: dict[str, ReceivedMessage] = {}
        self._seen: set[str] = set()

    def wanted(
        self, message_ids: Collection[str] | None, where: Callable[[Rejection], bool] | None
    ) -> Iterator[list[Rejection]]:
        """Of each batch received, the messages asked for; until each id was found once."""
        missing = set(message_ids or ())
        for batch in self.batches():
            found = [
                each
                for each in batch
                if (message_ids is None or each.message_id in message_ids)
                and (where is None or where(each))
            ]
            yield found
            missing -= {each.message_id for each in found}
            if message_ids is not None and not missing:
                return

    def batches(self, limit: int | None = None) -> Iterator[list[Rejection]]:
        """Receive until nothing new arrives, or ``limit`` messages have been received."""
        again = 0
        # Those held for long come again, once each; behind them there may be others.
        while again <= len(self._held) and (limit is None or len(self._seen) < limit):
            most = MAX_BATCH_ENTRIES if limit is None else limit - len(self._seen)
            copies = self._queues.receive_batch(
                self._url, wait_seconds=_WAIT_SECONDS, limit=min(most, MAX_BATCH_ENTRIES)
            )
            if not copies:
                return
            new = [copy for copy in copies if copy.sqs_message_id not in self._seen]
            for copy in copies:
                # Without what it carries: there may be 100,000 of them, of 1 MiB each.
                self._held[copy.sqs_message_id] = replace(copy, body="", attributes={})
                self._seen.add(copy.sqs_message_id)
            self._queues.hide_batch(self._url, [(copy, HOLD_SECONDS) for copy in copies])
            again = 0 if new else again + len(copies)
            if new:
                yield list(map(read_rejection, new))

    def delete(self, copies: Sequence[ReceivedMessage]) -> list[Failure | None]:
        """Delete; None per message that is gone."""
        if not copies:
            return []
        failures = self._queues.delete_batch(self._url, copies)
        for copy, failure in zip(copies, failures, strict=True):
            if failure is None:
                self._held.pop(copy.sqs_message_id, None)
        return failures

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        entries = [(copy, 0) for copy in self._held.values()]
        for start in range(0, len(entries), MAX_BATCH_ENTRIES):
            # One that cannot be let go of is visible again when its time is up.
            self._queues.hide_batch(self._url, entries[start : start + MAX_BATCH_ENTRIES])
