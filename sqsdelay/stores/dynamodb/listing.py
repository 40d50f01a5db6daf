"""Listing what waits: near messages, and far ones hour by hour behind the cursors. For people."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.stores.dynamodb.item import Entry
from sqsdelay.stores.dynamodb.lanes import Lanes
from sqsdelay.stores.dynamodb.layout import HOUR_MS, due_ms_of, position
from sqsdelay.stores.dynamodb.leases import Lease, LeaseBook, Leases
from sqsdelay.stores.dynamodb.table import Table


class Listing:
    """An endpoint's messages that are not released, in order."""

    def __init__(self, table: Table, lanes: Lanes, book: LeaseBook) -> None:
        self._table = table
        self._lanes = lanes
        self._book = book

    def count(self) -> int:
        """How many there are. Reads their keys' partitions whole."""
        leases = self._book.read()
        near = self._table.each(lambda lease: self._lanes.count(lease.shard, None), leases.shards)
        far = [
            (lease, hour)
            for hour in self._lanes.hours(due_ms_of(leases.first_position) // HOUR_MS)
            for lease in leases.shards
        ]

        def of_hour(one: tuple[Lease, int]) -> int:
            lease, hour = one
            passed = due_ms_of(lease.cursor) // HOUR_MS > hour
            return 0 if passed else self._lanes.count(lease.shard, hour, lease.cursor)

        return sum(near) + sum(self._table.each(of_hour, far))

    def page(
        self, limit: int, after: str, *, from_ms: int | None, before_ms: int | None
    ) -> list[StoredMessage]:
        """The first messages behind a position."""
        if from_ms is not None:
            after = max(after, position(from_ms))
        found: list[StoredMessage] = []
        known: set[str] = set()
        for entry in self._entries(limit, after, before_ms):
            if before_ms is not None and entry.place.due_ms >= before_ms:
                break
            if entry.message_id not in known:
                known.add(entry.message_id)
                found.append(entry.message)
                if len(found) == limit:
                    break
        return found

    def next_due_ms(self, except_destinations: Collection[str]) -> int | None:
        """When the first is due that nobody holds, and nobody has in hand."""
        leases = self._book.read()
        now_ms = leases.read_ms

        def kept(entry: Entry) -> bool:
            return entry.message.destination not in except_destinations

        in_hand = {x.shard: x for x in leases.shards if x.live(now_ms)}

        def first_near(lease: Lease) -> int | None:
            after = in_hand[lease.shard].taken_near if lease.shard in in_hand else ""
            for entry in self._lanes.waiting(lease.shard, None, after, limit=25):
                if entry.held_until_ms <= now_ms and kept(entry):
                    return entry.place.due_ms
            return None

        near = [due for due in self._table.each(first_near, leases.shards) if due is not None]
        found = min(near, default=None)
        most = 1 if not except_destinations else 1000
        for entry in self._far(leases, most, "", found, in_hand=True):
            if kept(entry):
                return entry.place.due_ms if found is None else min(found, entry.place.due_ms)
        return found

    def _entries(self, limit: int, after: str, before_ms: int | None) -> Iterator[Entry]:
        leases = self._book.read()

        def near(lease: Lease) -> list[Entry]:
            return list(self._lanes.waiting(lease.shard, None, after))

        found = self._table.each(near, leases.shards)
        # A held message can be in both lanes for a moment: as many more are read of the far one.
        far = self._far(leases, limit + sum(map(len, found)), after, before_ms)
        yield from heapq.merge(*found, far, key=lambda entry: entry.place)

    def _far(
        self,
        leases: Leases,
        limit: int,
        after: str,
        before_ms: int | None,
        *,
        in_hand: bool = False,
    ) -> Iterator[Entry]:
        """Far messages hour by hour; ``in_hand`` leaves out what is being released."""

        def start(lease: Lease) -> str:
            taken = lease.taken_far if in_hand and lease.live(leases.read_ms) else ""
            return max(after, lease.cursor, taken)

        first = min(due_ms_of(start(lease)) for lease in leases.shards) // HOUR_MS
        for hour in self._lanes.hours(first):
            if before_ms is not None and hour * HOUR_MS >= before_ms:
                return

            def of_shard(lease: Lease, hour: int = hour) -> list[Entry]:
                if due_ms_of(start(lease)) // HOUR_MS > hour:
                    return []
                entries = self._lanes.waiting(
                    lease.shard, hour, start(lease), limit=min(limit + 1, 1000)
                )
                return _first(entries, limit)

            found = self._table.each(of_shard, leases.shards)
            yield from _cut(found, limit)


def _first(entries: Iterator[Entry], limit: int) -> list[Entry]:
    """The first of them and one more, by which it is known that there are more."""
    found = []
    for entry in entries:
        found.append(entry)
        if len(found) > limit:
            break
    return found


def _cut(found: list[list[Entry]], limit: int) -> Iterator[Entry]:
    """One hour's entries of all shards in order: the first ``limit`` are sure to be all there."""
    merged = heapq.merge(*found, key=lambda entry: entry.place)
    if all(len(entries) <= limit for entries in found):
        yield from merged
        return
    for n, entry in enumerate(merged):
        if n == limit:
            return
        yield entry
