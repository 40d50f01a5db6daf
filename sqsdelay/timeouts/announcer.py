"""Looks for due messages and sends the id of each to the timeouts dispatcher queue, once."""

from __future__ import annotations

import logging
import threading
from math import inf
from typing import Final

from sqsdelay.core.backoff import retry_seconds
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import seconds_to_sleep, wait_for
from sqsdelay.errors import QueueUnavailable, StoreError
from sqsdelay.ports.stores import Claim
from sqsdelay.timeouts.task import PAUSE_SECONDS, Refused, TimeoutParts, TimeoutStatus, TimeoutTask

logger = logging.getLogger(__name__)

_FIRST_IDLE_SECONDS: Final = 0.25


class Announcer(TimeoutTask):
    """Announces due messages."""

    def __init__(self, parts: TimeoutParts) -> None:
        super().__init__(parts)
        self._fetching = self._breaker("fetching")
        self._poll_seconds = parts.settings.poll_seconds or parts.store.poll_seconds
        self._held: list[StoredMessage] = []
        self._next_due_ms: int | None = None

    def turn(self) -> int:
        """Announce one batch of due messages.

        They are first held in the store and remembered, so that each is announced once. If the process
        dies just then, they wait until another announces them.

        Returns:
            How many were announced.

        Raises:
            StoreError, CriticalError: the storage failed.
            QueueUnavailable: some were not announced; the next turn begins with them.
        """
        if not self._held:
            self._held = self._hold_due()
        ids = [message.message_id for message in self._held]
        outcomes = self._transport.announce(ids) if ids else []
        answered = list(zip(self._held, outcomes, strict=True))
        self._held = [message for message, failure in answered if failure is not None]
        announced = [message for message, failure in answered if failure is None]
        self._parts.announcements.add(announced)
        self._tell(TimeoutStatus.ANNOUNCED, [message.message_id for message in announced])
        for _, failure in answered:
            if failure is not None:
                raise QueueUnavailable(f"due messages not announced: {failure.error}")
        return len(announced)

    def _hold_due(self) -> list[StoredMessage]:
        """What is due and not announced yet, except for destinations that are out of reach."""
        settings, now_ms = self._parts.settings, self._transport.now_ms()
        destinations = self._parts.destinations
        away = destinations.out_of_reach() - destinations.missing()
        with self._storage(self._fetching):
            with self._store.claim(
                settings.batch_size, due_by_ms=now_ms, except_destinations=away
            ) as claim:
                due = [message for message in claim.messages if message.unreadable is None]
                if due:
                    ids = [message.message_id for message in due]
                    claim.hold(ids, seconds=settings.announce_again_seconds)
                aside = self._put_aside(claim)
            missing = self._parts.announcements.missing(due)
            if not missing:
                self._next_due_ms = self._store.next_due_ms(except_destinations=away)
        self._tell(TimeoutStatus.REJECTED, aside)
        return missing

    def _put_aside(self, claim: Claim) -> list[str]:
        """Reject unreadable rows; returns the ids of those that are in the error queue."""
        refused: list[Refused] = [
            (None, m, f"Unreadable: {m.unreadable}") for m in claim.messages if m.unreadable
        ]
        rejected, left = self._rejected(refused)
        ids = [message.message_id for _, message in rejected]
        if ids:
            claim.remove(ids)
        for _, message in left:
            claim.count_failures(
                [message.message_id], retry_after_seconds=retry_seconds(message.failures)
            )
        return ids

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set: announce a batch, then sleep until the next message is due.

        Raises:
            CriticalError
        """
        wake = threading.Event()
        idle_seconds = _FIRST_IDLE_SECONDS
        with self._store.watch(wake.set):
            while not stop.is_set():
                wake.clear()
                try:
                    if self.turn():
                        idle_seconds = _FIRST_IDLE_SECONDS
                        continue
                    pause = self._until_next(idle_seconds)
                except (StoreError, QueueUnavailable) as error:
                    logger.warning("cannot announce, trying again: %s", one_line(error))
                    pause = PAUSE_SECONDS
                wait_for(wake, stop, pause)
                idle_seconds = min(2 * idle_seconds, self._poll_seconds)

    def _until_next(self, idle_seconds: float) -> float:
        now_ms = self._transport.now_ms()
        at_most = min(idle_seconds, self._parts.destinations.seconds_to_next() or inf)
        return seconds_to_sleep(self._next_due_ms, now_ms, ahead_ms=0, at_most=at_most)
