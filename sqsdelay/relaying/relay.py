"""The delay consumer's work on one batch: hand over, requeue, park, cancel or reject each copy."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqsdelay.core import outgoing
from sqsdelay.core.delay import Decision, HandOver, Park, Reject, decide, too_far
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DUE_AT, text_of
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import (
    DelayedMessage,
    ReceivedMessage,
    misdirected,
    read_delay,
    read_fifo_ids,
    whole_number,
)
from sqsdelay.core.stored_message import Amendment, StoredMessage, parked
from sqsdelay.errors import (
    ConfigurationError,
    InvalidMessage,
    MessageConflict,
    SqsDelayError,
    StoreUnavailable,
)
from sqsdelay.parking.parking import Stores
from sqsdelay.ports.queues import Queues
from sqsdelay.relaying.mover import Move, Mover, Outcome, RelaySettings, Status

logger = logging.getLogger(__name__)


Amendments = Mapping[str, Amendment | None]
"""By message id; None of those that cannot be read."""

UNREAD = "whether it was cancelled or moved cannot be read now"


@dataclass(frozen=True, slots=True)
class ToStore:
    """A copy and the message in the store that would settle it. If there is none, it is requeued, with so
    many seconds to wait."""

    copy: ReceivedMessage
    message: DelayedMessage
    stored: StoredMessage
    remaining_seconds: int


class Relay(Mover):
    """Moves delayed messages one hop on: back to the delay queue, to the endpoint, into the store, or
    to the error queue.

    Args:
        queues: the queue service.
        endpoint: whose delay queue is served.
        settings: how to relay; the hop is the delay queue's actual delivery delay.
    """

    def __init__(
        self, queues: Queues, endpoint: Endpoint, settings: RelaySettings | None = None
    ) -> None:
        settings = settings or RelaySettings()
        super().__init__(queues, endpoint, endpoint.delay_queue, settings)
        self.hop_seconds = settings.hop_seconds
        parking = settings.parking
        self._parking = None if parking is None else Stores(parking).parking(endpoint.name)

    @property
    def stored_at_once(self) -> int | None:
        """How many messages the store wants in one call; None without such a store."""
        return None if self._parking is None else self._parking.store.stored_at_once

    @property
    def _hops(self) -> bool:
        """Whether what is served is the delay queue, and not the parking queue."""
        return self.source == self._endpoint.delay_queue

    def parks(self, copy: ReceivedMessage) -> bool:
        """Whether a copy is so far away that it is parked, unless an amendment says otherwise."""
        message = self._read(copy)
        try:
            return isinstance(message, DelayedMessage) and isinstance(
                self._next(message, self._broker_now(copy)), Park
            )
        except SqsDelayError:
            return False

    def _next(self, message: DelayedMessage, now_ms: int) -> Decision:
        after = None if self._parking is None else self._parking.after_seconds
        hop = self.hop_seconds
        return decide(message.due_ms, now_ms, hop_seconds=hop, park_after_seconds=after)

    def _decide(self, copies: Sequence[ReceivedMessage]) -> list[Move | Outcome]:
        """Amendments are read, and messages are parked, in one call for all copies."""
        read = [(copy, self._read(copy)) for copy in copies]
        amendments = self._amendments([m for _, m in read if isinstance(m, DelayedMessage)])
        decided = [
            self._reject(copy, message.reason)
            if isinstance(message, Reject)
            else self._or_failed(copy, self._decide_one, message, amendments)
            for copy, message in read
        ]
        parked = iter(self._park([each for each in decided if isinstance(each, ToStore)]))
        return [next(parked) if isinstance(each, ToStore) else each for each in decided]

    def _read(self, copy: ReceivedMessage) -> DelayedMessage | Reject:
        return misdirected(copy, self._endpoint) or read_delay(copy)

    def _amendments(self, messages: Sequence[DelayedMessage]) -> Amendments:
        if self._parking is None or not messages:
            return {}
        return self._parking.amendments([message.message_id for message in messages])

    def _decide_one(
        self, copy: ReceivedMessage, message: DelayedMessage, amendments: Amendments
    ) -> Move | Outcome | ToStore:
        amendment = amendments.get(message.message_id)
        if amendment is not None and amendment.cancels(copy.first_sent_ms):
            return Outcome(copy, Status.CANCELLED, message.due_ms)
        if amendment is not None:
            due_ms = amendment.new_due_ms(copy.first_sent_ms)
            message = message if due_ms is None else replace(message, due_ms=due_ms)
        now_ms = self._broker_now(copy)
        problem = too_far(message.due_ms, now_ms, self._settings.max_delay_seconds)
        if problem is not None:
            return self._reject(copy, problem)
        decision = self._next(message, now_ms)
        if message.message_id in amendments and amendment is None:
            # It hops on, or stays here, until it is known.
            if isinstance(decision, HandOver) or not self._hops:
                raise StoreUnavailable(UNREAD)
            return self._requeue(copy, message, decision.remaining_seconds, now_ms)
        if isinstance(decision, HandOver):
            seconds = decision.delay_seconds
            late_ms = now_ms + seconds * 1000 - message.due_ms
            return Move(
                self._endpoint.hand_over_queue,
                outgoing.handed_over(copy, message, self._endpoint, delay_seconds=seconds),
                Outcome(copy, Status.HANDED_OVER, message.due_ms, seconds, late_ms),
            )
        if not isinstance(decision, Park):
            return self._requeue(copy, message, decision.remaining_seconds, now_ms)
        try:
            stored = parked(copy, message, self._endpoint.address)
        except InvalidMessage as error:  # An id no sender may give: no store can keep it.
            return self._reject(copy, str(error))
        return ToStore(copy, message, stored, decision.remaining_seconds)

    def _requeue(
        self, copy: ReceivedMessage, message: DelayedMessage, remaining_seconds: int, now_ms: int
    ) -> Move:
        held_ms = now_ms - (copy.sent_ms or 0)
        if self._hops and 0 <= held_ms < self.hop_seconds * 500:
            # A queue whose delay was taken away would spin messages as fast as we can pay for. The
            # copy comes back after a backoff, and goes on once it has been here for half a hop.
            raise ConfigurationError(
                f"{self.source.name} held a message for {held_ms} ms instead of "
                f"{self.hop_seconds} s; set its DelaySeconds back to {self.hop_seconds}"
            )
        return Move(
            self._endpoint.delay_queue,
            outgoing.requeued(copy, message, remaining_seconds),
            Outcome(copy, Status.REQUEUED, message.due_ms),
        )

    def _park(self, given: Sequence[ToStore]) -> list[Move | Outcome]:
        """Park in one call; what the store does not take hops on, which loses nothing."""
        if self._parking is None or not given:
            return []
        answered = [
            (each, self._met_again(each, is_new) if isinstance(is_new, MessageConflict) else is_new)
            for each, is_new in zip(
                given, self._parking.park([each.stored for each in given]), strict=True
            )
        ]
        # What was there already may be another message of this id, sent after the amendment was left.
        new = {each.message.message_id for each, is_new in answered if is_new is True}
        last_sent: dict[str, int | None] = {}
        for each, _ in sorted(answered, key=lambda one: one[0].copy.first_sent_ms or 0):
            if each.message.message_id in new:
                last_sent[each.message.message_id] = each.copy.first_sent_ms
        cancelled, taken_back = self._parking.apply_amendments(last_sent)
        settled: list[Move | Outcome] = []
        for each, is_new in answered:
            message_id, due_ms = each.message.message_id, each.message.due_ms
            if isinstance(is_new, MessageConflict):
                settled.append(self._reject(each.copy, f"conflict: {is_new}"))
            elif isinstance(is_new, SqsDelayError):
                settled.append(self._or_failed(each.copy, self._hop_instead, each, is_new))
            elif message_id in taken_back:
                settled.append(self._failed(each.copy, UNREAD, due_ms))
            else:
                status = Status.CANCELLED if message_id in cancelled else Status.PARKED
                settled.append(Outcome(each.copy, status, due_ms))
        return settled

    def _hop_instead(
        self, copy: ReceivedMessage, each: ToStore, error: SqsDelayError
    ) -> Move | Outcome:
        if not self._hops:
            # It waits in the parking queue as well as in the delay queue, and for less.
            return self._failed(copy, str(error), each.message.due_ms)
        name, why = one_line(each.message.message_id), one_line(error)
        logger.warning("%s not parked, it hops on: %s", name, why)
        return self._requeue(copy, each.message, each.remaining_seconds, self._broker_now(copy))

    def _met_again(self, each: ToStore, conflict: MessageConflict) -> bool | SqsDelayError:
        """No error where the store has the same message, rescheduled since its amendments were read."""
        assert self._parking is not None
        message_id, amendments = each.message.message_id, self._amendments([each.message])
        amendment = amendments.get(message_id)
        if amendment is None and message_id in amendments:
            return StoreUnavailable(UNREAD)
        due_ms = None if amendment is None else amendment.new_due_ms(each.copy.first_sent_ms)
        if due_ms is None:
            return conflict
        (is_new,) = self._parking.park([replace(each.stored, due_ms=due_ms)])
        return is_new


class DueRelay(Mover):
    """Sends what a FIFO endpoint's due queue hands out on to the FIFO queue.

    Messages received together are sent in the order of their due times. A due queue is a standard
    queue: what it hands out together is SQS's choice, so messages of one group that are due within
    the same seconds may change places.

    Args:
        queues: the queue service.
        endpoint: a FIFO endpoint.
        settings: how to relay.
    """

    def __init__(
        self, queues: Queues, endpoint: Endpoint, settings: RelaySettings | None = None
    ) -> None:
        super().__init__(queues, endpoint, endpoint.due_queue, settings or RelaySettings())

    def _decide(self, copies: Sequence[ReceivedMessage]) -> Iterator[Move | Outcome]:
        for copy in sorted(copies, key=_due_order):
            yield self._or_failed(copy, self._deliver)

    def _deliver(self, copy: ReceivedMessage) -> Move:
        ids = read_fifo_ids(copy)
        if isinstance(ids, Reject):
            return self._reject(copy, ids.reason)
        due_ms = _due_ms(copy)
        late_ms = None if due_ms is None else self._broker_now(copy) - due_ms
        outcome = Outcome(copy, Status.DELIVERED, due_ms, late_ms=late_ms)
        return Move(self._endpoint.queue, outgoing.delivered(copy, ids), outcome)


def _due_ms(copy: ReceivedMessage) -> int | None:
    return whole_number(text_of(copy.attributes, DUE_AT))


def _due_order(copy: ReceivedMessage) -> tuple[int, int]:
    sent_ms, due_ms = copy.sent_ms or 0, _due_ms(copy)
    return (sent_ms if due_ms is None else due_ms, sent_ms)
