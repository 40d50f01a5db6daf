"""The timeouts queue's receiver: stores what arrives, or sends it on if it is already due."""

from __future__ import annotations

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import CriticalError, InvalidMessage, StoreError
from sqsdelay.timeouts.settings import TimeoutStatus
from sqsdelay.timeouts.task import PAUSE_SECONDS, Delivered, Refused, TimeoutParts, TimeoutTask


class Arrivals(TimeoutTask):
    """Stores arriving messages."""

    def __init__(self, parts: TimeoutParts) -> None:
        super().__init__(parts)
        self._storing = self._breaker("storing")

    def turn(self) -> int:
        """Receive one batch and store it.

        Returns:
            How many were received.

        Raises:
            StoreError, CriticalError: the storage failed; the messages come back.
            QueueMissing, QueueUnavailable
        """
        received = self._transport.receive_timeouts(wait_seconds=self._parts.settings.wait_seconds)
        readable: list[Delivered] = [(d, m) for d, m in self._readable(received)]
        now_ms = self._transport.now_ms()
        sent, failed = self._sent([(d, m) for d, m in readable if m.due_ms <= now_ms])
        self._done(TimeoutStatus.SENT_ON, sent)
        self._reject([(d, m, f"{f.code}: {f.error}") for (d, m), f in failed if not f.transient])
        # Overdue in the store, they are dispatched as soon as their destination takes them.
        waiting = [each for each, failure in failed if failure.transient]
        self._keep([(d, m) for d, m in readable if m.due_ms > now_ms] + waiting)
        return len(received)

    def _reject(self, refused: list[Refused]) -> None:
        rejected, left = self._rejected(refused)
        self._done(TimeoutStatus.REJECTED, rejected)
        self._give_back([delivery for delivery, _ in left], seconds=PAUSE_SECONDS)

    def _keep(self, arrived: list[Delivered]) -> None:
        if not arrived:
            return
        try:
            with self._storage(self._storing):
                hopeless = self._stored([message for _, message in arrived])
        except (StoreError, CriticalError):
            self._give_back([delivery for delivery, _ in arrived], seconds=PAUSE_SECONDS)
            raise
        kept = [(d, m) for d, m in arrived if m.message_id not in hopeless]
        self._done(TimeoutStatus.STORED, kept)
        refused: list[Refused] = [
            (d, m, hopeless[m.message_id]) for d, m in arrived if m.message_id in hopeless
        ]
        self._reject(refused)

    def _stored(self, messages: list[StoredMessage]) -> dict[str, str]:
        """Store; by message id, why the store can never keep a message (it is too large)."""
        try:
            self._store.store(messages)
        except InvalidMessage as error:
            if len(messages) == 1:
                return {messages[0].message_id: f"{type(error).__name__}: {error}"}
            hopeless: dict[str, str] = {}
            for message in messages:
                hopeless |= self._stored([message])
            return hopeless
        return {}
