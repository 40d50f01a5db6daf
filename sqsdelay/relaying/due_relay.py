"""The last step to a FIFO queue: what is due leaves the due queue with the sender's own ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from sqsdelay.core import fifo
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.hop import Reject
from sqsdelay.core.message import text_of
from sqsdelay.core.received_message import ReceivedMessage, whole_number
from sqsdelay.core.wire import DUE_AT
from sqsdelay.ports.queues import Queues
from sqsdelay.relaying.mover import Move, Mover
from sqsdelay.relaying.outcome import Outcome, Status
from sqsdelay.relaying.settings import RelaySettings


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
            yield self._or_failed(copy, partial(self._deliver, copy))

    def _deliver(self, copy: ReceivedMessage) -> Move:
        ids = fifo.read_fifo_ids(copy)
        if isinstance(ids, Reject):
            return self._reject(copy, ids.reason)
        due_ms = _due_ms(copy)
        late_ms = None if due_ms is None else self._broker_now(copy) - due_ms
        outcome = Outcome(copy, Status.DELIVERED, due_ms, late_ms=late_ms)
        return Move(copy, self._endpoint.queue, fifo.delivered(copy, ids), outcome)


def _due_ms(copy: ReceivedMessage) -> int | None:
    return whole_number(text_of(copy.attributes, DUE_AT))


def _due_order(copy: ReceivedMessage) -> tuple[int, int]:
    sent_ms = copy.sent_ms or 0
    due_ms = _due_ms(copy)
    return (sent_ms if due_ms is None else due_ms, sent_ms)
