"""Copies in hand: hidden from other consumers while a worker works on them, and soon visible if it dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqsdelay.core.delay import Clock
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.limits import DELAY_QUEUE_VISIBILITY_SECONDS, WORKER_VISIBILITY_SECONDS
from sqsdelay.ports.queues import Failure, Queues
from sqsdelay.relaying.outcomes import Outcome
from sqsdelay.relaying.relay import Relay

logger = logging.getLogger(__name__)

BEATS: Final = 3
"""Extensions that may be tried before the visibility timeout ends."""

GATHERED_SECONDS: Final = 10.0
"""How long a copy may wait for others in memory. What is parked is due hours later."""

MAX_GATHERED: Final = 5_000
"""Copies of one worker: SQS lets 120,000 be in flight."""


@dataclass(eq=False, slots=True)
class InHand:
    """One received batch, or what is left of it; times are local monotonic seconds.

    ``hidden_until`` is when others may receive it, ``touched_at`` when work on it last went on. What is
    ``gathered`` waits for others, to be parked with them.
    """

    queue_url: str
    copies: Sequence[ReceivedMessage]
    clock: Clock
    received_at: float
    hidden_until: float
    touched_at: float
    gathered: bool = False

    def held(self) -> bool:
        """Whether no other consumer can have received it yet."""
        self.touched_at = self.clock.monotonic()
        return self.touched_at < self.hidden_until


class Intake:
    """Receives from a relay's queue for a worker, and keeps hidden what the relay works on. Thread-safe.

    Received copies stay hidden for ``seconds``, 1 to 180; for longer only while `extend` is called, and never
    for more than 180 s in all: a second attempt on a copy must still deduplicate against the first. Copies
    for a store that takes groups are gathered from all receivers, and stay in their queue until the store has
    confirmed them.
    """

    def __init__(
        self,
        queues: Queues,
        relay: Relay,
        clock: Clock,
        *,
        seconds: int = WORKER_VISIBILITY_SECONDS,
    ) -> None:
        self.relay = relay
        self.most = relay.stored_at_once
        self._queues = queues
        self._clock = clock
        self._seconds = seconds
        self._in_hand: list[InHand] = []
        self._lock = threading.RLock()

    @property
    def beat_seconds(self) -> float:
        """How often `extend` is to be called."""
        return self._seconds / BEATS

    def receive(self, *, wait_seconds: int) -> InHand:
        """Receive a batch, which may be empty; `settle` or `release` ends the work on it.

        Raises:
            QueueMissing, QueueUnavailable
        """
        url = self._queues.url(self.relay.source)
        copies = self._queues.receive_batch(
            url, wait_seconds=wait_seconds, visibility_seconds=self._seconds
        )
        now = self._clock.monotonic()
        batch = InHand(url, copies, self._clock, now, now + self._seconds, now)
        if copies:
            with self._lock:
                self._in_hand.append(batch)
        return batch

    def settle(self, batch: InHand, *, gather: bool = False) -> list[Outcome]:
        """Have the relay work on a batch, but for what is gathered."""
        far = [copy for copy in batch.copies if gather and self.most and self.relay.parks(copy)]
        gone = set(map(id, far))
        near = [copy for copy in batch.copies if id(copy) not in gone]
        try:
            outcomes = self.relay.process(near, held=batch.held) if near else []
            if far:
                batch.copies, batch.gathered = far, True
            return outcomes
        finally:
            if not batch.gathered:
                self._done(batch)

    def park(self, *, only_if_full: bool = False) -> list[Outcome]:
        """Park all that is gathered in one call, now or if it is time to; one of the receivers does it."""
        most = min(self.most or 0, MAX_GATHERED)
        with self._lock:
            batches = [batch for batch in self._in_hand if batch.gathered]
            count = sum(len(batch.copies) for batch in batches)
            if not count or (only_if_full and count < most and self.seconds_left() != 0):
                return []
            for batch in batches:
                batch.gathered = False
        # Parked by two, a message would be twice in a store that cannot tell.
        ours = [batch for batch in batches if batch.held()]
        copies = [copy for batch in ours for copy in batch.copies]
        try:
            # Each is asked, since that counts as work going on.
            return self.relay.process(copies, held=lambda: all(list(map(InHand.held, ours))))
        finally:
            self._done(*batches)

    def seconds_left(self) -> float | None:
        """How long more may be waited for; None while nothing is gathered."""
        with self._lock:
            times = [b.received_at + GATHERED_SECONDS for b in self._in_hand if b.gathered]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    def release(self, batch: InHand) -> None:
        """Let others have at once what nobody here will work on."""
        self._done(batch)
        if batch.copies:
            self._hide(batch, 0)

    def last_touched(self) -> float | None:
        """When work on any batch last went on; None when none is in hand."""
        with self._lock:
            return max((batch.touched_at for batch in self._in_hand), default=None)

    def extend(self) -> None:
        """Keep hidden, for as long again, what is still worked on and soon visible."""
        with self._lock:
            batches = list(self._in_hand)
        for batch in batches:
            now = self._clock.monotonic()
            most = batch.received_at + DELAY_QUEUE_VISIBILITY_SECONDS - now
            seconds = int(min(self._seconds, most))
            due = batch.hidden_until - now < self._seconds - self.beat_seconds / 2
            if not (due and now < batch.hidden_until < now + seconds):
                continue
            hidden = self._hide(batch, seconds)
            if None in hidden:
                # Those that failed are deleted by now, or are received elsewhere when their time is up.
                batch.hidden_until = now + seconds
            else:
                logger.warning(
                    "copies in hand come back to other consumers, their visibility is not extended: %s",
                    one_line(hidden[0].error if hidden[0] else ""),
                )

    def _hide(self, batch: InHand, seconds: int) -> Sequence[Failure | None]:
        entries = [(copy, seconds) for copy in batch.copies]
        return self._queues.hide_batch(batch.queue_url, entries)

    def _done(self, *batches: InHand) -> None:
        """Their copies are deleted, or were told when to come back."""
        gone = set(batches)
        with self._lock:
            self._in_hand = [each for each in self._in_hand if each not in gone]
