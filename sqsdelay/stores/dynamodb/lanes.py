"""Reading the two lanes: what is due first, what a batch holds, what an hour holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from sqsdelay.stores.dynamodb.layout import (
    DESTINATION,
    HELD_UNTIL,
    HOUR_MS,
    PARTITION,
    SORT,
    Entry,
    Item,
    Lane,
    Place,
    due_ms_of,
    far_sort,
    number,
    place_of,
    position,
)
from sqsdelay.stores.dynamodb.leases import Lease
from sqsdelay.stores.dynamodb.table import Table

_MOST_PAGE: Final = 1000
_MOST_OPERANDS: Final = 100
"""Of IN; more destinations are left out here. Source: guide, "Comparison operator and function reference"."""
_MOST_BYTES: Final = 4 * 2**20
"""Bodies that one lane of a shard adds to a batch: eight shards stay below 64 MiB."""


class Range(NamedTuple):
    """What is looked for in a shard: messages due by then; of near ones those that are not held until
    later than now, nor go to these destinations."""

    due_by_ms: int
    now_ms: int
    except_destinations: frozenset[str]


class Lanes:
    """An endpoint's partitions of messages."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def peek(self, lease: Lease, wanted: Range, limit: int) -> list[Place]:
        """Places of a shard's first messages that are due, in no order; may be behind."""
        page = min(limit, _MOST_PAGE)
        keys_only = {"ProjectionExpression": f"{PARTITION}, {SORT}, {DESTINATION}", "Limit": page}
        far = self._far(lease.shard, lease.cursor, wanted.due_by_ms, **keys_only)
        near = self._near(lease.shard, "", wanted, **keys_only)
        return [place_of(item) for lane in (far, near) for item in islice(lane, limit)]

    def taken(self, lease: Lease, wanted: Range) -> tuple[list[Entry], str]:
        """The messages that a lease covers, each lane in order, as they are now; and the position up to
        which all its far ones are among them: not its end where they would take too much memory."""
        now: dict[str, Any] = {"ConsistentRead": True}
        far, near, last_far = list[Entry](), list[Entry](), lease.taken_far
        if lease.taken_far:
            found = self._far(lease.shard, lease.cursor, due_ms_of(lease.taken_far), **now)
            covered = (item for item in found if lease.covers(place_of(item)))
            far, all_of_it = self._within_memory(covered)
            last_far = last_far if all_of_it else far[-1].place.position
        if lease.taken_near:
            items = self._near(lease.shard, lease.taken_near, wanted, **now)
            near, _ = self._within_memory(items)
        return far + near, last_far

    def _within_memory(self, items: Iterator[Item]) -> tuple[list[Entry], bool]:
        entries: list[Entry] = []
        held = 0
        for item in items:
            if held > _MOST_BYTES:
                return entries, False
            entries.append(self._table.entry(item))
            held += len(entries[-1].message.body)
        return entries, True

    def _far(self, shard: int, after: str, due_by_ms: int, **more: Any) -> Iterator[Item]:
        """Far items behind a position that are due by then, hour by hour."""
        first, last = due_ms_of(after) // HOUR_MS, due_by_ms // HOUR_MS
        for hour in range(first, last + 1):
            # The least text behind an id: a far item's own key is left out, and nothing between.
            behind = f"{after[15:]}\x00" if after[15:] else ""
            start = far_sort(due_ms_of(after) % HOUR_MS, behind) if hour == first else "0"
            end = far_sort(due_by_ms % HOUR_MS + 1) if hour == last else "9"
            partition = self._table.far(hour, shard)
            if start <= end:
                yield from self._items(partition, "BETWEEN :a AND :b", {"a": start, "b": end}, more)

    def _near(self, shard: int, to: str, wanted: Range, **more: Any) -> Iterator[Item]:
        """Near items up to a position that are due and not held."""
        # True without that attribute, and where somebody wrote by hand what is no number.
        condition = f"(NOT {HELD_UNTIL} > :now)"
        if self._table.endpoint in wanted.except_destinations:
            condition += f" AND attribute_exists({DESTINATION})"
        left_out = sorted(wanted.except_destinations - {self._table.endpoint})[:_MOST_OPERANDS]
        values = {f":d{n}": {"S": destination} for n, destination in enumerate(left_out)}
        if left_out:
            names = ", ".join(values)
            condition += (
                f" AND (attribute_not_exists({DESTINATION}) OR NOT {DESTINATION} IN ({names}))"
            )
        values[":now"] = number(wanted.now_ms)
        filtered = {"FilterExpression": condition, "ExpressionAttributeValues": values, **more}
        last = position(wanted.due_by_ms + 1)
        end = min(to or last, last)
        for item in self._items(self._table.near(shard), "<= :b", {"b": end}, filtered):
            if self._table.destination(item) not in wanted.except_destinations:
                yield item

    def _items(
        self, partition: str, condition: str, values: dict[str, str], more: dict[str, Any]
    ) -> Iterator[Item]:
        for page in self._table.pages(partition, f"{SORT} {condition}", values, **more):
            yield from page["Items"]

    def waiting(
        self, shard: int, hour: int | None, after: str, *, limit: int | None = None
    ) -> Iterator[Entry]:
        """Messages behind a position: of an hour, or near ones where ``hour`` is None."""
        more: dict[str, Any] = {} if limit is None else {"Limit": limit}
        for page in self._behind(shard, hour, after, **more):
            yield from map(self._table.entry, page["Items"])

    def count(self, shard: int, hour: int | None, after: str = "") -> int:
        """How many messages lie behind a position: of an hour, or near ones."""
        return sum(page["Count"] for page in self._behind(shard, hour, after, Select="COUNT"))

    def _behind(self, shard: int, hour: int | None, after: str, **more: Any) -> Iterator[Item]:
        partition = self._table.near(shard) if hour is None else self._table.far(hour, shard)
        start = after or "0"
        if hour is not None:
            passed = bool(after) and due_ms_of(after) // HOUR_MS >= hour
            start = far_sort(due_ms_of(after) % HOUR_MS, after[15:]) if passed else "0"
        return self._table.pages(partition, f"{SORT} > :a", {"a": start}, **more)

    def hours(self, first: int) -> Iterator[int]:
        """Hours that messages are due in, from one on."""
        start = self._table.hour(first)[SORT]["S"]
        for item in self._items(self._table.hours, ">= :a", {"a": start}, {}):
            yield int(item[SORT]["S"])

    def about(self, place: Place, to_ms: int) -> list[Item]:
        """The items of a message that is due from a place's time on, which may span two hours."""
        now: dict[str, Any] = {"ConsistentRead": True}
        if place.lane is Lane.NEAR:
            bounds = {"a": position(place.due_ms), "b": position(to_ms + 1)}
            found = self._items(self._table.near(place.shard), "BETWEEN :a AND :b", bounds, now)
        else:
            found = self._far(place.shard, position(place.due_ms), to_ms, **now)
        return [item for item in found if place_of(item).message_id == place.message_id]
