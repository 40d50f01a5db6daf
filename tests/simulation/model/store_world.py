"""Stores under virtual time, broken between and after any of their calls, from one seed.

Parkers, dispatchers and people who change their minds work on one place. Each call of theirs may be
refused, lose its answer, find its process dead or frozen for longer than a lease, or let somebody else
do something first.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from sqsdelay.core.message import new_message_id
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import StoreError
from sqsdelay.ports.stores import Claim, DelayedMessageStore
from tests.messages import a_message

HOUR_MS = 3_600_000
BATCH = 12
"""Messages in a claim, and in a call of ``store``: what may be repeated for each break."""

LEASE_SECONDS = 60
AHEAD_MS = 900_000
_PAUSES_MS = (0, 10, 5000, 60_000, 600_000)


class Killed(BaseException):
    """The process dies here."""


@dataclass
class Known:
    """What its sender knows of a message."""

    message: StoredMessage
    confirmed: bool = False
    cancelled: bool = False
    changes: int = 0
    changing: int = 0
    dues: set[int] = field(default_factory=set)


class StoreWorld(ABC):
    """Everything that happens, judged as it happens.

    Args:
        seed: replays a run.
        fault_share: of the calls that break.
        kinds: what can happen at a call.
    """

    apart_ms: ClassVar[int]
    """How much further ahead than a message timer reaches its clocks may take a message to be due."""

    own_ids: bool
    """Whether some messages have ids of their senders' own."""

    def __init__(self, seed: int, *, fault_share: float, kinds: Sequence[str]) -> None:
        self.chance = random.Random(seed)
        self.fault_share = fault_share
        self.kinds = kinds
        self._now_ms = 1_800_000_000_000 + self.chance.randrange(HOUR_MS)
        self.known: dict[str, Known] = {}
        self.delivered: Counter[str] = Counter()
        self.in_hand: set[str] = set()
        self.faults: Counter[str] = Counter()
        self.breaks = 0
        self.wrong: list[str] = []
        self._deep = 0

    @property
    @abstractmethod
    def stores(self) -> Sequence[DelayedMessageStore]:
        """Four, each of a process of its own."""

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def pass_ms(self, milliseconds: int) -> None:
        """Time passes."""
        self._now_ms += milliseconds

    def close(self) -> None:
        for store in self.stores:
            store.close()

    # What breaks.

    def _fault(self, *kinds: str) -> str | None:
        """What happens here, if anything does, of what can."""
        if self._deep > 1 or not self._breaks_here():
            return None
        possible = [kind for kind in kinds if kind in self.kinds and self._may(kind)]
        if not possible:
            return None
        kind = self.chance.choice(possible)
        self.faults[kind] += 1
        if kind == "killed":
            raise Killed
        if kind == "frozen":
            self.pass_ms(self.chance.choice([70_000, 1_200_000, 3 * HOUR_MS]))
        if kind == "meanwhile":
            self._deep += 1
            with suppress(Killed):
                self.act()
            self._deep -= 1
        return kind

    def _breaks_here(self) -> bool:
        return bool(self.fault_share) and self.chance.random() < self.fault_share

    def _may(self, kind: str) -> bool:
        return True

    # What people and processes do.

    def play(self, actions: Iterable[str]) -> None:
        """Do each in turn, pausing between them; then serve until nothing is left."""
        for action in actions:
            getattr(self, action)()
            self.pass_ms(self.chance.choice(_PAUSES_MS))
        self.drain()

    def act(self) -> None:
        """Somebody does something."""
        doing: Sequence[Callable[[], None]] = (self.park, self.dispatch, self.dispatch, self.change)
        self.chance.choice(doing)()

    def park(self) -> None:
        """Park some messages, or again some that were not confirmed."""
        store = self.chance.choice(self.stores)
        unsure = [k for k in self.known.values() if not (k.confirmed or k.changes)]
        again = [k.message for k in unsure if k.message.message_id not in self.in_hand]
        messages = again[:3] if again and self.chance.random() < 0.5 else self._new()
        done, names = False, {message.message_id for message in messages}
        self.in_hand |= names
        with suppress(StoreError, Killed):
            store.store(messages)
            done = True
        self.in_hand -= names
        if not done:
            self.breaks += 1
        for message in messages:
            known = self.known[message.message_id]
            known.confirmed |= done and not known.changes

    def _new(self) -> list[StoredMessage]:
        made = []
        for _ in range(self.chance.randrange(1, BATCH)):
            due_ms = self._now_ms + self.chance.choice(
                [0, 60_000, 950_000, 1_001_000, 1_010_000, HOUR_MS, 5 * HOUR_MS, 20 * HOUR_MS]
            )
            due_ms += self.chance.randrange(60_000)
            own = self.own_ids and self.chance.random() < 0.3
            name = f"own-{len(self.known)}" if own else new_message_id(due_ms)
            message = a_message(name, due_ms)
            self.known[name] = Known(message, dues={due_ms})
            made.append(message)
        return made

    def change(self) -> None:
        """Cancel or move a message."""
        waiting = [name for name in self.known if not self.delivered[name]]
        if not waiting:
            return
        name = self.chance.choice(waiting)
        known, store = self.known[name], self.chance.choice(self.stores)
        known.changes += 1
        known.changing += 1
        if self.chance.random() < 0.5:
            self._cancel(store, name, known)
        else:
            self._move(store, name, known)
        known.changing -= 1

    def _cancel(self, store: DelayedMessageStore, name: str, known: Known) -> None:
        sent_before = self.delivered[name]
        done = None
        with suppress(StoreError, Killed):
            done = store.cancel([name]) == [True]
        if done is None or done:
            # Unconfirmed, it may be either.
            known.confirmed = False
        if done and not self._excused(name):
            known.cancelled = True
            if self.delivered[name] > sent_before:
                self.wrong.append(f"{name} was cancelled and sent")

    def _move(self, store: DelayedMessageStore, name: str, known: Known) -> None:
        changes = known.changes
        due_ms = self._now_ms + self.chance.choice([30_000, 1_100_000, 9 * HOUR_MS])
        known.dues.add(due_ms)
        moved = None
        with suppress(StoreError, Killed):
            moved = store.reschedule(name, due_ms)
        known.dues.add(due_ms)
        if moved and not self._excused(name) and self._last(known, changes):
            known.dues = {due_ms}

    def _excused(self, name: str) -> bool:
        """Whoever died or froze with a message in hand may have sent it, or may still."""
        return self.breaks > 0

    def _last(self, known: Known, changes: int) -> bool:
        """Whether nobody else changed a message since it had been changed so often."""
        return known.changes == changes

    def dispatch(self) -> None:
        """One claim, and what becomes of it."""
        n = self.chance.randrange(len(self.stores))
        before = self.faults["killed"] + self.faults["frozen"]
        claiming = self.stores[n].claim(BATCH, due_by_ms=self._due_by_ms(n))
        try:
            with claiming as claim:
                self._send(claim)
        except (StoreError, Killed):
            self.breaks += 1
        else:
            self.breaks += self.faults["killed"] + self.faults["frozen"] > before

    def _due_by_ms(self, n: int) -> int:
        """What the dispatcher of a store asks for."""
        return self._now_ms + AHEAD_MS

    def _send(self, claim: Claim) -> None:
        names = [m.message_id for m in claim.messages]
        failing = [x for x in names if self.chance.random() < 0.1]
        for message in claim.messages:
            if message.message_id not in failing:
                self._deliver(message)
        claim.remove([x for x in names if x not in failing])
        if self.chance.random() < 0.5:
            claim.hold(failing, seconds=5)
        else:
            claim.count_failures(failing, retry_after_seconds=20)

    def _deliver(self, message: StoredMessage) -> None:
        name = message.message_id
        known = self.known[name]
        if message.due_ms > self._now_ms + AHEAD_MS + self.apart_ms:
            self.wrong.append(f"{name} is released {message.due_ms - self._now_ms} ms ahead")
        if message.due_ms not in known.dues:
            self.wrong.append(f"{name} is released with a due time that it has no more")
        if known.cancelled:
            self.wrong.append(f"{name} is released, and was cancelled")
        self.delivered[name] += 1

    def drain(self) -> None:
        """Nothing breaks any more: serve until nothing is left."""
        self.fault_share = 0.0
        for _ in range(1000):
            waiting = self.stores[1].pending(1)
            if not waiting:
                return
            # Leases of the dead end, and what is held comes free.
            self._now_ms = max(self._now_ms + 100_000, waiting[0].due_ms - 300_000)
            for n in (0, 3):
                while self._drain_some(self.stores[n]):
                    pass
        self.wrong.append(f"{self.stores[1].pending_count()} messages stay")

    def _drain_some(self, store: DelayedMessageStore) -> bool:
        with store.claim(BATCH, due_by_ms=self._now_ms + AHEAD_MS) as claim:
            for message in claim.messages:
                self._deliver(message)
            claim.remove([m.message_id for m in claim.messages])
        return bool(claim.messages)

    # What became of them.

    @property
    def lost(self) -> list[str]:
        """Confirmed, never delivered."""
        return [n for n, k in self.known.items() if k.confirmed and not self.delivered[n]]

    @property
    def early(self) -> list[str]:
        """Released further ahead than a message timer reaches."""
        return [told for told in self.wrong if told.endswith("ms ahead")]

    @property
    def strange(self) -> list[str]:
        """What else went wrong."""
        return [told for told in self.wrong if told not in self.early]

    @property
    def repeated(self) -> int:
        """How many deliveries were one too many."""
        return sum(count - 1 for count in self.delivered.values() if count > 1)
