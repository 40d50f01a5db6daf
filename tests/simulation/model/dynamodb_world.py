"""DynamoDB stores under virtual time, broken between and after any of their calls, from one seed.

Parkers, dispatchers and people who change their minds work on one table of moto's. Each call of theirs
may be throttled, lose its answer, find its process dead or frozen for longer than a lease, or let
somebody else do something first. The only clock they have is the date of DynamoDB's answers, which
wavers; what dispatchers take for the broker's time is up to an hour wrong.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError

from sqsdelay.core.message_id import new_message_id
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import StoreError
from sqsdelay.stores.dynamodb import DynamoDbStore

HOUR_MS = 3_600_000
BATCH = 12
SHARDS = 3
FAULTS = ("throttled", "answer lost", "killed", "frozen", "meanwhile")
LEASE_SECONDS = 60
AHEAD_MS = 900_000


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


@contextmanager
def seeded(chance: random.Random, now_ms: Callable[[], int]) -> Iterator[None]:
    """All that the store and the ids of messages leave to chance, so that a seed replays to the
    letter. The machine's own clock, which counts until DynamoDB has answered, is a day slow."""
    names = SimpleNamespace(
        randbits=chance.getrandbits, token_hex=lambda count: chance.randbytes(count).hex()
    )
    owners = SimpleNamespace(uuid4=lambda: uuid.UUID(int=chance.getrandbits(128)))
    clock = SimpleNamespace(time_ns=lambda: (now_ms() - 24 * HOUR_MS) * 1_000_000)
    leases = "sqsdelay.stores.dynamodb.leases"
    with ExitStack() as patches:
        patches.enter_context(patch("sqsdelay.core.message_id.secrets", names))
        patches.enter_context(patch(f"{leases}.secrets", names))
        patches.enter_context(patch(f"{leases}.random", chance))
        patches.enter_context(patch(f"{leases}.uuid", owners))
        patches.enter_context(patch("sqsdelay.stores.dynamodb.dates.time", clock))
        yield


class DynamoDbWorld:
    """Everything that happens, judged as it happens.

    Args:
        seed: replays a run.
        fault_share: of the calls that break.
        kinds: what can happen at a call.
        only_at: it happens once, at this point of those before and after calls; None is by chance.
    """

    def __init__(
        self,
        seed: int,
        *,
        fault_share: float = 0.03,
        kinds: Sequence[str] = FAULTS,
        only_at: int | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.fault_share = fault_share
        self.kinds = kinds
        self.only_at = only_at
        self.points = 0
        self.now_ms = 1_800_000_000_000 + self.chance.randrange(HOUR_MS)
        self.known: dict[str, Known] = {}
        self.delivered: Counter[str] = Counter()
        self.in_hand: set[str] = set()
        self.faults: Counter[str] = Counter()
        self.breaks = 0
        self.wrong: list[str] = []
        self._deep = 0
        self._seeded = ExitStack()
        self._seeded.enter_context(seeded(random.Random(seed), lambda: self.now_ms))
        self.stores = [self._store() for _ in range(4)]
        self.errors_ms = [0, HOUR_MS, -HOUR_MS, 7]
        faults, self.fault_share = self.fault_share, 0.0
        self.stores[0].set_up()
        self.fault_share = faults

    def _store(self) -> DynamoDbStore:
        make: Any = boto3.client
        client: Any = make(
            "dynamodb", region_name="us-east-1", config=Config(parameter_validation=False)
        )
        client.meta.events.register("before-call.dynamodb", self._before)
        client.meta.events.register("after-call.dynamodb", self._after)
        store = DynamoDbStore(
            "parked",
            endpoint="orders",
            client=client,
            shards=SHARDS,
            lease_seconds=LEASE_SECONDS,
        )
        table: Any = store._table
        # One after the other, so that a seed replays.
        table.each = lambda do, items: [do(item) for item in items]
        table.clock.monotonic = lambda: self.now_ms / 1000
        return store

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self._seeded.close()

    # What breaks.

    def _before(self, **_: Any) -> None:
        self.now_ms += self.chance.randrange(30)
        fault = self._fault("throttled", "killed", "frozen", "meanwhile")
        if fault == "throttled":
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "no"}}, "Call")

    def _after(self, parsed: Any, **_: Any) -> None:
        wavers = self.chance.randrange(-200, 200)
        date = formatdate((self.now_ms + wavers) // 1000, usegmt=True)
        parsed["ResponseMetadata"]["HTTPHeaders"]["date"] = date
        if self._fault("answer lost", "killed", "frozen", "meanwhile") == "answer lost":
            raise ReadTimeoutError(endpoint_url="dynamodb")

    def _fault(self, *kinds: str) -> str | None:
        if self._deep > 1 or not self._breaks_here():
            return None
        possible = [kind for kind in kinds if kind in self.kinds]
        if self._locked():
            possible = [kind for kind in possible if kind != "meanwhile"]
        if not possible:
            return None
        kind = self.chance.choice(possible)
        self.faults[kind] += 1
        if kind == "killed":
            raise Killed
        if kind == "frozen":
            self.now_ms += self.chance.choice([70_000, 1_200_000, 3 * HOUR_MS])
        if kind == "meanwhile":
            self._deep += 1
            with suppress(Killed):
                self.act()
            self._deep -= 1
        return kind

    def _breaks_here(self) -> bool:
        if not self.fault_share:
            return False
        self.points += 1
        if self.only_at is not None:
            return self.points == self.only_at
        return self.chance.random() < self.fault_share

    def _locked(self) -> bool:
        """Whether a store registers its shards: its other threads would wait; here is only one."""
        return any(store._book._lock.locked() for store in self.stores)

    # What people and processes do.

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
        for _ in range(self.chance.randrange(1, 12)):
            due_ms = self.now_ms + self.chance.choice(
                [0, 60_000, 950_000, 1_001_000, 1_010_000, HOUR_MS, 5 * HOUR_MS, 20 * HOUR_MS]
            )
            due_ms += self.chance.randrange(60_000)
            own = self.chance.random() < 0.3
            name = f"own-{len(self.known)}" if own else new_message_id(due_ms)
            message = StoredMessage(message_id=name, destination="orders", due_ms=due_ms, body=b"x")
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

    def _cancel(self, store: DynamoDbStore, name: str, known: Known) -> None:
        sent_before = self.delivered[name]
        done = None
        with suppress(StoreError, Killed):
            done = store.cancel([name]) == [True]
        if done is None or done:
            # Unconfirmed, it may be either.
            known.confirmed = False
        if done and not self._excused():
            known.cancelled = True
            if self.delivered[name] > sent_before:
                self.wrong.append(f"{name} was cancelled and sent")

    def _move(self, store: DynamoDbStore, name: str, known: Known) -> None:
        changes = known.changes
        due_ms = self.now_ms + self.chance.choice([30_000, 1_100_000, 9 * HOUR_MS])
        known.dues.add(due_ms)
        moved = None
        with suppress(StoreError, Killed):
            moved = store.reschedule(name, due_ms)
        # Of two moves at once either may be the last: who asked cannot tell by the answers.
        alone = known.changing == 1 and known.changes == changes
        if moved and alone and not self._excused():
            known.dues = {due_ms}

    def _excused(self) -> bool:
        """Whoever died or froze with a message in hand may have sent it, or may still."""
        return self.breaks > 0

    def dispatch(self) -> None:
        """One claim, and what becomes of it."""
        n = self.chance.randrange(len(self.stores))
        store, due_by_ms = self.stores[n], self.now_ms + self.errors_ms[n] + AHEAD_MS
        before = self.faults["killed"] + self.faults["frozen"]
        claiming = store.claim(BATCH, due_by_ms=due_by_ms)
        try:
            with claiming as claim:
                self._send(claim)
        except (StoreError, Killed):
            self.breaks += 1
        else:
            self.breaks += self.faults["killed"] + self.faults["frozen"] > before

    def _send(self, claim: Any) -> None:
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
        if message.due_ms > self.now_ms + AHEAD_MS + 3000:
            self.wrong.append(f"{name} is released {message.due_ms - self.now_ms} ms ahead")
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
            self.now_ms = max(self.now_ms + 100_000, waiting[0].due_ms - 300_000)
            for n in (0, 3):
                store = self.stores[n]
                while True:
                    with store.claim(BATCH, due_by_ms=self.now_ms + AHEAD_MS) as claim:
                        for message in claim.messages:
                            self._deliver(message)
                        claim.remove([m.message_id for m in claim.messages])
                    if not claim.messages:
                        break
        self.wrong.append(f"{self.stores[1].pending_count()} messages stay")

    @property
    def lost(self) -> list[str]:
        """Confirmed, never delivered."""
        return [n for n, k in self.known.items() if k.confirmed and not self.delivered[n]]

    @property
    def early(self) -> list[str]:
        """Released further ahead than a message timer reaches."""
        return [told for told in self.wrong if told.endswith("ms ahead")]

    @property
    def repeated(self) -> int:
        """How many deliveries were one too many."""
        return sum(count - 1 for count in self.delivered.values() if count > 1)
