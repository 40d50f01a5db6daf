"""Due messages that wait in a timeout manager's memory for their next attempt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from sqsdelay.core.clock import Clock
from sqsdelay.core.stored_message import StoredMessage

_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Waiting:
    destination: str
    failures: int
    at: float


class TimeoutRetries:
    """Which messages are tried again, and when. The messages themselves stay in the store.

    So nothing is lost with the process, and no queue fills up with waiting ids.

    Args:
        clock: its monotonic time is used.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._waiting

    def failures(self, message_id: str) -> int:
        """How many attempts on a message have failed."""
        waiting = self._waiting.get(message_id)
        return 0 if waiting is None else waiting.failures

    def add(self, message: StoredMessage, *, failures: int, seconds: float) -> bool:
        """Schedule another attempt; False if too many are waiting to remember this one.

        The older ones are finished first: if new ones displaced them, none would ever
        reach its last attempt.
        """
        if message.message_id not in self._waiting and len(self._waiting) >= _REMEMBERED:
            return False
        at = self._clock.monotonic() + seconds
        self._waiting[message.message_id] = _Waiting(message.destination, failures, at)
        self._waiting.move_to_end(message.message_id)
        return True

    def remove(self, message_ids: Iterable[str]) -> None:
        """Nothing more needs to be done for them."""
        for message_id in message_ids:
            self._waiting.pop(message_id, None)

    def due(self, limit: int, *, except_destinations: Collection[str]) -> list[str]:
        """Ids to try now. They stay here until they are removed or added again."""
        now = self._clock.monotonic()
        ready = (
            message_id
            for message_id, waiting in self._waiting.items()
            if waiting.at <= now and waiting.destination not in except_destinations
        )
        return [message_id for message_id, _ in zip(ready, range(limit), strict=False)]

    def seconds_to_next(self, *, except_destinations: Collection[str]) -> float | None:
        """Seconds until the next attempt, 0 if one is due; None if there is none."""
        now = self._clock.monotonic()
        left = (
            max(0.0, waiting.at - now)
            for waiting in self._waiting.values()
            if waiting.destination not in except_destinations
        )
        return min(left, default=None)
