"""The look for due messages: their ids are sent to the timeouts dispatcher queue."""

from __future__ import annotations

import logging
import threading
from typing import Final

from sqsdelay.dispatcher import seconds_to_sleep, wait_for
from sqsdelay.errors import QueueUnavailable, StoreError
from sqsdelay.timeout_settings import TimeoutStatus
from sqsdelay.timeout_task import PAUSE_SECONDS, TimeoutParts, TimeoutTask

logger = logging.getLogger(__name__)

_FIRST_IDLE_SECONDS: Final = 0.25


class Announcer(TimeoutTask):
    """Announces due messages."""

    def __init__(self, parts: TimeoutParts) -> None:
        super().__init__(parts)
        self._fetching = self._breaker("fetching")
        self._poll_seconds = parts.settings.poll_seconds or parts.store.poll_seconds
        self._held: list[str] = []
        self._next_due_ms: int | None = None

    def turn(self) -> int:
        """Announce one batch of due messages.

        They are held in the store before, so that each is announced once; a process that dies just
        then delays them until they are announced again.

        Returns:
            How many were announced.

        Raises:
            StoreError, CriticalError: the storage failed.
            QueueUnavailable: some were not announced; the next turn begins with them.
        """
        if not self._held:
            self._held = self._hold_due()
        outcomes = self._transport.announce(self._held) if self._held else []
        told = list(zip(self._held, outcomes, strict=True))
        self._held = [message_id for message_id, failure in told if failure is not None]
        announced = [message_id for message_id, failure in told if failure is None]
        self._tell(TimeoutStatus.ANNOUNCED, announced)
        for _, failure in told:
            if failure is not None:
                raise QueueUnavailable(f"due messages not announced: {failure.error}")
        return len(announced)

    def _hold_due(self) -> list[str]:
        settings, now_ms = self._parts.settings, self._transport.now_ms()
        with self._storage(self._fetching):
            with self._store.claim(settings.batch_size, due_by_ms=now_ms) as claim:
                ids = [message.message_id for message in claim.messages]
                if ids:
                    claim.hold(ids, seconds=settings.announce_again_seconds)
            if not ids:
                self._next_due_ms = self._store.next_due_ms()
        return ids

    def run(self, stop: threading.Event) -> None:
        """Take turns, and sleep until the next message is due, until ``stop`` is set.

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
                    logger.warning("cannot announce, trying again: %s", error)
                    pause = PAUSE_SECONDS
                wait_for(wake, stop, pause)
                idle_seconds = min(2 * idle_seconds, self._poll_seconds)

    def _until_next(self, idle_seconds: float) -> float:
        now_ms = self._transport.now_ms()
        return seconds_to_sleep(self._next_due_ms, now_ms, ahead_ms=0, at_most=idle_seconds)
