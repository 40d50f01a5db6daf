"""The delay consumer's work on one batch: decide, send in batches, and only then let copies go."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sqsdelay import wire
from sqsdelay.batch import full_batches
from sqsdelay.decision import HandOver, Reject, Requeue, check_hop, decide
from sqsdelay.endpoint import Endpoint, QueueRef
from sqsdelay.errors import ConfigurationError, SqsDelayError
from sqsdelay.limits import MAX_BACKOFF_SECONDS, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.message import OutgoingMessage
from sqsdelay.ports import Failure, Queues
from sqsdelay.wire import Delayed, ReceivedMessage

logger = logging.getLogger(__name__)

DEFAULT_MAX_RECEIVES = 5
_FIRST_BACKOFF_SECONDS = 5
_REMEMBERED_COPIES = 10_000


class Status(StrEnum):
    """What became of a copy."""

    HANDED_OVER = "handed-over"
    REQUEUED = "requeued"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One copy's fate: settled (its next home confirmed it) or failed and to be received again.

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


@dataclass(slots=True)
class _Move:
    """A copy and the send that would settle it."""

    position: int
    copy: ReceivedMessage
    target: QueueRef
    entry: OutgoingMessage
    settled: Outcome


class Relay:
    """Moves delayed messages one hop on: back to the delay queue, to the endpoint, or to the error queue.

    Args:
        queues: the queue service.
        endpoint: whose delay queue is served.
        hop_seconds: the delay queue's actual delivery delay, 1 to 900.
        max_receives: receives after which a copy that SQS keeps refusing goes to the error queue.
    """

    def __init__(
        self,
        queues: Queues,
        endpoint: Endpoint,
        *,
        hop_seconds: int = MAX_MESSAGE_TIMER_SECONDS,
        max_receives: int = DEFAULT_MAX_RECEIVES,
    ) -> None:
        check_hop(hop_seconds)
        check_max_receives(max_receives)
        self._queues = queues
        self._endpoint = endpoint
        self._hop_seconds = hop_seconds
        self._max_receives = max_receives
        self._undeleted: OrderedDict[str, Outcome] = OrderedDict()

    def process(self, copies: Sequence[ReceivedMessage], *, delete: bool = True) -> list[Outcome]:
        """Relay a received batch and settle it.

        Args:
            copies: what one receive returned, from this endpoint's delay queue.
            delete: False where the caller deletes settled copies itself (Lambda does).

        Returns:
            An outcome per copy, in order. Nothing one message holds makes it raise.

        Raises:
            QueueMissing, QueueUnavailable: the delay queue cannot be found; nothing was sent.
        """
        source_url = self._queues.url(self._endpoint.delay_queue)
        for copy in copies:
            if copy.receive_count == 1 and copy.first_receive_ms is not None:
                self._queues.broker_clock.observe(copy.first_receive_ms, at=copy.received_at)
        outcomes = self._relay(copies)
        failed = [outcome for outcome in outcomes if not outcome.settled]
        if failed:
            self._hide(source_url, failed)
        if delete:
            self._delete(source_url, [outcome for outcome in outcomes if outcome.settled])
        return outcomes

    def _relay(self, copies: Sequence[ReceivedMessage]) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(copies)
        moves: list[_Move] = []
        for position, copy in enumerate(copies):
            done = self._undeleted.get(_copy_key(copy))
            if done is not None:
                # Sent before, only the delete had failed: sending again would duplicate it.
                outcomes[position] = replace(done, copy=copy)
                continue
            try:
                moves.append(self._decide(position, copy))
            except SqsDelayError as error:
                outcomes[position] = self._failed(copy, str(error))
        self._send(moves, outcomes)
        return [outcome for outcome in outcomes if outcome is not None]

    def _decide(self, position: int, copy: ReceivedMessage) -> _Move:
        message = wire.read_delay(copy)
        if isinstance(message, Reject):
            return self._reject(position, copy, message.reason)
        now_ms = self._broker_now(copy)
        decision = decide(message.due_ms, now_ms, hop_seconds=self._hop_seconds)
        if isinstance(decision, HandOver):
            return _Move(
                position,
                copy,
                self._endpoint.queue,
                wire.handed_over(copy, message, decision.delay_seconds),
                Outcome(
                    copy,
                    Status.HANDED_OVER,
                    message.due_ms,
                    decision.delay_seconds,
                    now_ms + decision.delay_seconds * 1000 - message.due_ms,
                ),
            )
        return self._requeue(position, copy, message, decision, now_ms)

    def _requeue(
        self,
        position: int,
        copy: ReceivedMessage,
        message: Delayed,
        decision: Requeue,
        now_ms: int,
    ) -> _Move:
        held_ms = now_ms - (copy.sent_ms or 0)
        if 0 <= held_ms < self._hop_seconds * 500:
            # A queue whose delay was taken away would spin messages as fast as we can pay for. The
            # copy comes back after a backoff, and goes on once it has been here for half a hop.
            raise ConfigurationError(
                f"{self._endpoint.delay_queue.name} held a message for {held_ms} ms instead of "
                f"{self._hop_seconds} s; set its DelaySeconds back to {self._hop_seconds}"
            )
        return _Move(
            position,
            copy,
            self._endpoint.delay_queue,
            wire.requeued(copy, message, decision.remaining_seconds),
            Outcome(copy, Status.REQUEUED, message.due_ms),
        )

    def _reject(self, position: int, copy: ReceivedMessage, reason: str) -> _Move:
        return _Move(
            position,
            copy,
            self._endpoint.error_queue,
            wire.rejected(copy, reason),
            Outcome(copy, Status.REJECTED, error=reason),
        )

    def _broker_now(self, copy: ReceivedMessage) -> int:
        """The broker's now: from the copy's own receive stamp if fresh, else the learned clock."""
        clock = self._queues.broker_clock
        if copy.receive_count == 1 and copy.first_receive_ms is not None:
            elapsed = clock.local.monotonic() - copy.received_at
            now_ms = copy.first_receive_ms + max(0, int(elapsed * 1000))
            # The copy may have been underway for long since its stamp; other answers know better.
            return max(now_ms, clock.now_ms()) if clock.synchronised else now_ms
        if not clock.synchronised:
            self._queues.synchronise(self._endpoint.delay_queue)
        return clock.now_ms()

    def _send(self, moves: list[_Move], outcomes: list[Outcome | None]) -> None:
        hopeless: list[_Move] = []
        batches = full_batches(moves, target=lambda m: m.target, size=lambda m: m.entry.size)
        for batch in batches:
            for move, failure in zip(batch, self._send_batch(batch), strict=True):
                if failure is None:
                    outcomes[move.position] = move.settled
                elif self._is_hopeless(move, failure):
                    reason = f"{failure.code}: {failure.error}"
                    hopeless.append(self._reject(move.position, move.copy, reason))
                else:
                    outcomes[move.position] = self._failed(
                        move.copy, str(failure.error), move.settled.due_ms
                    )
        if hopeless:
            self._send(hopeless, outcomes)

    def _is_hopeless(self, move: _Move, failure: Failure) -> bool:
        return (
            not failure.transient
            and move.target != self._endpoint.error_queue
            and (move.copy.receive_count or 0) >= self._max_receives
        )

    def _send_batch(self, batch: list[_Move]) -> list[Failure | None]:
        try:
            url = self._queues.url(batch[0].target)
        except SqsDelayError as error:
            return [Failure(type(error).__name__, error, transient=True)] * len(batch)
        sent = self._queues.send_batch(url, [move.entry for move in batch])
        return [outcome if isinstance(outcome, Failure) else None for outcome in sent]

    def _failed(self, copy: ReceivedMessage, error: str, due_ms: int | None = None) -> Outcome:
        logger.warning("message %s stays in the delay queue: %s", copy.message_id, error)
        return Outcome(copy, Status.FAILED, due_ms, error=error)

    def _hide(self, source_url: str, failed: list[Outcome]) -> None:
        entries = [(o.copy, backoff_seconds(o.copy.receive_count or 1)) for o in failed]
        for outcome, failure in zip(
            failed, self._queues.hide_batch(source_url, entries), strict=True
        ):
            if failure is not None:
                # Harmless: it comes back after the queue's visibility timeout instead.
                logger.info("backoff of %s not set: %s", outcome.copy.message_id, failure.error)

    def _delete(self, source_url: str, settled: list[Outcome]) -> None:
        if not settled:
            return
        deleted = self._queues.delete_batch(source_url, [outcome.copy for outcome in settled])
        for outcome, failure in zip(settled, deleted, strict=True):
            key = _copy_key(outcome.copy)
            if failure is None:
                self._undeleted.pop(key, None)
                continue
            logger.warning("message %s sent on but not deleted: %s", key, failure.error)
            self._undeleted[key] = outcome
            if len(self._undeleted) > _REMEMBERED_COPIES:
                self._undeleted.popitem(last=False)


def check_max_receives(max_receives: int) -> None:
    """Refuse what would send every copy to the error queue.

    Raises:
        ConfigurationError: below 1.
    """
    if max_receives < 1:
        raise ConfigurationError(f"max_receives={max_receives}; use 1 or more")


def backoff_seconds(receive_count: int) -> int:
    """How long a failed copy stays hidden: doubling from 5 s, below the deduplication interval."""
    return min(MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS << min(receive_count - 1, 10))


def _copy_key(copy: ReceivedMessage) -> str:
    return f"{copy.sqs_message_id}:{copy.sent_ms}"
