"""The delay consumer's work on one batch: hand over, requeue, park, cancel or reject each copy."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqsdelay.core import fifo, wire
from sqsdelay.core.delay import seconds_until
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.hop import (
    HandOver,
    Park,
    Reject,
    Requeue,
    check_hop,
    checked_max_delay,
    decide,
    too_far,
)
from sqsdelay.core.marks import Mark
from sqsdelay.core.one_line import one_line
from sqsdelay.core.stored_message import StoredMessage, parked
from sqsdelay.core.wire import Delayed, ReceivedMessage
from sqsdelay.errors import ConfigurationError, InvalidMessage, MessageConflict, SqsDelayError
from sqsdelay.ledger.events import Ledger
from sqsdelay.limits import DEFAULT_MAX_DELAY_SECONDS, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, Parking, check_without_store
from sqsdelay.ports.queues import Queues
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.relaying.mover import (
    DEFAULT_MAX_RECEIVES,
    Move,
    Mover,
    Outcome,
    Outcomes,
    Status,
    backoff_seconds,
)

__all__ = ["DEFAULT_MAX_RECEIVES", "Outcome", "Relay", "Status", "backoff_seconds"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A readable copy, as its mark has it, and its place in the batch."""

    position: int
    copy: ReceivedMessage
    message: Delayed

    def settled(self, status: Status) -> Outcome:
        return Outcome(self.copy, status, self.message.due_ms)


class Relay(Mover):
    """Moves delayed messages one hop on: back to the delay queue, to the endpoint, into the store, or
    to the error queue.

    Args:
        queues: the queue service.
        endpoint: whose delay queue is served.
        hop_seconds: the delay queue's actual delivery delay, 1 to 900.
        max_receives: receives after which a copy that SQS keeps refusing goes to the error queue.
        max_delay_seconds: what is due later than that goes to the error queue.
        store: where to park messages and to look for marks; without one neither is done.
        park_after_seconds: messages with more than this remaining are parked.
        ledger: where to record what became of copies; None records nothing.

    Raises:
        ConfigurationError: a setting out of range.
    """

    def __init__(
        self,
        queues: Queues,
        endpoint: Endpoint,
        *,
        hop_seconds: int = MAX_MESSAGE_TIMER_SECONDS,
        max_receives: int = DEFAULT_MAX_RECEIVES,
        max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS,
        store: DelayedMessageStore | None = None,
        park_after_seconds: int = DEFAULT_PARK_AFTER_SECONDS,
        ledger: Ledger | None = None,
    ) -> None:
        check_hop(hop_seconds)
        super().__init__(
            queues, endpoint, endpoint.delay_queue, max_receives=max_receives, ledger=ledger
        )
        self.hop_seconds = hop_seconds
        self._max_delay_seconds = checked_max_delay(max_delay_seconds)
        if store is None:
            check_without_store(park_after_seconds)
        self._parking = None if store is None else Parking(store, after_seconds=park_after_seconds)

    def _decide(
        self, copies: Sequence[tuple[int, ReceivedMessage]], outcomes: Outcomes
    ) -> list[Move]:
        moves: list[Move] = []
        readable: list[_Waiting] = []
        for position, copy in copies:
            message = self._read(copy)
            if isinstance(message, Reject):
                moves.append(self._reject(position, copy, message.reason))
            else:
                readable.append(_Waiting(position, copy, message))
        to_park: list[tuple[_Waiting, Park]] = []
        for waiting in self._marked(readable, outcomes):
            try:
                decided = self._decide_one(waiting)
            except SqsDelayError as error:
                outcomes[waiting.position] = self._failed(waiting.copy, str(error))
                continue
            if isinstance(decided, Park):
                to_park.append((waiting, decided))
            else:
                moves.append(decided)
        return moves + self._park(to_park, outcomes)

    def _read(self, copy: ReceivedMessage) -> Delayed | Reject:
        return fifo.misdirected(copy, self._endpoint) or wire.read_delay(copy)

    def _marked(self, readable: Sequence[_Waiting], outcomes: Outcomes) -> Iterable[_Waiting]:
        """The copies with the due times their marks give them; cancelled ones are settled."""
        if self._parking is None or not readable:
            return readable
        marks = self._parking.marks([w.message.message_id for w in readable])
        left = []
        for waiting in readable:
            mark = marks.get(waiting.message.message_id)
            if mark is not None and mark.cancels(waiting.copy.first_sent_ms):
                outcomes[waiting.position] = waiting.settled(Status.CANCELLED)
            else:
                left.append(_moved(waiting, mark))
        return left

    def _decide_one(self, waiting: _Waiting) -> Move | Park:
        copy, message = waiting.copy, waiting.message
        now_ms = self._broker_now(copy)
        problem = too_far(message.due_ms, now_ms, self._max_delay_seconds)
        if problem is not None:
            return self._reject(waiting.position, copy, problem)
        decision = decide(
            message.due_ms,
            now_ms,
            hop_seconds=self.hop_seconds,
            park_after_seconds=None if self._parking is None else self._parking.after_seconds,
        )
        if isinstance(decision, HandOver):
            return self._hand_over(waiting, decision, now_ms)
        if isinstance(decision, Park):
            return decision
        return self._requeue(waiting, decision, now_ms)

    def _hand_over(self, waiting: _Waiting, decision: HandOver, now_ms: int) -> Move:
        due_ms, seconds = waiting.message.due_ms, decision.delay_seconds
        return Move(
            waiting.position,
            waiting.copy,
            self._endpoint.hand_over_queue,
            fifo.for_hand_over(
                waiting.copy, waiting.message, self._endpoint, delay_seconds=seconds
            ),
            Outcome(
                waiting.copy,
                Status.HANDED_OVER,
                due_ms,
                seconds,
                now_ms + seconds * 1000 - due_ms,
            ),
        )

    def _set_timer(self, move: Move) -> None:
        timer, due_ms = move.entry.delay_seconds, move.settled.due_ms
        if move.settled.status is not Status.HANDED_OVER or timer is None or due_ms is None:
            return
        try:
            now_ms = self._broker_now(move.copy)
        except SqsDelayError:
            return  # Late by what the sends before it took, and not early.
        # Never longer than it was: a clock known less well by now must not exceed what SQS takes.
        timer = min(timer, seconds_until(due_ms, now_ms))
        move.entry.delay_seconds = timer
        late_ms = now_ms + timer * 1000 - due_ms
        move.settled = replace(move.settled, delay_seconds=timer, late_ms=late_ms)

    def _requeue(self, waiting: _Waiting, decision: Requeue, now_ms: int) -> Move:
        copy = waiting.copy
        held_ms = now_ms - (copy.sent_ms or 0)
        if 0 <= held_ms < self.hop_seconds * 500:
            # A queue whose delay was taken away would spin messages as fast as we can pay for. The
            # copy comes back after a backoff, and goes on once it has been here for half a hop.
            raise ConfigurationError(
                f"{self.source.name} held a message for {held_ms} ms instead of "
                f"{self.hop_seconds} s; set its DelaySeconds back to {self.hop_seconds}"
            )
        return Move(
            waiting.position,
            copy,
            self.source,
            wire.requeued(copy, waiting.message, decision.remaining_seconds),
            waiting.settled(Status.REQUEUED),
        )

    def _park(self, to_park: Sequence[tuple[_Waiting, Park]], outcomes: Outcomes) -> list[Move]:
        """Park in one call; what the store does not take hops on, which loses nothing."""
        if self._parking is None or not to_park:
            return []
        to_park, messages, moves = self._parkable(to_park)
        errors = self._parking.park(messages) if messages else []
        errors = [
            self._met_again(waiting, message, error)
            if isinstance(error, MessageConflict)
            else error
            for (waiting, _), message, error in zip(to_park, messages, errors, strict=True)
        ]
        in_store = {
            waiting.message.message_id: waiting.copy.first_sent_ms
            for (waiting, _), error in zip(to_park, errors, strict=True)
            if error is None
        }
        cancelled = self._parking.apply_marks(in_store) if in_store else set()
        for (waiting, decision), error in zip(to_park, errors, strict=True):
            if error is None:
                gone = waiting.message.message_id in cancelled
                outcomes[waiting.position] = waiting.settled(
                    Status.CANCELLED if gone else Status.PARKED
                )
                continue
            if isinstance(error, MessageConflict):
                moves.append(self._reject(waiting.position, waiting.copy, f"conflict: {error}"))
                continue
            logger.warning(
                "%s not parked, it hops on: %s",
                one_line(waiting.message.message_id),
                one_line(error),
            )
            try:
                now_ms = self._broker_now(waiting.copy)
                moves.append(self._requeue(waiting, Requeue(decision.remaining_seconds), now_ms))
            except SqsDelayError as stays:
                outcomes[waiting.position] = self._failed(waiting.copy, str(stays))
        return moves

    def _met_again(
        self, waiting: _Waiting, message: StoredMessage, conflict: MessageConflict
    ) -> SqsDelayError | None:
        """None where the store has the same message, moved since its marks were read."""
        assert self._parking is not None
        mark = self._parking.marks([message.message_id]).get(message.message_id)
        if mark is None or mark.due_ms is None or not mark.moves(waiting.copy.first_sent_ms):
            return conflict
        (error,) = self._parking.park([replace(message, due_ms=mark.due_ms)])
        return error

    def _parkable(
        self, to_park: Sequence[tuple[_Waiting, Park]]
    ) -> tuple[list[tuple[_Waiting, Park]], list[StoredMessage], list[Move]]:
        """What a store can keep, in its form; the rest (an id no sender may give) is rejected."""
        fit: list[tuple[_Waiting, Park]] = []
        messages: list[StoredMessage] = []
        rejects: list[Move] = []
        for waiting, decision in to_park:
            try:
                messages.append(parked(waiting.copy, waiting.message, self._endpoint.address))
                fit.append((waiting, decision))
            except InvalidMessage as error:
                rejects.append(self._reject(waiting.position, waiting.copy, str(error)))
        return fit, messages, rejects


def _moved(waiting: _Waiting, mark: Mark | None) -> _Waiting:
    if mark is None or mark.due_ms is None or not mark.moves(waiting.copy.first_sent_ms):
        return waiting
    return replace(waiting, message=replace(waiting.message, due_ms=mark.due_ms))
