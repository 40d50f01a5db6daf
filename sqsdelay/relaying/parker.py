"""The parker: empties the parking queue into a store, thousands of messages in one call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqsdelay.core import outgoing
from sqsdelay.core.copy_group import unpacked
from sqsdelay.core.delayed_message import DelayedMessage
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.hop import Requeue
from sqsdelay.core.one_line import one_line
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import MessageConflict, SqsDelayError
from sqsdelay.limits import DELAY_QUEUE_VISIBILITY_SECONDS, MAX_BATCH_ENTRIES
from sqsdelay.ports.queues import Queues
from sqsdelay.relaying.forwarding import Forwarding
from sqsdelay.relaying.mover import Held, Move
from sqsdelay.relaying.outcome import Outcome, Status
from sqsdelay.relaying.relay import Relay, ToStore
from sqsdelay.relaying.settings import RelaySettings

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 2**20
"""Of groups that are parked in one call: the copies in them take several times as much memory."""


class _FromParkingQueue(Relay):
    """What is left of a hop once a copy lies in the parking queue."""

    def __init__(self, queues: Queues, endpoint: Endpoint, settings: RelaySettings) -> None:
        super().__init__(queues, endpoint, replace(settings, through_parking_queue=False))
        self.source = endpoint.parking_queue

    def _requeue(
        self,
        copy: ReceivedMessage,
        message: DelayedMessage,
        decision: Requeue,
        now_ms: int,  # noqa: ARG002 - no queue has held it for a hop
    ) -> Move:
        """Moved to so near a due time meanwhile that it hops on."""
        return Move(
            copy,
            self._endpoint.delay_queue,
            outgoing.requeued(copy, message, decision.remaining_seconds),
            Outcome(copy, Status.REQUEUED, message.due_ms),
        )

    def _not_parked(self, each: ToStore, error: SqsDelayError) -> Move | Outcome:
        if isinstance(error, MessageConflict):
            return super()._not_parked(each, error)
        # It waits here as well as in the delay queue, and for less.
        return self._failed(each.copy, str(error), each.message.due_ms)

    def _hide(self, source_url: str, failed: list[Outcome]) -> None:
        """Its group comes back after the visibility timeout."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A received message of the parking queue and the copies in it."""

    message: ReceivedMessage
    copies: Sequence[ReceivedMessage]


class Parker:
    """Parks what the delay consumer has forwarded to an endpoint's parking queue.

    A group is deleted only when the store has confirmed its copies, or their next queue has. Whoever is
    killed in between leaves it to the next, who parks it again.

    Args:
        queues: the queue service.
        settings: how to relay what cannot be parked any more; with ``parking``.
    """

    def __init__(self, queues: Queues, endpoint: Endpoint, settings: RelaySettings) -> None:
        self._queues = queues
        self._relay = _FromParkingQueue(queues, endpoint, settings)
        self._forwarding = Forwarding(queues, endpoint)
        self._most = self._relay.stored_at_once or MAX_BATCH_ENTRIES

    def park(self, *, more: Held, held: Held) -> list[Outcome]:
        """Park until the queue hands out nothing more.

        Args:
            more: whether there is time to receive more, and to park it.
            held: whether there is time for one more call. From the first receive until it says no, no
                more than 180 s may pass: then others are given the same groups.

        Returns:
            An outcome for each copy.

        Raises:
            QueueMissing, QueueUnavailable: nothing more could be received.
        """
        url = self._queues.url(self._relay.source)
        outcomes: list[Outcome] = []
        while more() and (groups := self._receive(url, more)):
            outcomes += self._settle(url, groups, held)
        return outcomes

    def _receive(self, url: str, more: Held) -> list[_Group]:
        groups: list[_Group] = []
        copies = size = 0
        while copies < self._most and size < MAX_BYTES and more():
            received = self._queues.receive_batch(
                url, wait_seconds=1, visibility_seconds=DELAY_QUEUE_VISIBILITY_SECONDS
            )
            if not received:
                break
            groups += [_Group(message, unpacked(message)) for message in received]
            copies = sum(len(group.copies) for group in groups)
            size = sum(len(group.message.body) for group in groups)
        return groups

    def _settle(self, url: str, groups: Sequence[_Group], held: Held) -> list[Outcome]:
        copies = [copy for group in groups for copy in group.copies]
        outcomes = self._relay.process(copies, delete=False, held=held)
        found = iter(outcomes)
        done = [
            group.message
            for group in groups
            if self._is_done([next(found) for _ in group.copies], held)
        ]
        for start in range(0, len(done), MAX_BATCH_ENTRIES):
            some = done[start : start + MAX_BATCH_ENTRIES]
            for failure in self._queues.delete_batch(url, some):
                if failure is not None:
                    # Parked again, a message is one when its slot's objects are merged.
                    logger.warning("a group is not deleted: %s", one_line(failure.error))
        return outcomes

    def _is_done(self, outcomes: Sequence[Outcome], held: Held) -> bool:
        """Whether a group may go: its copies are settled, and those that are not are in another."""
        failed = [outcome.copy for outcome in outcomes if not outcome.settled]
        if not failed:
            return True
        if len(failed) == len(outcomes) or not held():
            return False
        return not any(self._forwarding.forward(failed))
