"""The timeouts dispatcher queue's receiver: looks up an id, sends its message, removes it, or tries later."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqsdelay.core.backoff import retry_seconds
from sqsdelay.core.clock import Clock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.destinations import unreadable
from sqsdelay.errors import CriticalError, StoreError
from sqsdelay.ports.queues import Delivery, Failure
from sqsdelay.timeouts.task import (
    PAUSE_SECONDS,
    Delivered,
    Refused,
    TimeoutParts,
    TimeoutStatus,
    TimeoutTask,
)

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


_UNREMOVED: Final = 10_000

_RETRIES_AT_ONCE: Final = 100

_SOON_MS: Final = 5_000
"""Announced, and due so soon: clocks differ, or it was moved by a moment. The id waits for it."""


class TimeoutDispatch(TimeoutTask):
    """Dispatches announced messages.

    A message whose destination fails waits for its next attempt here and in the store, not in the queue.
    """

    def __init__(self, parts: TimeoutParts) -> None:
        super().__init__(parts)
        self._finding = self._breaker("finding")
        self._removing = self._breaker("removing")
        self._retries = TimeoutRetries(parts.clock)
        self._unremoved: OrderedDict[tuple[str, int], TimeoutStatus] = OrderedDict()

    def turn(self) -> int:
        """Receive one batch of ids and dispatch their messages, and those whose retry is due.

        Returns:
            How many were received or tried again.

        Raises:
            StoreError, CriticalError: the storage failed; the ids come back, and what was sent is
                remembered and not sent again.
            QueueMissing, QueueUnavailable
        """
        received = self._transport.receive_due_ids(wait_seconds=self._wait_seconds())
        waiting: dict[str, Delivery[Any] | None] = {}
        for delivery, message_id in self._readable(received):
            if message_id in waiting or message_id in self._retries:
                self._settle([delivery])
            else:
                waiting[message_id] = delivery
        self._dispatch(self._look_up(waiting))
        destinations = self._parts.destinations
        away = destinations.out_of_reach() - destinations.missing()
        again = self._retries.due(_RETRIES_AT_ONCE, except_destinations=away)
        self._dispatch(self._look_up(dict.fromkeys(again)))
        return len(received) + len(again)

    def _wait_seconds(self) -> int:
        """The long poll, shortened to the next retry."""
        destinations = self._parts.destinations
        away = destinations.out_of_reach() - destinations.missing()
        waits = (
            self._retries.seconds_to_next(except_destinations=away),
            destinations.seconds_to_next(),
        )
        soonest = min((seconds for seconds in waits if seconds is not None), default=math.inf)
        longest = self._parts.settings.wait_seconds
        return longest if soonest >= longest else math.ceil(soonest)

    def _look_up(self, waiting: Mapping[str, Delivery[Any] | None]) -> list[Delivered]:
        """The messages that are in the store and due. Other ids are dropped."""
        if not waiting:
            return []
        try:
            with self._storage(self._finding):
                found = {message_id: self._store.find(message_id) for message_id in waiting}
        except (StoreError, CriticalError):
            self._give_back(waiting.values(), seconds=PAUSE_SECONDS)
            raise
        there = {message_id: m for message_id, m in found.items() if m is not None}
        self._parts.announcements.add(there.values())
        now_ms = self._transport.now_ms()
        due: list[Delivered] = []
        dropped: list[str] = []
        for message_id, delivery in waiting.items():
            message = there.get(message_id)
            if message is None or message.due_ms > now_ms + _SOON_MS:
                dropped.append(message_id)
            elif message.due_ms <= now_ms:
                due.append((delivery, message))
            elif delivery is not None:
                self._give_back([delivery], seconds=math.ceil((message.due_ms - now_ms) / 1000))
        if dropped:
            self._settle(waiting[message_id] for message_id in dropped)
            self._forget(dropped)
            self._tell(TimeoutStatus.DROPPED, dropped)
        return due

    def _dispatch(self, due: list[Delivered]) -> None:
        before = [(d, m) for d, m in due if _key(m) in self._unremoved]
        new = [(d, m) for d, m in due if _key(m) not in self._unremoved]
        sent, failed = self._sent([(d, m) for d, m in new if m.unreadable is None])
        self._unremoved |= {_key(message): TimeoutStatus.DISPATCHED for _, message in sent}
        aside = [(each, f) for each in new if (f := unreadable(each[1])) is not None]
        refused = self._to_reject(failed + aside)
        rejected, left = self._rejected(refused)
        for delivery, message in left:
            failures = self._retries.failures(message.message_id)
            self._try_later(delivery, message, failures + 1, seconds=retry_seconds(failures))
        self._unremoved |= {_key(message): TimeoutStatus.REJECTED for _, message in rejected}
        while len(self._unremoved) > _UNREMOVED:
            self._unremoved.popitem(last=False)
        self._remove(before + sent + rejected)

    def _to_reject(self, failed: list[tuple[Delivered, Failure]]) -> list[Refused]:
        """What is not tried again. An outage does not count against a message."""
        refused: list[Refused] = []
        for (delivery, message), failure in failed:
            failures = self._retries.failures(message.message_id)
            if failure.outage:
                # As soon as its destination is in reach.
                self._try_later(delivery, message, failures, seconds=0)
            elif failure.transient and failures < self._parts.settings.number_of_retries:
                seconds = retry_seconds(failures)
                self._log_retry(message, failure, seconds)
                self._try_later(delivery, message, failures + 1, seconds=seconds)
            else:
                refused.append((delivery, message, f"{failure.code}: {failure.error}"))
        return refused

    def _try_later(
        self,
        delivery: Delivery[Any] | None,
        message: StoredMessage,
        failures: int,
        *,
        seconds: float,
    ) -> None:
        """Drop the id; the message is in the store, and is announced again if this process dies."""
        if not self._retries.add(message, failures=failures, seconds=seconds):
            # It is announced again when its hold in the store is over.
            self._forget([message.message_id])
        self._settle([delivery])

    def _remove(self, handled: list[Delivered]) -> None:
        """Remove from the store, and only then drop the ids."""
        if not handled:
            return
        try:
            with self._storage(self._removing):
                removed = self._store.cancel([message.message_id for _, message in handled])
                gone = [
                    done or self._store.find(message.message_id) is None
                    for done, (_, message) in zip(removed, handled, strict=True)
                ]
        except (StoreError, CriticalError):
            self._give_back([delivery for delivery, _ in handled], seconds=PAUSE_SECONDS)
            raise
        for (delivery, message), away in zip(handled, gone, strict=True):
            if away:
                self._forget([message.message_id])
                self._done(self._unremoved.pop(_key(message)), [(delivery, message)])
            elif delivery is not None:
                # It is being announced again at this moment. Next time it is removed, not sent.
                self._give_back([delivery], seconds=PAUSE_SECONDS)
            else:
                failures = self._retries.failures(message.message_id)
                self._try_later(None, message, failures, seconds=PAUSE_SECONDS)

    def _forget(self, message_ids: list[str]) -> None:
        self._retries.remove(message_ids)
        self._parts.announcements.remove(message_ids)


def _key(message: StoredMessage) -> tuple[str, int]:
    return message.message_id, message.due_ms
