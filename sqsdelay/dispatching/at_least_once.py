"""A destination behind an outbox: send, then remove; a failed removal does not send again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.destinations import SENT_BEFORE, Destinations, Outcome, unreadable
from sqsdelay.ports.queues import Failure, Outbox
from sqsdelay.ports.stores import Claim, TransactionMode

_REMEMBERED: Final = 100_000

_Key = tuple[str, int, int]


class AtLeastOnce:
    """The `Destination` of an outbox.

    Args:
        outbox: where messages are sent.
        destinations: which of them are out of reach.
    """

    mode: Final = TransactionMode.AT_LEAST_ONCE

    def __init__(self, outbox: Outbox, destinations: Destinations) -> None:
        self._outbox = outbox
        self._destinations = destinations
        self._unconfirmed: list[StoredMessage] = []
        self._sent: OrderedDict[_Key, None] = OrderedDict()

    @property
    def max_ahead_seconds(self) -> int:
        return self._outbox.max_ahead_seconds

    def check(self) -> None:
        self._outbox.check()

    def now_ms(self) -> int:
        return self._outbox.now_ms()

    def deliver(self, claim: Claim) -> list[Outcome]:
        # Left from the last claim: sent, but the store failed before they were known to be gone.
        for message in self._unconfirmed:
            self._remember(_key(message))
        aside = {
            place: unreadable(m) or SENT_BEFORE
            for place, m in enumerate(claim.messages)
            # Sent before, only the removal had failed: sending again would duplicate it.
            if m.unreadable is not None or (self._sent and _key(m) in self._sent)
        }
        new = [m for place, m in enumerate(claim.messages) if place not in aside]
        outcomes = self._destinations.send(self._outbox, new)
        self._unconfirmed = [
            m for m, outcome in zip(new, outcomes, strict=True) if not isinstance(outcome, Failure)
        ]
        for place, outcome in aside.items():
            # In the order of their places: what is before each is in already.
            outcomes.insert(place, outcome)
        return outcomes

    def _remember(self, key: _Key) -> None:
        self._sent[key] = None
        if len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)

    def forget(self, messages: Iterable[StoredMessage]) -> None:
        self._unconfirmed = []
        if self._sent:
            for message in messages:
                self._sent.pop(_key(message), None)

    def reject(
        self,
        claim: Claim,  # noqa: ARG002 - an outbox knows of none
        messages: Sequence[tuple[StoredMessage, str]],
    ) -> list[Failure | None]:
        return self._outbox.reject(messages)


def _key(message: StoredMessage) -> _Key:
    # In a store for which an id is no key, another message may have the same id and due time.
    return message.message_id, message.due_ms, hash(message.body)
