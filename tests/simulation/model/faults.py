"""Queues and a store that break on purpose, once, in the ways a distributed system breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import QueueUnavailable, StoreUnavailable
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.ports.stores import Claim, DelayedMessageStore
from sqsdelay.testing import ManualClock
from tests.simulation.virtual_party import Killed, WatchedQueues


class Fault(StrEnum):
    """What breaks the next time something like it is called."""

    SEND_REFUSED = "send refused"
    SEND_HALF_REFUSED = "every second entry of a send refused"
    SEND_ANSWER_LOST = "answer of a send lost"
    DIES_BEFORE_SEND = "dies before a send"
    DIES_AFTER_SEND = "dies after a send"
    DELETE_REFUSED = "delete refused"
    DELETE_ANSWER_LOST = "answer of a delete lost"
    DIES_BEFORE_DELETE = "dies before a delete"
    STORE_REFUSED = "store refused a call"
    STORE_ANSWER_LOST = "answer of the store lost"
    DIES_AFTER_STORE = "dies after a call of the store"
    REMOVE_REFUSED = "removal from the store refused"


class Breaker:
    """Holds the fault to come, and what happens in the middle of somebody's work."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self._meanwhile: Callable[[], None] | None = None
        self._calls_until = 0

    def take(self, *faults: Fault) -> Fault | None:
        """The fault to come if it is one of these; it comes once."""
        if self.fault not in faults:
            return None
        fault, self.fault = self.fault, None
        return fault

    def happen_meanwhile(self, action: Callable[[], None], *, after_calls: int) -> None:
        """Have somebody do something between two calls of what runs next."""
        self._meanwhile, self._calls_until = action, after_calls

    def forget_meanwhile(self) -> None:
        self._meanwhile = None

    def between_calls(self) -> None:
        """Called at each call of the queues or of the store."""
        if self._meanwhile is None:
            return
        self._calls_until -= 1
        if self._calls_until < 0:
            action, self._meanwhile = self._meanwhile, None
            action()


def _unavailable() -> Failure:
    return Failure(
        "ServiceUnavailable", QueueUnavailable("broken on purpose"), transient=True, outage=True
    )


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a queue took; ``new`` is False where the queue knew it for a duplicate."""

    queue: str
    entry: OutgoingMessage
    new: bool
    confirmed: bool


class BreakingQueues(WatchedQueues):
    """Queues in memory that break as told, and tell what they took."""

    def __init__(
        self, clock: ManualClock, breaker: Breaker, on_sent: Callable[[Sent], None]
    ) -> None:
        super().__init__(clock)
        self._breaker = breaker
        self._on_sent = on_sent
        self._ids: set[str] = set()

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        self._breaker.between_calls()
        fault = self._breaker.take(
            Fault.SEND_REFUSED,
            Fault.SEND_HALF_REFUSED,
            Fault.SEND_ANSWER_LOST,
            Fault.DIES_BEFORE_SEND,
            Fault.DIES_AFTER_SEND,
        )
        if fault is Fault.SEND_REFUSED:
            return [_unavailable()] * len(entries)
        if fault is Fault.DIES_BEFORE_SEND:
            raise Killed
        refused = {n for n in range(len(entries)) if fault is Fault.SEND_HALF_REFUSED and n % 2}
        lost = fault in (Fault.SEND_ANSWER_LOST, Fault.DIES_AFTER_SEND)
        outcomes: list[SendReceipt | Failure] = []
        for n, entry in enumerate(entries):
            if n in refused:
                outcomes.append(_unavailable())
                continue
            (outcome,) = super().send_batch(queue_url, [entry])
            outcomes.append(outcome)
            if isinstance(outcome, SendReceipt):
                new = outcome.sqs_message_id not in self._ids
                self._ids.add(outcome.sqs_message_id)
                self._on_sent(Sent(queue_url, entry, new, confirmed=not lost))
        if fault is Fault.DIES_AFTER_SEND:
            raise Killed
        self._breaker.between_calls()
        return [_unavailable()] * len(entries) if lost else outcomes

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        self._breaker.between_calls()
        fault = self._breaker.take(
            Fault.DELETE_REFUSED, Fault.DELETE_ANSWER_LOST, Fault.DIES_BEFORE_DELETE
        )
        if fault is Fault.DIES_BEFORE_DELETE:
            raise Killed
        if fault is Fault.DELETE_REFUSED:
            return [_unavailable()] * len(copies)
        outcomes = super().delete_batch(queue_url, copies)
        return [_unavailable()] * len(copies) if fault else outcomes

    def copies(self, queue_url: str, message_id: str) -> int:
        """How many copies of a message the delay queue has, visible or not."""
        return sum(held.message.group_id == message_id for held in self.held(queue_url))

    def count(self, queue_url: str) -> int:
        """How many copies the queue has."""
        return len(self.held(queue_url))

    def next_visible_in(self, queue_url: str) -> int | None:
        """When the queue's next copy becomes visible; None when it is empty."""
        return min((held.visible_ms for held in self.held(queue_url)), default=None)


class BreakingStore:
    """A store that breaks as told: one call, or all of them while it is ``away``. What is not here is the
    store's own."""

    def __init__(
        self,
        store: DelayedMessageStore,
        breaker: Breaker,
        on_stored: Callable[[Sequence[StoredMessage]], None],
    ) -> None:
        self.inner = store
        self.away = False
        self.amendments_unread = False
        self._on_stored = on_stored
        self._breaker = breaker
        self._abandoned: list[AbstractContextManager[Claim]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        with self._call():
            new = self.inner.store(messages, transaction=transaction)
            self._on_stored(messages)
            return new

    @contextmanager
    def claim(self, limit: int, **given: Any) -> Iterator[_BreakingClaim]:
        self._refuse()
        claiming = self.inner.claim(limit, **given)
        claim = claiming.__enter__()
        self._breaker.between_calls()
        try:
            yield _BreakingClaim(claim, self._breaker)
        except Killed:
            # A dead process lets go of nothing; its lease has to end by itself.
            self._abandoned.append(claiming)
            raise
        except BaseException:
            claiming.__exit__(*sys.exc_info())
            raise
        claiming.__exit__(None, None, None)

    def find(self, message_id: str) -> StoredMessage | None:
        self._refuse()
        return self.inner.find(message_id)

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        with self._call():
            return self.inner.cancel(message_ids)

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        with self._call():
            return self.inner.reschedule(message_id, due_ms)

    def amend(self, amendments: Sequence[Amendment]) -> None:
        with self._call():
            self.inner.amend(amendments)

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        self.amendments_unread = True
        self._refuse()
        self.amendments_unread = False
        found = self.inner.amendments(message_ids)
        self._breaker.between_calls()
        return found

    def close(self) -> None:
        """Let go of what dead processes held, and of the store."""
        for claiming in self._abandoned:
            claiming.__exit__(None, None, None)
        self.inner.close()

    def _refuse(self) -> None:
        self._breaker.between_calls()
        if self.away or self._breaker.take(Fault.STORE_REFUSED):
            raise StoreUnavailable("broken on purpose")

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._refuse()
        yield
        if self._breaker.take(Fault.DIES_AFTER_STORE):
            raise Killed
        if self._breaker.take(Fault.STORE_ANSWER_LOST):
            raise StoreUnavailable("the answer was lost on purpose")
        self._breaker.between_calls()


class _BreakingClaim:
    """A claim whose removals break as told."""

    def __init__(self, claim: Claim, breaker: Breaker) -> None:
        self._claim = claim
        self._breaker = breaker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim, name)

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        if message_ids and self._breaker.take(Fault.REMOVE_REFUSED):
            raise StoreUnavailable("broken on purpose")
        self._breaker.between_calls()
        return self._claim.remove(message_ids)
