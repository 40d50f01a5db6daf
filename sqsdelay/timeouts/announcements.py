"""Which due messages have been announced, so that each id is in the queue once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from sqsdelay.core.clock import Clock
from sqsdelay.core.stored_message import StoredMessage

_REMEMBERED: Final = 100_000


class Announcements:
    """What one process has announced, or seen announced, and not finished. Thread-safe.

    Beyond 100,000, the oldest are forgotten and may be announced again.

    Args:
        clock: its monotonic time is used.
        lost_after_seconds: after this long unseen, an announcement counts as lost.
    """

    def __init__(self, clock: Clock, *, lost_after_seconds: float) -> None:
        self._clock = clock
        self._lost_after_seconds = lost_after_seconds
        self._outstanding: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, messages: Iterable[StoredMessage]) -> None:
        """They have just been announced, or seen."""
        now = self._clock.monotonic()
        with self._lock:
            for message in messages:
                self._outstanding[message.message_id] = (message.due_ms, now)
                self._outstanding.move_to_end(message.message_id)
            while len(self._outstanding) > _REMEMBERED:
                self._outstanding.popitem(last=False)

    def remove(self, message_ids: Iterable[str]) -> None:
        """They are finished, or must be announced again."""
        with self._lock:
            for message_id in message_ids:
                self._outstanding.pop(message_id, None)

    def missing(self, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Those to announce. One that was rescheduled is announced again."""
        now = self._clock.monotonic()
        with self._lock:
            known = {m.message_id: self._outstanding.get(m.message_id) for m in messages}
        return [m for m in messages if not self._waits(m, known[m.message_id], now)]

    def _waits(self, message: StoredMessage, known: tuple[int, float] | None, now: float) -> bool:
        if known is None:
            return False
        due_ms, seen_at = known
        return due_ms == message.due_ms and now - seen_at < self._lost_after_seconds
