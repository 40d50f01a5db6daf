"""The timeouts dispatcher queue's receiver: an id is looked up, its message sent and removed."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sqsdelay.errors import CriticalError, StoreError
from sqsdelay.ports import Delivery
from sqsdelay.stored import StoredMessage
from sqsdelay.timeout_settings import TimeoutStatus
from sqsdelay.timeout_task import PAUSE_SECONDS, Delivered, TimeoutParts, TimeoutTask

_REMEMBERED: Final = 10_000


class TimeoutDispatch(TimeoutTask):
    """Dispatches announced messages."""

    def __init__(self, parts: TimeoutParts) -> None:
        super().__init__(parts)
        self._finding = self._breaker("finding")
        self._removing = self._breaker("removing")
        self._unremoved: OrderedDict[tuple[str, int], TimeoutStatus] = OrderedDict()

    def turn(self) -> int:
        """Receive one batch of ids and dispatch their messages.

        Returns:
            How many ids were received.

        Raises:
            StoreError, CriticalError: the storage failed; the ids come back, and what was sent is
                remembered and not sent again.
            QueueMissing, QueueUnavailable
        """
        received = self._transport.receive_due_ids(wait_seconds=self._parts.settings.wait_seconds)
        waiting: dict[str, Delivery[str]] = {}
        for delivery, message_id in self._readable(received):
            if message_id in waiting:
                self._transport.settle([delivery])
            else:
                waiting[message_id] = delivery
        self._dispatch(self._look_up(waiting))
        return len(received)

    def _look_up(self, waiting: dict[str, Delivery[str]]) -> list[Delivered]:
        """The messages that are there and due. The other ids are dropped."""
        if not waiting:
            return []
        try:
            with self._storage(self._finding):
                found = {message_id: self._store.find(message_id) for message_id in waiting}
        except (StoreError, CriticalError):
            self._transport.give_back(list(waiting.values()), seconds=PAUSE_SECONDS)
            raise
        now_ms = self._transport.now_ms()
        due = {i: m for i, m in found.items() if m is not None and m.due_ms <= now_ms}
        dropped = [message_id for message_id in waiting if message_id not in due]
        if dropped:
            self._transport.settle([waiting[message_id] for message_id in dropped])
            self._tell(TimeoutStatus.DROPPED, dropped)
        return [(waiting[message_id], message) for message_id, message in due.items()]

    def _dispatch(self, due: list[Delivered]) -> None:
        before = [(d, m) for d, m in due if _key(m) in self._unremoved]
        sent, refused = self._sent([(d, m) for d, m in due if _key(m) not in self._unremoved])
        self._unremoved |= {_key(message): TimeoutStatus.DISPATCHED for _, message in sent}
        rejected = self._rejected(refused)
        self._unremoved |= {_key(message): TimeoutStatus.REJECTED for _, message in rejected}
        while len(self._unremoved) > _REMEMBERED:
            self._unremoved.popitem(last=False)
        self._remove(before + sent + rejected)

    def _remove(self, handled: list[Delivered]) -> None:
        """Remove from the storage, and only then let the ids go."""
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
            self._transport.give_back([delivery for delivery, _ in handled], seconds=PAUSE_SECONDS)
            raise
        for (delivery, message), away in zip(handled, gone, strict=True):
            if away:
                self._done(self._unremoved.pop(_key(message)), [(delivery, message)])
            else:
                # It is being announced again at this moment. Next time it is removed, not sent.
                self._transport.give_back([delivery], seconds=PAUSE_SECONDS)


def _key(message: StoredMessage) -> tuple[str, int]:
    return message.message_id, message.due_ms
