"""Leases: one per shard, not per message. Who holds a shard's lease alone releases its messages.

A lease says who holds it and until when (by DynamoDB's clock), up to where messages are released (the
cursor), and up to where they are being released (``taken``). It is written twice a batch: before the
batch is read, and when it is settled. So whoever cancels a message can make sure, in the same
transaction, that nobody has it in hand.
"""

from __future__ import annotations

import random
import secrets
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqsdelay.ports.forks import in_each_child
from sqsdelay.stores.dynamodb.item import number
from sqsdelay.stores.dynamodb.layout import (
    EXPIRY,
    PARTITION,
    SORT,
    Item,
    Key,
    Lane,
    Layout,
    Place,
    position,
)
from sqsdelay.stores.dynamodb.table import Table
from sqsdelay.stores.schema import VERSION as FORMAT
from sqsdelay.stores.schema import check_version

OWNER: Final = "o"
UNTIL: Final = "r"
VERSION: Final = "v"
CURSOR: Final = "c"
TAKEN_FAR: Final = "u"
TAKEN_NEAR: Final = "n"
SINCE: Final = "f"
TOKEN: Final = "k"

LOOKED_AT_MS: Final = 10_000
"""How long it is taken for granted that the table is the one that was written to. One that was deleted and
made anew knows of no shards, no hours and no amendments: it has to be told again."""

_WAITING_MS: Final = 30_000
"""How long a dispatcher that found too few free shards is left room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A shard's lease as it was read.

    Args:
        cursor: a position; far messages up to it are released.
        taken_far, taken_near: positions up to which messages are being released; empty: none.
        token: tells the write that made it from all others.
    """

    shard: int
    version: int = 0
    owner: str = ""
    until_ms: int = 0
    cursor: str = ""
    taken_far: str = ""
    taken_near: str = ""
    token: str = ""

    def live(self, now_ms: int) -> bool:
        """Whether somebody has messages of this shard in hand."""
        return self.until_ms > now_ms

    def passed(self, place: Place) -> bool:
        """Whether the cursor has passed a far message."""
        return place.position <= self.cursor


@dataclass(frozen=True, slots=True)
class Leases:
    """All leases of an endpoint, as one query read them.

    Args:
        read_ms: when, by DynamoDB's clock.
        counts: numbers of shards that were ever written to, and since when.
        waiting: dispatchers that found too few shards.
    """

    read_ms: int
    shards: list[Lease]
    counts: Mapping[int, int]
    waiting: frozenset[str]

    def free(self, owner: str) -> list[Lease]:
        """The shards that this dispatcher should take: free ones, and not more than its share."""
        free = [lease for lease in self.shards if not lease.live(self.read_ms)]
        # Those it had last, so that dispatchers do not reach for the same; else any.
        free.sort(key=lambda lease: (lease.owner != owner, random.random()))
        return free[: max(1, self._share(owner))]

    def crowded(self, owner: str) -> bool:
        """Whether others hold so much that this dispatcher cannot have its share."""
        free = sum(not lease.live(self.read_ms) for lease in self.shards)
        return free < self._share(owner)

    def _share(self, owner: str) -> int:
        """How many more shards this dispatcher may take."""
        live = [lease for lease in self.shards if lease.live(self.read_ms)]
        others = ({lease.owner for lease in live} | self.waiting) - {owner}
        mine = sum(lease.owner == owner for lease in live)
        return -(-len(self.shards) // (len(others) + 1)) - mine

    @property
    def first_position(self) -> str:
        """No far message before it is still to be released."""
        return min(lease.cursor for lease in self.shards)


class LeaseBook:
    """Reads and writes an endpoint's leases.

    Args:
        shards: how many this process writes to.
    """

    def __init__(self, table: Table, layout: Layout, *, shards: int, lease_seconds: float) -> None:
        self._table = table
        self._layout = layout
        self._owner = _new_owner()
        self._shards = shards
        self.lease_seconds = lease_seconds
        self._waits_until_ms = 0
        self._checked_ms: int | None = None
        self._registered: tuple[int, int] | None = None
        """When, and in which of the tables of this name."""
        self._lock = threading.Lock()
        in_each_child(self, LeaseBook._begin_anew)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._owner = _new_owner()

    @property
    def owner(self) -> str:
        return self._owner

    def set_up(self) -> None:
        """Write the version down.

        Raises:
            SchemaMismatch: what is there is of another one.
        """
        self._get([self._layout.format])
        self._write_version()

    def _write_version(self) -> None:
        self._table.put({**self._layout.format, VERSION: number(FORMAT)}, only_new=True)

    def register(self) -> None:
        """Have dispatchers know of the shards, before anything is written to them.

        Raises:
            SchemaMismatch
        """
        if not self._is_registered():
            with self._lock:
                if not self._is_registered():
                    self._register()
                    self._registered = self._table.clock.now_ms(), self._table.made_anew

    def _is_registered(self) -> bool:
        if self._registered is None or self._registered[1] != self._table.made_anew:
            return False
        return 0 <= self._table.clock.now_ms() - self._registered[0] < LOOKED_AT_MS

    def _register(self) -> None:
        key = self._layout.count(self._shards)
        if self._get([key, self._layout.format]):
            return
        if self._registered is not None:
            self._table.made_anew += 1
        # The read told DynamoDB's time; nothing far can be due before.
        since = number(self._table.clock.now_ms())
        self._write_version()
        self._table.put({**key, SINCE: since}, only_new=True)

    def read(self) -> Leases:
        """All leases now."""
        items: list[Item] = []
        read_ms = 0
        for page in self._table.pages(self._layout.leases, ConsistentRead=True):
            items += page["Items"]
            read_ms = read_ms or self._table.clock.read(page)
        return _leases(self._checked(items), read_ms, self._table.clock.now_ms(), self._shards)

    def get(self, keys: Sequence[Key] = ()) -> list[Item]:
        """As `Table.get`; the version is read with them, ten seconds after it was read at the latest.

        Raises:
            SchemaMismatch: what is there is of another version.
        """
        now_ms = self._table.clock.now_ms()
        if self._checked_ms is not None and 0 <= now_ms - self._checked_ms < LOOKED_AT_MS:
            return self._table.get(keys)
        return self._get([*keys, self._layout.format])

    def _get(self, keys: Sequence[Key]) -> list[Item]:
        return self._checked(self._table.get(keys))

    def _checked(self, items: Sequence[Item]) -> list[Item]:
        """The items without the one that tells the version, which is checked."""
        kept, mark = [], self._layout.format
        for item in items:
            if item[PARTITION] == mark[PARTITION] and item[SORT] == mark[SORT]:
                table = f"{self._table.name} of endpoint {self._layout.endpoint}"
                check_version(int(item[VERSION]["N"]), table=table)
            else:
                kept.append(item)
        self._checked_ms = self._table.clock.now_ms()
        return kept

    def one(self, shard: int) -> Lease:
        """One shard's lease now; a shard never served has an empty cursor."""
        items = self._table.get([self._layout.lease(shard)])
        return _lease(shard, items[0] if items else {}, "")

    def take(self, lease: Lease, *, far: str, near: str) -> Lease | None:
        """Take a free shard to release messages up to these positions; None: somebody was faster."""
        return self._held(lease, replace(lease, taken_far=far, taken_near=near))

    def renew(self, lease: Lease) -> Lease | None:
        """Begin a lease anew; None: it was lost."""
        return self._held(lease, lease)

    def settle(self, lease: Lease, *, cursor: str) -> bool:
        """Move the cursor and let go of a shard; False: the lease was lost."""
        settled = replace(lease, until_ms=0, cursor=cursor, taken_far="", taken_near="")
        return self._write(lease, self._next(settled))

    def _held(self, seen: Lease, new: Lease) -> Lease | None:
        until_ms = self._table.clock.now_ms() + round(self.lease_seconds * 1000)
        held = self._next(replace(new, owner=self._owner, until_ms=until_ms))
        return held if self._write(seen, held) else None

    def _next(self, lease: Lease) -> Lease:
        return replace(lease, version=lease.version + 1, token=secrets.token_hex(4))

    def wait(self) -> None:
        """Have other dispatchers leave room for this one."""
        now_ms = self._table.clock.now_ms()
        with self._lock:
            if now_ms < self._waits_until_ms - _WAITING_MS // 2:
                return
            self._waits_until_ms = until = now_ms + _WAITING_MS
        self._table.put(
            {
                **self._layout.waiting(self._owner),
                OWNER: {"S": self._owner},
                UNTIL: number(until),
                EXPIRY: number(until // 1000),
            }
        )

    def _write(self, seen: Lease, new: Lease) -> bool:
        """Replace a lease if it is as it was seen. (Or already as wanted: an answer was lost.)"""
        item: Item = {
            **self._layout.lease(new.shard),
            VERSION: number(new.version),
            OWNER: {"S": new.owner},
            UNTIL: number(new.until_ms),
            CURSOR: {"S": new.cursor},
            TOKEN: {"S": new.token},
        }
        if new.taken_far:
            item[TAKEN_FAR] = {"S": new.taken_far}
        if new.taken_near:
            item[TAKEN_NEAR] = {"S": new.taken_near}
        condition: dict[str, Any] = {
            "ConditionExpression": f"{VERSION} = :seen OR {TOKEN} = :token",
            "ExpressionAttributeValues": {
                ":seen": number(seen.version),
                ":token": {"S": new.token},
            },
        }
        if seen.version == 0:
            condition["ConditionExpression"] += f" OR attribute_not_exists({VERSION})"
        return self._table.applied(self._table.client.put_item, Item=item, **condition)


def not_in_hand(layout: Layout, place: Place, now_ms: int) -> dict[str, Any]:
    """The action of a transaction that demands that nobody is releasing, or has released, a message."""
    taken = TAKEN_FAR if place.lane is Lane.FAR else TAKEN_NEAR
    condition = f"attribute_not_exists({taken}) OR {taken} < :at OR {UNTIL} <= :now"
    values: dict[str, Any] = {":at": {"S": place.position}, ":now": number(now_ms)}
    if place.lane is Lane.FAR:
        condition = f"(attribute_not_exists({CURSOR}) OR {CURSOR} < :at) AND ({condition})"
    return {
        "ConditionCheck": {
            "Key": layout.lease(place.shard),
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
        }
    }


def _leases(items: Sequence[Item], read_ms: int, now_ms: int, own_shards: int) -> Leases:
    counts: dict[int, int] = {}
    held: dict[int, Item] = {}
    waiting: set[str] = set()
    for item in items:
        kind, _, name = item[SORT]["S"].partition(" ")
        if kind == "count":
            counts[int(name)] = int(item[SINCE]["N"])
        elif kind == "shard":
            held[int(name)] = item
        elif int(item[UNTIL]["N"]) > read_ms:
            waiting.add(name)
    shards = max([own_shards, *counts])

    def since(shard: int) -> str:
        # Nothing far is due before its shard was registered; of one that is not, before now.
        return position(min((at for n, at in counts.items() if n > shard), default=now_ms))

    return Leases(
        read_ms,
        [_lease(shard, held.get(shard, {}), since(shard)) for shard in range(shards)],
        counts,
        frozenset(waiting),
    )


def _lease(shard: int, item: Item, since: str) -> Lease:
    return Lease(
        shard=shard,
        version=int(item[VERSION]["N"]) if VERSION in item else 0,
        owner=item[OWNER]["S"] if OWNER in item else "",
        until_ms=int(item[UNTIL]["N"]) if UNTIL in item else 0,
        cursor=item[CURSOR]["S"] if CURSOR in item else since,
        taken_far=item[TAKEN_FAR]["S"] if TAKEN_FAR in item else "",
        taken_near=item[TAKEN_NEAR]["S"] if TAKEN_NEAR in item else "",
    )


def _new_owner() -> str:
    return uuid.uuid4().hex[:12]
