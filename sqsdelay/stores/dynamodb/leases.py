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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqsdelay.core.delay import Clock
from sqsdelay.stores.dynamodb import layout
from sqsdelay.stores.dynamodb.table import NOT_THERE, ConditionFailed, Table
from sqsdelay.stores.shared import VERSION as FORMAT
from sqsdelay.stores.shared import check_version

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

OWNER: Final = "o"
UNTIL: Final = "r"
VERSION: Final = "v"
CURSOR: Final = "c"
TAKEN_FAR: Final = "u"
TAKEN_NEAR: Final = "n"
SINCE: Final = "f"
TOKEN: Final = "k"

_NUMBERS: Final = {"version": VERSION, "until_ms": UNTIL}
_TEXTS: Final = {
    "owner": OWNER, "cursor": CURSOR, "taken_far": TAKEN_FAR, "taken_near": TAKEN_NEAR, "token": TOKEN,
}  # fmt: skip
"""A lease's fields, and the attributes that hold them; an empty text has none."""

_REGISTERED: Final = "registered"
_CHECKED: Final = "checked"

_WAITING_MS: Final = 30_000
"""How long a dispatcher that found too few free shards is left room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A shard's lease as it was read. ``cursor``: a position; far messages up to it are released.
    ``taken_far``, ``taken_near``: positions up to which messages are being released; empty: none. ``token``:
    tells the write that made it from all others."""

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


class Leases(NamedTuple):
    """All leases of an endpoint, as one query read them. ``read_ms``: when, by DynamoDB's clock. ``counts``:
    numbers of shards that were ever written to, and since when. ``waiting``: dispatchers that found too few
    shards."""

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


class LeasedTable(Table):
    """An endpoint's table, and the leases of its shards. ``shards``: how many this process writes to."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        client: DynamoDBClient | None,
        clock: Clock | None,
        *,
        shards: int,
        lease_seconds: float,
    ) -> None:
        super().__init__(name, endpoint, client, clock)
        self.owner = uuid.uuid4().hex[:12]
        self.shards = shards
        self.lease_seconds = lease_seconds
        self._waits_until_ms = 0
        self._lock = threading.Lock()

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._lock = threading.Lock()
        self.owner = uuid.uuid4().hex[:12]

    def set_up(self, table_class: str) -> None:
        """Create the table unless it exists, and write the version down. Raises SchemaMismatch: what is
        there is of another one."""
        super().set_up(table_class)
        self._of_this_version(self.get([self.format]))
        self.put({**self.format, VERSION: layout.number(FORMAT)}, NOT_THERE)

    def register(self) -> None:
        """Have dispatchers know of the shards, before anything is written to them. Raises SchemaMismatch."""
        if self.is_recent(_REGISTERED):
            return
        with self._lock:
            if self.is_recent(_REGISTERED):
                return
            key = self.leased("count", self.shards)
            found = self.get([key, self.format])
            if not self._of_this_version(found):
                if _REGISTERED in self.remembered:
                    self.remembered.clear()
                # The read told DynamoDB's time; nothing far can be due before.
                since = layout.number(self.clock.now_ms())
                if not found:
                    self.put({**self.format, VERSION: layout.number(FORMAT)}, NOT_THERE)
                self.put({**key, SINCE: since}, NOT_THERE)
            self.remember(_REGISTERED)

    def read_leases(self) -> Leases:
        """All leases now."""
        items: list[layout.Item] = []
        read_ms = 0
        for page in self.pages(self.leases, ConsistentRead=True):
            items += page["Items"]
            read_ms = read_ms or self.clock.read(page)
        now_ms = self.clock.now_ms()
        found: dict[str, dict[str, layout.Item]] = {"count": {}, "shard": {}, "waits": {}}
        for item in self._of_this_version(items):
            kind, _, name = item[layout.SORT]["S"].partition(" ")
            found[kind][name] = item
        counts = {int(name): int(item[SINCE]["N"]) for name, item in found["count"].items()}
        held = {int(name): item for name, item in found["shard"].items()}
        waits = {name for name, item in found["waits"].items() if int(item[UNTIL]["N"]) > read_ms}

        def since(shard: int) -> str:
            # Nothing far is due before its shard was registered; of one that is not, before now.
            return layout.position(
                min((at for n, at in counts.items() if n > shard), default=now_ms)
            )

        numbers = range(max([self.shards, *counts]))
        shards = [_lease(shard, held.get(shard, {}), since(shard)) for shard in numbers]
        return Leases(read_ms, shards, counts, frozenset(waits))

    def get_checked(self, keys: Sequence[layout.Key] = ()) -> list[layout.Item]:
        """As `get`; the version is read with them, ten seconds after it was read at the latest. Raises
        SchemaMismatch: what is there is of another version."""
        if self.is_recent(_CHECKED):
            return self.get(keys)
        return self._of_this_version(self.get([*keys, self.format]))

    def _of_this_version(self, items: Sequence[layout.Item]) -> list[layout.Item]:
        """The items without the one that tells the version, which is checked."""
        kept = []
        for item in items:
            if self.format.items() <= item.items():
                check_version(int(item[VERSION]["N"]), f"{self.name} of endpoint {self.endpoint}")
            else:
                kept.append(item)
        self.remember(_CHECKED)
        return kept

    def put_near(self, entry: layout.Entry) -> None:
        """Write a message as a near one, its look-up item first, before a cursor passes it as a far one."""
        near = replace(entry, place=replace(entry.place, lane=layout.Lane.NEAR))
        item = self.item(near)
        if near.looked_up:
            self.put(self.lookup_item(near.place))
        self.put(item)

    def read_lease(self, shard: int) -> Lease:
        """One shard's lease now; a shard never served has an empty cursor."""
        items = self.get([self.leased("shard", shard)])
        return _lease(shard, items[0] if items else {}, "")

    def take_lease(self, lease: Lease, *, far: str, near: str) -> Lease | None:
        """Take a free shard to release messages up to these positions, or begin its lease anew. None:
        somebody was faster, or the lease was lost."""
        until_ms = self.clock.now_ms() + round(self.lease_seconds * 1000)
        taken = replace(lease, owner=self.owner, until_ms=until_ms, taken_far=far, taken_near=near)
        return self._write_lease(lease, taken)

    def settle_lease(self, lease: Lease, *, cursor: str) -> bool:
        """Move the cursor and let go of a shard; False: the lease was lost."""
        settled = replace(lease, until_ms=0, cursor=cursor, taken_far="", taken_near="")
        return self._write_lease(lease, settled) is not None

    def transact_unless_in_hand(
        self, place: layout.Place, actions: list[dict[str, Any]]
    ) -> int | None:
        """Write all of it; None where somebody is releasing, or has released, the message. Returns when
        DynamoDB confirmed it, epoch milliseconds."""
        taken = TAKEN_FAR if place.lane is layout.Lane.FAR else TAKEN_NEAR
        condition = f"attribute_not_exists({taken}) OR {taken} < :at OR {UNTIL} <= :now"
        if place.lane is layout.Lane.FAR:
            condition = f"(attribute_not_exists({CURSOR}) OR {CURSOR} < :at) AND ({condition})"
        now = layout.number(self.clock.now_ms())
        not_in_hand = {
            "ConditionCheck": {
                "Key": self.leased("shard", place.shard),
                "ConditionExpression": condition,
                "ExpressionAttributeValues": {":at": {"S": place.position}, ":now": now},
            }
        }
        try:
            return self.transact(not_in_hand, *actions)
        except ConditionFailed:
            return None

    def ask_for_room(self) -> None:
        """Have other dispatchers leave room for this one."""
        now_ms = self.clock.now_ms()
        with self._lock:
            if now_ms < self._waits_until_ms - _WAITING_MS // 2:
                return
            self._waits_until_ms = until = now_ms + _WAITING_MS
        room = {UNTIL: layout.number(until), layout.EXPIRY: layout.number(until // 1000)}
        self.put({**self.leased("waits", self.owner), **room})

    def _write_lease(self, seen: Lease, wanted: Lease) -> Lease | None:
        """Replace a lease if it is as it was seen. (Or already as wanted: an answer was lost.)"""
        new = replace(wanted, version=seen.version + 1, token=secrets.token_hex(4))
        numbers = {name: layout.number(getattr(new, field)) for field, name in _NUMBERS.items()}
        texts = {name: {"S": getattr(new, field)} for field, name in _TEXTS.items()}
        texts = {name: text for name, text in texts.items() if text["S"]}
        item: layout.Item = {**self.leased("shard", new.shard), **numbers, **texts}
        condition = f"{VERSION} = :seen OR {TOKEN} = :token"
        if seen.version == 0:
            condition += f" OR attribute_not_exists({VERSION})"
        written, _ = self.put(
            item, condition, seen=layout.number(seen.version), token={"S": new.token}
        )
        return new if written else None


def _lease(shard: int, item: layout.Item, since: str) -> Lease:
    told: Any = {field: int(item[name]["N"]) for field, name in _NUMBERS.items() if name in item}
    told |= {field: item[name]["S"] for field, name in _TEXTS.items() if name in item}
    return Lease(shard=shard, **{"cursor": since, **told})
