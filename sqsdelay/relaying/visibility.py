"""Copies in hand: hidden from other consumers while a worker works on them, and soon visible if it dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqsdelay.core.delay import Clock
from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import DELAY_QUEUE_VISIBILITY_SECONDS, WORKER_VISIBILITY_SECONDS
from sqsdelay.ports.queues import Queues

logger = logging.getLogger(__name__)

BEATS: Final = 3
"""Extensions that may be tried before the visibility timeout ends."""


@dataclass(eq=False, slots=True)
class InHand:
    """One received batch; times are local monotonic seconds.

    ``hidden_until`` is when others may receive it, ``touched_at`` when work on it last went on.
    """

    queue_url: str
    copies: Sequence[ReceivedMessage]
    clock: Clock
    received_at: float
    hidden_until: float
    touched_at: float

    def held(self) -> bool:
        """Whether no other consumer can have received it yet."""
        self.touched_at = self.clock.monotonic()
        return self.touched_at < self.hidden_until

    def age(self) -> float:
        """Seconds since it was received."""
        return self.clock.monotonic() - self.received_at


class Visibility:
    """Receives for a worker, and keeps what it works on hidden. Thread-safe.

    Received copies stay hidden for ``seconds``, 1 to 180; for longer only while `extend` is called, and never
    for more than 180 s in all: a second attempt on a copy must still deduplicate against the first.

    Raises:
        ConfigurationError: ``seconds`` out of range.
    """

    def __init__(
        self, queues: Queues, clock: Clock, *, seconds: int = WORKER_VISIBILITY_SECONDS
    ) -> None:
        if not 1 <= seconds <= DELAY_QUEUE_VISIBILITY_SECONDS:
            raise InvalidSetting(
                f"use 1 to {DELAY_QUEUE_VISIBILITY_SECONDS}: a copy that comes back later is no longer "
                "deduplicated against its first attempt",
                visibility_seconds=seconds,
            )
        self._queues = queues
        self._clock = clock
        self._seconds = seconds
        self._in_hand: set[InHand] = set()
        self._lock = threading.Lock()

    @property
    def beat_seconds(self) -> float:
        """How often `extend` is to be called."""
        return self._seconds / BEATS

    def receive(self, queue: QueueRef, *, wait_seconds: int) -> InHand:
        """Receive a batch, which may be empty; `done` ends the work on it.

        Raises:
            QueueMissing, QueueUnavailable
        """
        queue_url = self._queues.url(queue)
        copies = self._queues.receive_batch(
            queue_url, wait_seconds=wait_seconds, visibility_seconds=self._seconds
        )
        now = self._clock.monotonic()
        batch = InHand(queue_url, copies, self._clock, now, now + self._seconds, now)
        if copies:
            with self._lock:
                self._in_hand.add(batch)
        return batch

    def done(self, batch: InHand) -> None:
        """Its copies are deleted, or were told when to come back."""
        with self._lock:
            self._in_hand.discard(batch)

    def divide(self, batch: InHand, copies: Sequence[ReceivedMessage]) -> tuple[InHand, InHand]:
        """These copies of a batch, and the others, as batches of their own."""
        chosen = set(map(id, copies))
        others = [copy for copy in batch.copies if id(copy) not in chosen]
        parts = replace(batch, copies=copies), replace(batch, copies=others)
        with self._lock:
            self._in_hand.discard(batch)
            self._in_hand.update(part for part in parts if part.copies)
        return parts

    def release(self, batch: InHand) -> None:
        """Let others have at once what nobody here will work on."""
        self.done(batch)
        if batch.copies:
            self._queues.hide_batch(batch.queue_url, [(copy, 0) for copy in batch.copies])

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
            seconds = int(min(self._seconds, DELAY_QUEUE_VISIBILITY_SECONDS - batch.age()))
            due = batch.hidden_until - now < self._seconds - self.beat_seconds / 2
            if not (due and now < batch.hidden_until < now + seconds):
                continue
            entries = [(copy, seconds) for copy in batch.copies]
            hidden = self._queues.hide_batch(batch.queue_url, entries)
            if None in hidden:
                # Those that failed are deleted by now, or are received elsewhere when their time is up.
                batch.hidden_until = now + seconds
            else:
                logger.warning(
                    "copies in hand come back to other consumers, their visibility is not extended: %s",
                    one_line(hidden[0].error if hidden[0] else ""),
                )
