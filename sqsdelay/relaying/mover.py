"""Moves received copies on: sends in batches, and deletes a copy only once its send is confirmed."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from sqsdelay.core.delay import check_hop, checked_max_delay, seconds_until
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import OutgoingMessage, full_batches
from sqsdelay.core.outgoing import without_identity
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.rejection import rejected
from sqsdelay.errors import InvalidSetting, SqsDelayError
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    DEFAULT_MAX_DELAY_SECONDS,
    MAX_BACKOFF_SECONDS,
    MAX_BATCH_ENTRIES,
)
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure, Queues, send_fitting
from sqsdelay.ports.tracing import Delivery, Tracing

DEFAULT_MAX_RECEIVES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """The settings of a delay consumer's relays.

    Args:
        hop_seconds: the delay queue's delivery delay, 1 to 900.
        max_receives: receives after which a copy that SQS keeps refusing goes to the error queue.
        max_delay_seconds: messages due farther ahead go to the error queue.
        parking: where to park messages and look for amendments; without it neither is done.
        ledger: where to record what became of copies; None records nothing.
        tracing: traces deliveries; None makes no spans.

    Raises:
        ConfigurationError: a setting out of range.
    """

    hop_seconds: int = DEFAULT_HOP_SECONDS
    max_receives: int = DEFAULT_MAX_RECEIVES
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS
    parking: ParkingSettings | None = None
    ledger: Ledger | None = None
    tracing: Tracing | None = None

    def __post_init__(self) -> None:
        check_hop(self.hop_seconds)
        checked_max_delay(self.max_delay_seconds)
        if self.max_receives < 1:
            raise InvalidSetting("use 1 or more", max_receives=self.max_receives)


class Status(StrEnum):
    """What became of a copy."""

    HANDED_OVER = "handed-over"
    REQUEUED = "requeued"
    DELIVERED = "delivered"
    FORWARDED = "forwarded"
    """To the parking queue, to be parked with others."""
    PARKED = "parked"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A copy's outcome: settled (the next queue or store confirmed it) or failed and to be received again.

    ``due_ms`` is None for a copy that does not say when it is due. ``delay_seconds`` is the message
    timer of a hand-over, ``late_ms`` how long after its due time the destination will show it (0 to
    999 from rounding up, more after an outage). ``error`` says why a copy failed or was rejected.
    """

    copy: ReceivedMessage
    status: Status
    due_ms: int | None = None
    delay_seconds: int | None = None
    late_ms: int | None = None
    error: str | None = None

    @property
    def settled(self) -> bool:
        return self.status is not Status.FAILED


logger = logging.getLogger(__name__)

_FIRST_BACKOFF_SECONDS: Final = 5
_REMEMBERED_COPIES: Final = 10_000
_NOT_HELD: Final = "no time is left for it; it is received again, here or by another consumer"


@dataclass(slots=True)
class Move:
    """A send, and the outcome of its copy once it is confirmed."""

    target: QueueRef
    entry: OutgoingMessage
    settled: Outcome


_T = TypeVar("_T")

Held = Callable[[], bool]
"""Whether the consumer still holds its copies, and has time for one more call."""


def always_held() -> bool:
    """For a consumer without a time limit."""
    return True


class Mover(ABC):
    """Settles the copies of one receive from ``source``; a subclass decides where each goes."""

    def __init__(
        self, queues: Queues, endpoint: Endpoint, source: QueueRef, settings: RelaySettings
    ) -> None:
        self._queues = queues
        self._endpoint = endpoint
        self._settings = settings
        self._undeleted: OrderedDict[str, Outcome] = OrderedDict()
        self.source = source

    def process(
        self, copies: Sequence[ReceivedMessage], *, delete: bool = True, held: Held = always_held
    ) -> list[Outcome]:
        """Move a received batch on and settle it.

        Args:
            copies: what one receive returned, from ``source``.
            delete: False where the caller deletes settled copies itself (Lambda does).
            held: asked before each send. On False, the copies not yet sent fail and are left alone:
                another consumer may have received them.

        Returns:
            An outcome per copy, in order. No message, whatever it holds, makes this raise.

        Raises:
            QueueMissing, QueueUnavailable: the queue cannot be found; nothing was sent.
            SchemaMismatch: the store is of another version; nothing was sent.
        """
        source_url = self._queues.url(self.source)
        for copy in copies:
            if copy.receive_count == 1 and copy.first_receive_ms is not None:
                self._queues.broker_clock.observe(copy.first_receive_ms, at=copy.received_at)
        # Sent before, only the delete had failed: sending again would duplicate it.
        known = [(copy, self._undeleted.get(_key(copy))) for copy in copies]
        done = [replace(sent, copy=copy) for copy, sent in known if sent is not None]
        decided = list(self._decide([copy for copy, sent in known if sent is None]))
        without_a_send = [each for each in decided if isinstance(each, Outcome)]
        self._record([(outcome, None) for outcome in without_a_send], len(copies))
        moves = [each for each in decided if isinstance(each, Move)]
        done += [*without_a_send, *self._sent(moves, len(copies), held)]
        of = {id(outcome.copy): outcome for outcome in done}
        outcomes = [of[id(copy)] for copy in copies]
        failed = [outcome.copy for outcome in outcomes if not outcome.settled]
        # A group of the parking queue comes back after the visibility timeout.
        if failed and self.source != self._endpoint.parking_queue and held():
            self._hide(source_url, failed)
        if delete:
            self._delete(source_url, [outcome for outcome in outcomes if outcome.settled])
        return outcomes

    @abstractmethod
    def _decide(self, copies: Sequence[ReceivedMessage]) -> Iterable[Move | Outcome]:
        """The move or the outcome of each copy, in sending order."""

    def _or_failed(
        self, copy: ReceivedMessage, decide: Callable[..., _T], *about: Any
    ) -> _T | Outcome:
        try:
            return decide(copy, *about)
        except SqsDelayError as error:
            return self._failed(copy, str(error))

    def _reject(self, copy: ReceivedMessage, reason: str) -> Move:
        outcome = Outcome(copy, Status.REJECTED, error=reason)
        return Move(self._endpoint.error_queue, rejected(copy, reason), outcome)

    def _broker_now(self, copy: ReceivedMessage) -> int:
        """The broker's now: from the copy's own receive timestamp if fresh, else from the clock."""
        clock = self._queues.broker_clock
        if copy.receive_count == 1 and copy.first_receive_ms is not None:
            now_ms = clock.after_ms(copy.first_receive_ms, copy.received_at)
            # The copy may have travelled for long since its timestamp; other answers know better.
            return max(now_ms, clock.now_ms()) if clock.synchronised else now_ms
        if not clock.synchronised:
            self._queues.synchronise(self.source)
        return clock.now_ms()

    def _set_timer(self, move: Move) -> None:
        """Update a message timer right before its send: earlier sends took time."""
        timer, due_ms = move.entry.delay_seconds, move.settled.due_ms
        if timer is None or due_ms is None:
            return
        try:
            now_ms = self._broker_now(move.settled.copy)
        except SqsDelayError:
            return  # Late by what the sends before it took, and not early.
        # Never longer than it was: a clock known less well by now must not exceed what SQS takes.
        timer = min(timer, seconds_until(due_ms, now_ms))
        move.entry.delay_seconds = timer
        late_ms = now_ms + timer * 1000 - due_ms
        move.settled = replace(move.settled, delay_seconds=timer, late_ms=late_ms)

    def _sent(self, moves: Sequence[Move], received: int, held: Held) -> Iterator[Outcome]:
        hopeless: list[Move] = []
        for batch in full_batches(moves, target=lambda m: m.target, size=lambda m: m.entry.size):
            if not held():
                yield from (
                    self._failed(m.settled.copy, _NOT_HELD, m.settled.due_ms) for m in batch
                )
                continue
            for move in batch:
                self._set_timer(move)
            answered = list(zip(batch, self._send(batch), strict=True))
            settled = [(move.settled, move.entry) for move, failure in answered if failure is None]
            self._record(settled, received, len(batch))
            for move, failure in answered:
                copy = move.settled.copy
                if failure is None:
                    yield move.settled
                elif (
                    not failure.transient
                    and move.target != self._endpoint.error_queue
                    and (copy.receive_count or 0) >= self._settings.max_receives
                ):
                    hopeless.append(self._reject(copy, f"{failure.code}: {failure.error}"))
                else:
                    yield self._failed(copy, str(failure.error), move.settled.due_ms)
        if hopeless:
            yield from self._sent(hopeless, received, held)

    def _record(
        self,
        settled: Sequence[tuple[Outcome, OutgoingMessage | None]],
        received: int,
        batch: int | None = None,
    ) -> None:
        """What befell copies that were settled with one request, or with none. Before they are deleted: a
        worker that dies in between sends, and records, again."""
        if self._settings.ledger is None:
            return
        endpoint, at_ms = self._endpoint, self._queues.broker_clock.now_ms()
        parks = self.source == endpoint.parking_queue
        forwarded = sum(outcome.status is Status.FORWARDED for outcome, _ in settled)
        # Where the ledger's word is another than the relay's.
        kinds = {Status.REQUEUED: EventKind.HOP, Status.DELIVERED: EventKind.HANDED_OVER}
        if endpoint.fifo:  # Its due queue is not the last step.
            kinds[Status.HANDED_OVER] = EventKind.HOP
        record_safely(
            self._settings.ledger,
            (
                Event(
                    kind=kinds.get(outcome.status) or EventKind(outcome.status),
                    at_ms=at_ms,
                    endpoint=endpoint.name,
                    message_id=outcome.copy.message_id,
                    source=Source.DISPATCHER if parks else Source.CONSUMER,
                    due_ms=outcome.due_ms,
                    size=None if entry is None else entry.size,
                    batch=forwarded if outcome.status is Status.FORWARDED else batch,
                    # The parking queue's messages hold many copies.
                    receive_batch=None if parks else received,
                    timer_seconds=outcome.delay_seconds,
                    late_ms=None if kinds.get(outcome.status) is EventKind.HOP else outcome.late_ms,
                    reason=outcome.error,
                )
                for outcome, entry in settled
                if outcome.settled
            ),
        )

    def _send(self, batch: list[Move]) -> list[Failure | None]:
        """Send; what goes to the destination begins a new trace there."""
        target, deliveries = batch[0].target, list[Delivery]()
        if self._settings.tracing is not None and target == self._endpoint.queue:
            for move in batch:
                delivery = self._settings.tracing.delivering(
                    self._endpoint.name,
                    move.settled.copy.message_id,
                    sent_with=move.settled.copy.trace_header,
                    due_ms=move.settled.due_ms,
                )
                move.entry.trace_header = delivery.header or move.entry.trace_header
                deliveries.append(delivery)

        def smaller(position: int) -> OutgoingMessage | None:
            move = batch[position]
            if target != self._endpoint.error_queue:
                return without_identity(move.entry)
            return rejected(move.settled.copy, move.settled.error or "", limit=0)

        outcomes: list[Failure | None]
        try:
            url = self._queues.url(target)
            sent = send_fitting(self._queues, url, [move.entry for move in batch], smaller)
            outcomes = [outcome if isinstance(outcome, Failure) else None for outcome in sent]
        except SqsDelayError as error:
            outcomes = [Failure(type(error).__name__, error, transient=True)] * len(batch)
        for delivery, failure in zip(deliveries, outcomes, strict=False):
            delivery.end(None if failure is None else str(failure.error))
        return outcomes

    def _failed(self, copy: ReceivedMessage, error: str, due_ms: int | None = None) -> Outcome:
        name, why = one_line(copy.message_id), one_line(error)
        logger.warning("message %s stays in %s: %s", name, self.source.name, why)
        return Outcome(copy, Status.FAILED, due_ms, error=error)

    def _hide(self, source_url: str, failed: list[ReceivedMessage]) -> None:
        entries = [(copy, backoff_seconds(copy.receive_count or 1)) for copy in failed]
        for (copy, _), failure in failures(partial(self._queues.hide_batch, source_url), entries):
            # Harmless: it comes back after the queue's visibility timeout instead.
            name, why = one_line(copy.message_id), one_line(failure.error)
            logger.info("backoff of %s not set: %s", name, why)

    def _delete(self, source_url: str, settled: list[Outcome]) -> None:
        def delete(outcomes: Sequence[Outcome]) -> list[Failure | None]:
            return self._queues.delete_batch(source_url, [outcome.copy for outcome in outcomes])

        not_deleted = list(failures(delete, settled))
        for outcome in settled:
            self._undeleted.pop(_key(outcome.copy), None)
        for outcome, failure in not_deleted:
            name, why = one_line(outcome.copy.message_id), one_line(failure.error)
            logger.warning("message %s sent on but not deleted: %s", name, why)
            # Its outcome, without what it holds: content takes memory.
            bare = replace(outcome.copy, body="", attributes={})
            self._undeleted[_key(bare)] = replace(outcome, copy=bare)
            if len(self._undeleted) > _REMEMBERED_COPIES:
                self._undeleted.popitem(last=False)


def failures(
    call: Callable[[Sequence[_T]], list[Failure | None]], items: Sequence[_T]
) -> Iterator[tuple[_T, Failure]]:
    """Make calls for as many items as one takes; the items for which they failed, and why."""
    for start in range(0, len(items), MAX_BATCH_ENTRIES):
        chunk = items[start : start + MAX_BATCH_ENTRIES]
        for item, failure in zip(chunk, call(chunk), strict=True):
            if failure is not None:
                yield item, failure


def backoff_seconds(receive_count: int) -> int:
    """How long a failed copy stays hidden: doubling from 5 s, below the deduplication interval."""
    return min(MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS << min(receive_count - 1, 10))


def _key(copy: ReceivedMessage) -> str:
    return f"{copy.sqs_message_id}:{copy.sent_ms}"
