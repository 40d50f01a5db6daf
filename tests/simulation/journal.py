"""What each party asked of the queues, what they did, and what the party was told: one step per message."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqsdelay.core.outgoing import hop_deduplication_id
from sqsdelay.core.received_message import ReceivedMessage
from tests.simulation.parcels import key_of


class Action(StrEnum):
    """The calls that move a message."""

    SEND = "send"
    RECEIVE = "receive"
    DELETE = "delete"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One message of one call.

    ``number`` orders steps by when the queues acted, across parties. ``copy`` is SQS's id of the
    copy that was received, deleted or sent on (None: the sender's own send), ``made`` the one a
    send made. ``acted`` is whether the queues did it, ``answered`` whether the party knows. A send
    was under way from ``asked_ms`` to ``at_ms``.
    """

    number: int
    at_ms: int
    party: str
    action: Action
    queue: str
    key: str
    copy: str | None
    acted: bool
    answered: bool
    asked_ms: int
    made: str | None = None
    timer_seconds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """An entry of a send as the layer that injects faults saw it; ``made`` is None if it failed."""

    body: str
    deduplication_id: str | None
    timer_seconds: int | None
    made: str | None


class Journal:
    """The steps of a scenario, kept by the layer that injects the faults. Thread-safe."""

    def __init__(self) -> None:
        self._of_key: dict[str, list[Step]] = defaultdict(list)
        self._in_hand: dict[tuple[str, str], list[str]] = {}
        self._copy_of_hop_id: dict[str, str] = {}
        self._timers: dict[str, int] = {}
        self._number = 0
        self._lock = threading.Lock()
        self.died: set[str] = set()
        """Parties that were killed; one that is started again has another name."""
        self.remembering: set[str] = set()
        """Parties that never send a copy on again that they failed to delete."""
        self.injected = 0
        """Faults so far."""

    def inject(self) -> None:
        """Count a fault."""
        with self._lock:
            self.injected += 1

    def received(
        self, party: str, queue: str, copies: Sequence[ReceivedMessage], *, at_ms: int
    ) -> None:
        """Copies reached a party. Those whose answer was lost reached nobody, and are no steps."""
        with self._lock:
            in_hand: dict[str, list[str]] = defaultdict(list)
            for copy in copies:
                key, copy_id = key_of(copy.body), copy.sqs_message_id
                in_hand[key].append(copy_id)
                hop_id = hop_deduplication_id(copy, copy.message_id, copy.first_sent_ms)
                self._copy_of_hop_id[hop_id] = copy_id
                self._add(
                    at_ms, party, Action.RECEIVE, queue, key, copy_id, acted=True, answered=True
                )
            for key, copy_ids in in_hand.items():
                self._in_hand[party, key] = copy_ids

    def sent(
        self,
        party: str,
        queue: str,
        entries: Sequence[Asked],
        *,
        at_ms: int,
        answered: bool,
        asked_ms: int | None = None,
    ) -> None:
        """A party's send, of which the queues took the entries that made a copy."""
        with self._lock:
            keys = [key_of(entry.body) for entry in entries]
            self._timers |= {e.made: e.timer_seconds or 0 for e in entries if e.made is not None}
            for position, (key, entry) in enumerate(zip(keys, entries, strict=True)):
                place = keys[:position].count(key), keys.count(key)
                self._add(
                    at_ms,
                    party,
                    Action.SEND,
                    queue,
                    key,
                    self._sent_on(party, key, entry, place),
                    acted=entry.made is not None,
                    answered=answered,
                    asked_ms=asked_ms,
                    made=entry.made,
                    timer_seconds=entry.timer_seconds,
                )

    def deleted(
        self,
        party: str,
        queue: str,
        entries: Sequence[tuple[str, str, bool]],
        *,
        at_ms: int,
        answered: bool,
    ) -> None:
        """A party's delete: body and id of each copy, and whether it was deleted."""
        with self._lock:
            for body, copy, acted in entries:
                self._add(
                    at_ms,
                    party,
                    Action.DELETE,
                    queue,
                    key_of(body),
                    copy,
                    acted=acted,
                    answered=answered,
                )

    def _sent_on(self, party: str, key: str, entry: Asked, place: tuple[int, int]) -> str | None:
        """Which copy a send was of: its deduplication id tells; a hand-over has none.

        A message that was duplicated earlier may be in one batch twice. The copies are sent in the
        order they were received in, perhaps without those the party knows it had sent on before.
        """
        told = self._copy_of_hop_id.get(entry.deduplication_id or "")
        if told is not None:
            return told
        position, alike = place
        copies = self._in_hand.get((party, key), [])
        if alike < len(copies):
            known = {
                step.copy
                for step in self._of_key[key]
                if step.party == party and step.made is not None and step.answered
            }
            copies = [copy for copy in copies if copy not in known] or copies
        return copies[min(position, len(copies) - 1)] if copies else None

    def _add(
        self,
        at_ms: int,
        party: str,
        action: Action,
        queue: str,
        key: str,
        copy: str | None,
        *,
        acted: bool,
        answered: bool,
        asked_ms: int | None = None,
        made: str | None = None,
        timer_seconds: int | None = None,
    ) -> None:
        self._number += 1
        step = Step(
            number=self._number,
            at_ms=at_ms,
            party=party,
            action=action,
            queue=queue,
            key=key,
            copy=copy,
            acted=acted,
            answered=answered,
            asked_ms=at_ms if asked_ms is None else asked_ms,
            made=made,
            timer_seconds=timer_seconds,
        )
        self._of_key[key].append(step)

    def of(self, key: str) -> Sequence[Step]:
        """All that happened to one message, in order."""
        return self._of_key.get(key, ())

    def sends(self, key: str, queue: str) -> list[Step]:
        """The sends to ``queue`` that made a copy there; what deduplication swallowed made none."""
        made: dict[str, Step] = {}
        for step in self.of(key):
            if step.action is Action.SEND and step.queue == queue and step.made is not None:
                made.setdefault(step.made, step)
        return list(made.values())

    def timer_seconds(self, made: str) -> int:
        """The message timer a copy was sent with."""
        return self._timers[made]

    def hops(self, delay_queue: str) -> int:
        """Copies made in the delay queue, over all messages."""
        return sum(len(self.sends(key, delay_queue)) for key in self._of_key)
