"""The walk of a received copy: what it says, where it goes, its send; once it has arrived, its deletion."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from sqsdelay import errors
from sqsdelay.core import outgoing
from sqsdelay.core import received_message as incoming
from sqsdelay.core.delay import Decision, HandOver, Park, Reject, decide, seconds_until, too_far
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.limits import MAX_BACKOFF_SECONDS, MAX_BATCH_ENTRIES
from sqsdelay.core.message import OutgoingMessage, full_batches
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage
from sqsdelay.core.rejection import rejected
from sqsdelay.core.stored_message import Amendment, StoredMessage, parked
from sqsdelay.ledger.events import Event, EventKind, Source, record_safely
from sqsdelay.parking.parking import Stores, Unread
from sqsdelay.ports.queues import DeliverySpan, Failure, Queues
from sqsdelay.relaying.outcomes import Outcome, RelaySettings, Status

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_SECONDS: Final = 5
_REMEMBERED_COPIES: Final = 10_000

_T = TypeVar("_T")

Held = Callable[[], bool]
"""Whether the consumer still holds its copies, and has time for one more call."""


def always_held() -> bool:
    """For a consumer without a time limit."""
    return True


@dataclass(slots=True)
class Move:
    """A send, and the outcomes of its copies once it is confirmed: of one, or of a group's."""

    target: QueueRef
    entry: OutgoingMessage
    settled: list[Outcome]


class Relay:
    """Moves delayed messages one hop on: back to the delay queue, to the endpoint, into the store, or
    to the error queue. The hop of its settings is the delay queue's actual delivery delay."""

    _of_groups = False
    """Whether what is served is the parking queue, whose messages hold many copies."""

    def __init__(
        self, queues: Queues, endpoint: Endpoint, settings: RelaySettings | None = None
    ) -> None:
        self._queues = queues
        self._endpoint = endpoint
        self._settings = settings or RelaySettings()
        parking = self._settings.parking
        self._parking = None if parking is None else Stores(parking).parking(endpoint.name)
        self._undeleted: OrderedDict[str, Outcome] = OrderedDict()
        self.hop_seconds = self._settings.hop_seconds
        self.source = endpoint.delay_queue

    @property
    def stored_at_once(self) -> int | None:
        """How many messages the store wants in one call; None without such a store."""
        return None if self._parking is None else self._parking.store.stored_at_once

    def process(
        self, copies: Sequence[ReceivedMessage], *, delete: bool = True, held: Held = always_held
    ) -> list[Outcome]:
        """Move a received batch on and settle it: an outcome per copy, in order. No message, whatever it
        holds, makes this raise. ``copies``: what one receive returned, from ``source``. ``delete``: False
        where the caller deletes settled copies itself (Lambda does). ``held``: asked before each send; on
        False, the copies not yet sent fail and are left alone: another consumer may have received them.
        Raises QueueMissing, QueueUnavailable: the queue cannot be found; SchemaMismatch: the store is of
        another version. Nothing was sent then."""
        source_url = self._queues.url(self.source)
        incoming.learn(self._queues.broker_clock, copies)
        # Sent before, only the delete had failed: sending again would duplicate it.
        known = [(copy, self._undeleted.get(_key(copy))) for copy in copies]
        decided = list(self._decide([copy for copy, sent in known if sent is None]))
        done = [each for each in decided if isinstance(each, Outcome)]
        self._record([(outcome, None) for outcome in done], len(copies))
        done += [replace(sent, copy=copy) for copy, sent in known if sent is not None]
        done += self._sent([each for each in decided if isinstance(each, Move)], len(copies), held)
        of = {id(outcome.copy): outcome for outcome in done}
        outcomes = [of[id(copy)] for copy in copies]
        failed = [outcome.copy for outcome in outcomes if not outcome.settled]
        # A group comes back after the visibility timeout.
        if failed and not self._of_groups and held():
            self._hide(source_url, failed)
        if delete:
            self._delete(source_url, [outcome for outcome in outcomes if outcome.settled])
        return outcomes

    def parks(self, copy: ReceivedMessage) -> bool:
        """Whether a copy is so far away that it is parked, unless an amendment says otherwise."""
        message = self._read(copy)
        try:
            return isinstance(message, DelayedMessage) and isinstance(
                self._next(message, self._broker_now()), Park
            )
        except errors.SqsDelayError:
            return False

    def _read(self, copy: ReceivedMessage) -> DelayedMessage | Reject:
        return incoming.misdirected(copy, self._endpoint) or incoming.read_delay(copy)

    def _next(self, message: DelayedMessage, now_ms: int) -> Decision:
        after, hop = self._parking.after_seconds if self._parking else None, self.hop_seconds
        return decide(message.due_ms, now_ms, hop_seconds=hop, park_after_seconds=after)

    def _broker_now(self) -> int:
        now_ms = self._queues.broker_clock.proven_ms()
        if now_ms is None:
            self._queues.synchronise(self.source)
            now_ms = self._queues.broker_clock.now_ms()
        return now_ms

    def _decide(self, copies: Sequence[ReceivedMessage]) -> Iterator[Move | Outcome]:
        """The move or the outcome of each copy, in sending order. One call for all copies reads amendments,
        one parks."""
        read = [(copy, self._read(copy)) for copy in copies]
        ids = [m.message_id for _, m in read if isinstance(m, DelayedMessage)]
        amendments = self._parking.amendments(ids) if self._parking and ids else {}
        to_store = list[tuple[ReceivedMessage, StoredMessage]]()
        for copy, message in read:
            decided = self._or_failed(copy, self._decide_one, message, amendments)
            if isinstance(decided, StoredMessage):
                to_store.append((copy, decided))
            else:
                yield decided
        yield from self._park(to_store)

    def _decide_one(
        self,
        copy: ReceivedMessage,
        message: DelayedMessage | Reject,
        found: Mapping[str, Amendment | None],
    ) -> Move | Outcome | StoredMessage:
        if isinstance(message, Reject):
            return self._reject(copy, message.reason)
        amendment = found.get(message.message_id)
        if amendment is not None:
            if amendment.cancels(copy.first_sent_ms):
                return Outcome(copy, Status.CANCELLED, message.due_ms)
            moved_ms = amendment.new_due_ms(copy.first_sent_ms)
            message = message if moved_ms is None else replace(message, due_ms=moved_ms)
        now_ms = self._broker_now()
        if problem := too_far(message.due_ms, now_ms, self._settings.max_delay_seconds):
            return self._reject(copy, problem)
        decision = self._next(message, now_ms)
        unread = amendment is None and message.message_id in found
        if unread and (isinstance(decision, HandOver) or self._of_groups):
            raise Unread()
        if isinstance(decision, HandOver):
            seconds = decision.delay_seconds
            late_ms = now_ms + seconds * 1000 - message.due_ms
            entry = outgoing.handed_over(copy, message, self._endpoint, delay_seconds=seconds)
            settled = Outcome(copy, Status.HANDED_OVER, message.due_ms, seconds, late_ms)
            return Move(self._endpoint.hand_over_queue, entry, [settled])
        # What is unread hops on until it is known.
        if unread or not isinstance(decision, Park):
            return self._requeue(copy, message)
        try:
            return parked(copy, message, self._endpoint.address)
        except errors.InvalidMessage as error:  # An id no sender may give: no store can keep it.
            return self._reject(copy, str(error))

    def _requeue(self, copy: ReceivedMessage, message: DelayedMessage) -> Move:
        now_ms = self._broker_now()
        held_ms = now_ms - (copy.sent_ms or 0)
        if not self._of_groups and 0 <= held_ms < self.hop_seconds * 500:
            # A queue whose delay was taken away would spin messages as fast as we can pay for. The
            # copy comes back after a backoff, and goes on once it has been here for half a hop.
            raise errors.ConfigurationError(
                f"{self.source.name} held a message for {held_ms} ms instead of "
                f"{self.hop_seconds} s; set its DelaySeconds back to {self.hop_seconds}"
            )
        entry = outgoing.requeued(copy, message, seconds_until(message.due_ms, now_ms))
        outcome = Outcome(copy, Status.REQUEUED, message.due_ms)
        return Move(self._endpoint.delay_queue, entry, [outcome])

    def _park(
        self, given: Sequence[tuple[ReceivedMessage, StoredMessage]]
    ) -> Iterator[Move | Outcome]:
        """Park in one call; what the store does not take hops on, which loses nothing."""
        if self._parking is None or not given:
            return
        answers = self._parking.park_sent([(stored, copy.first_sent_ms) for copy, stored in given])
        for (copy, stored), answer in zip(given, answers, strict=True):
            due_ms = stored.due_ms
            if isinstance(answer, errors.MessageConflict):
                yield self._reject(copy, f"conflict: {answer}")
            elif not isinstance(answer, errors.SqsDelayError):
                yield Outcome(copy, Status.PARKED if answer else Status.CANCELLED, due_ms)
            elif self._of_groups or isinstance(answer, Unread):
                # A group's copy waits in the parking queue as well as in the delay queue, and for less.
                yield self._failed(copy, str(answer), due_ms)
            else:
                name, why = one_line(stored.message_id), one_line(answer)
                logger.warning("%s not parked, it hops on: %s", name, why)
                message = DelayedMessage(stored.message_id, due_ms)
                yield self._or_failed(copy, self._requeue, message)

    def _or_failed(
        self, copy: ReceivedMessage, decide: Callable[..., _T], *about: Any
    ) -> _T | Outcome:
        try:
            return decide(copy, *about)
        except errors.SqsDelayError as error:
            return self._failed(copy, str(error))

    def _failed(self, copy: ReceivedMessage, error: str, due_ms: int | None = None) -> Outcome:
        name, why = one_line(copy.message_id), one_line(error)
        logger.warning("message %s stays in %s: %s", name, self.source.name, why)
        return Outcome(copy, Status.FAILED, due_ms, error=error)

    def _reject(self, copy: ReceivedMessage, reason: str) -> Move:
        outcome = Outcome(copy, Status.REJECTED, error=reason)
        return Move(self._endpoint.error_queue, rejected(copy, reason), [outcome])

    def _sent(self, moves: Sequence[Move], received: int, held: Held) -> Iterator[Outcome]:
        """Send in full batches. What is refused for good, and often enough, goes to the error queue."""
        hopeless: list[Move] = []
        for batch in full_batches(moves, target=lambda m: m.target, size=lambda m: m.entry.size):
            failures = self._send(batch, held)
            answered = [
                (move, outcome, failure)
                for move, failure in zip(batch, failures, strict=True)
                for outcome in move.settled
            ]
            settled = [(outcome, move.entry) for move, outcome, no in answered if no is None]
            self._record(settled, received, len(answered))
            for move, outcome, failure in answered:
                if failure is None:
                    yield outcome
                elif (
                    not failure.transient
                    and move.target != self._endpoint.error_queue
                    and (outcome.copy.receive_count or 0) >= self._settings.max_receives
                ):
                    why = f"{failure.code}: {failure.error}"
                    hopeless.append(self._reject(outcome.copy, why))
                else:
                    yield self._failed(outcome.copy, str(failure.error), outcome.due_ms)
        if hopeless:
            yield from self._sent(hopeless, received, held)

    def _send(self, batch: list[Move], held: Held = always_held) -> list[Failure | None]:
        """Send; what goes to the destination begins a new trace there."""
        target, tracing, deliveries = batch[0].target, self._settings.tracing, list[DeliverySpan]()

        def smaller(position: int) -> OutgoingMessage | None:
            move = batch[position]
            if target != self._endpoint.error_queue:
                return outgoing.without_identity(move.entry)
            return rejected(move.settled[0].copy, move.settled[0].error or "", limit=0)

        outcomes: list[Failure | None]
        try:
            if not held():
                why = "no time is left for it; it is received again, here or by another consumer"
                raise errors.QueueUnavailable(why)
            for move in batch:
                self._set_timer(move)
                if tracing is not None and target == self._endpoint.queue:
                    copy, due_ms = move.settled[0].copy, move.settled[0].due_ms
                    header, name = copy.trace_header, self._endpoint.name
                    delivery = tracing.delivering(
                        name, copy.message_id, sent_with=header, due_ms=due_ms
                    )
                    move.entry.trace_header = delivery.header or move.entry.trace_header
                    deliveries.append(delivery)
            url = self._queues.url(target)
            send, entries = partial(self._queues.send_batch, url), [move.entry for move in batch]
            sent = outgoing.send_fitting(send, entries, smaller)
            outcomes = [outcome if isinstance(outcome, Failure) else None for outcome in sent]
        except errors.SqsDelayError as error:
            outcomes = [Failure(type(error).__name__, error, transient=True)] * len(batch)
        for delivery, failure in zip(deliveries, outcomes, strict=False):
            delivery.end(None if failure is None else str(failure.error))
        return outcomes

    def _set_timer(self, move: Move) -> None:
        """Update a message timer right before its send: earlier sends took time."""
        (outcome, *_) = move.settled
        if outcome.delay_seconds is None or outcome.due_ms is None:
            return
        try:
            now_ms = self._broker_now()
        except errors.SqsDelayError:
            return  # Late by what the sends before it took, and not early.
        # Never longer than it was: a clock known less well by now must not exceed what SQS takes.
        timer = min(outcome.delay_seconds, seconds_until(outcome.due_ms, now_ms))
        move.entry.delay_seconds = timer
        late_ms = now_ms + timer * 1000 - outcome.due_ms
        move.settled = [replace(outcome, delay_seconds=timer, late_ms=late_ms)]

    def _record(
        self,
        settled: Sequence[tuple[Outcome, OutgoingMessage | None]],
        received: int,
        batch: int | None = None,
    ) -> None:
        """What befell copies that were settled with one request, or with none, and what was sent for each.
        Before they are deleted: a worker that dies in between sends, and records, again."""
        if self._settings.ledger is None:
            return
        # Where the ledger's word is another than the relay's. A due queue is not the last step.
        kinds = {Status.REQUEUED: EventKind.HOP, Status.DELIVERED: EventKind.HANDED_OVER}
        if self._endpoint.fifo:
            kinds[Status.HANDED_OVER] = EventKind.HOP
        at_ms = self._queues.broker_clock.now_ms()

        def event(outcome: Outcome, entry: OutgoingMessage | None) -> Event:
            kind = kinds.get(outcome.status) or EventKind(outcome.status)
            return Event(
                kind=kind,
                at_ms=at_ms,
                endpoint=self._endpoint.name,
                message_id=outcome.copy.message_id,
                source=Source.DISPATCHER if self._of_groups else Source.CONSUMER,
                due_ms=outcome.due_ms,
                # A forwarded copy is one of many in its entry.
                size=entry.size if entry and outcome.status is not Status.FORWARDED else None,
                batch=batch,
                receive_batch=None if self._of_groups else received,
                timer_seconds=outcome.delay_seconds,
                late_ms=None if kind is EventKind.HOP else outcome.late_ms,
                reason=outcome.error,
            )

        events = (event(*each) for each in settled if each[0].settled)
        record_safely(self._settings.ledger, events)

    def _hide(self, source_url: str, failed: Sequence[ReceivedMessage]) -> None:
        entries = [(copy, backoff_seconds(copy.receive_count or 1)) for copy in failed]
        answers = in_tens(partial(self._queues.hide_batch, source_url), entries)
        for copy, failure in zip(failed, answers, strict=True):
            if failure is not None:
                # Harmless: it comes back after the queue's visibility timeout instead.
                name, why = one_line(copy.message_id), one_line(failure.error)
                logger.info("backoff of %s not set: %s", name, why)

    def _delete(self, source_url: str, settled: Sequence[Outcome]) -> None:
        copies = [outcome.copy for outcome in settled]
        answers = in_tens(partial(self._queues.delete_batch, source_url), copies)
        for outcome, failure in zip(settled, answers, strict=True):
            copy, key = outcome.copy, _key(outcome.copy)
            self._undeleted.pop(key, None)
            if failure is not None:
                name, why = one_line(copy.message_id), one_line(failure.error)
                logger.warning("message %s sent on but not deleted: %s", name, why)
                # Its outcome, without what it holds: content takes memory.
                self._undeleted[key] = replace(outcome, copy=replace(copy, body="", attributes={}))
                if len(self._undeleted) > _REMEMBERED_COPIES:
                    self._undeleted.popitem(last=False)


class DueRelay(Relay):
    """Sends what a FIFO endpoint's due queue hands out on to the FIFO queue.

    Messages received together are sent in the order of their due times. A due queue is a standard
    queue: what it hands out together is SQS's choice, so messages of one group that are due within
    the same seconds may change places.
    """

    def __init__(
        self, queues: Queues, endpoint: Endpoint, settings: RelaySettings | None = None
    ) -> None:
        super().__init__(queues, endpoint, replace(settings or RelaySettings(), parking=None))
        self.source = endpoint.due_queue

    def _decide(self, copies: Sequence[ReceivedMessage]) -> Iterator[Move | Outcome]:
        for copy in sorted(copies, key=_due_order):
            yield self._or_failed(copy, self._deliver)

    def _deliver(self, copy: ReceivedMessage) -> Move:
        ids = incoming.read_fifo_ids(copy)
        if isinstance(ids, Reject):
            return self._reject(copy, ids.reason)
        due_ms = outgoing.due_at_of(copy.attributes)
        late_ms = None if due_ms is None else self._broker_now() - due_ms
        outcome = Outcome(copy, Status.DELIVERED, due_ms, late_ms=late_ms)
        return Move(self._endpoint.queue, outgoing.delivered(copy, ids), [outcome])


def in_tens(
    call: Callable[[Sequence[_T]], list[Failure | None]], items: Sequence[_T]
) -> list[Failure | None]:
    """Make calls for as many items as one takes; an answer for each."""
    starts = range(0, len(items), MAX_BATCH_ENTRIES)
    return [answer for n in starts for answer in call(items[n : n + MAX_BATCH_ENTRIES])]


def backoff_seconds(receive_count: int) -> int:
    """How long a failed copy stays hidden: doubling from 5 s, below the deduplication interval."""
    return min(MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS << min(receive_count - 1, 10))


def _key(copy: ReceivedMessage) -> str:
    return f"{copy.sqs_message_id}:{copy.sent_ms}"


def _due_order(copy: ReceivedMessage) -> tuple[int, int]:
    sent_ms, due_ms = copy.sent_ms or 0, outgoing.due_at_of(copy.attributes)
    return (sent_ms if due_ms is None else due_ms, sent_ms)
