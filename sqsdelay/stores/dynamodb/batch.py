"""A shard's part of a claim: the messages its lease covers, and how far they are settled."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from sqsdelay.stores.dynamodb.item import FAILURES, HELD_UNTIL, Entry, moved_item, number
from sqsdelay.stores.dynamodb.layout import PARTITION, Lane, Layout
from sqsdelay.stores.dynamodb.leases import Lease, LeaseBook
from sqsdelay.stores.dynamodb.lookups import lookup_item
from sqsdelay.stores.dynamodb.table import Table

_RENEWED_BEFORE_MS: Final = 3_000
"""A lease that ends sooner is renewed before a message is deleted under it."""


class ShardBatch:
    """Messages of one shard that are being released, under its lease.

    Args:
        lease: as it was written.
        found: what it covers, far messages in order. One that is in both lanes (a dispatcher died
            while it was held) is the near one.
        passes: where the cursor goes when all is settled.
    """

    def __init__(
        self,
        table: Table,
        layout: Layout,
        book: LeaseBook,
        lease: Lease,
        found: Sequence[Entry],
        passes: str,
    ) -> None:
        self._table = table
        self._layout = layout
        self._book = book
        self._lease: Lease | None = lease
        self._lock = threading.RLock()
        self._passes = passes
        self._far = [entry for entry in found if entry.place.lane is Lane.FAR]
        self._entries = {entry.message_id: entry for entry in found}
        self._settled: set[str] = set()

    @property
    def open(self) -> list[Entry]:
        """What is not settled yet."""
        return [e for e in self._entries.values() if e.message_id not in self._settled]

    def owned(self) -> bool:
        """Whether the lease still holds; renewed where it soon would not."""
        with self._lock:
            if self._lease is None:
                return False
            if self._lease.until_ms - self._table.clock.now_ms() < _RENEWED_BEFORE_MS:
                self.renew()
            return self._lease is not None

    def renew(self) -> None:
        """Begin the lease anew, unless it was let go."""
        with self._lock:
            if self._lease is not None:
                self._lease = self._book.renew(self._lease)

    def remove(self, entry: Entry) -> bool:
        """Delete a released message if it is a near one; the cursor passes a far one."""
        if entry.place.lane is Lane.FAR:
            return True
        there = self._table.delete(self._layout.message(entry.place))
        if entry.looked_up:
            self._table.delete(self._layout.lookup(entry.message_id))
        return there

    def hold(self, entry: Entry, until_ms: int, failed: int) -> bool:
        """Have a message wait until then among the near ones, where it holds up no cursor."""
        if entry.place.lane is Lane.FAR:
            self._set_near(entry, until_ms, failed)
            return True
        failures = entry.message.failures + failed
        return self._table.applied(
            self._table.client.update_item,
            Key=self._layout.message(entry.place),
            UpdateExpression=f"SET {HELD_UNTIL} = :until, {FAILURES} = :failures",
            ConditionExpression=f"attribute_exists({PARTITION})",
            ExpressionAttributeValues={":until": number(until_ms), ":failures": number(failures)},
        )

    def settled(self, message_ids: Collection[str]) -> None:
        """Messages are done with: removed, or held elsewhere."""
        self._settled.update(message_ids)

    def set_aside(self, destinations: Collection[str]) -> int:
        """Move far messages to these destinations to the near ones; how many."""
        aside = [
            entry
            for entry in self.open
            if entry.place.lane is Lane.FAR and entry.message.destination in destinations
        ]
        for entry in aside:
            self._set_near(entry, 0, 0)
        self.settled({entry.message_id for entry in aside})
        return len(aside)

    def let_go(self) -> bool:
        """Move the cursor and free the shard; False: the lease was lost, or let go before.

        Far messages that nobody settled, and that lie before one that is, go to the near ones.
        """
        with self._lock:
            if self._lease is None:
                return False
            settled = self._book.settle(self._lease, cursor=self._cursor(self._lease))
            self._lease = None
            return settled

    def _cursor(self, lease: Lease) -> str:
        if not self.open:
            return self._passes
        last = max(
            (n for n, e in enumerate(self._far) if e.message_id in self._settled), default=-1
        )
        passed = self._far[: last + 1]
        left = [entry for entry in passed if entry.message_id not in self._settled]
        for entry in left:
            self._set_near(entry, 0, 0)
        self.settled({entry.message_id for entry in left})
        return passed[-1].place.position if passed else lease.cursor

    def _set_near(self, entry: Entry, until_ms: int, failed: int) -> None:
        """Copy a far message to the near ones, before the cursor passes it."""
        place = replace(entry.place, lane=Lane.NEAR)
        item = moved_item(
            self._layout,
            entry,
            place,
            looked_up=entry.looked_up,
            failures=entry.message.failures + failed,
            held_until_ms=until_ms,
        )
        if entry.looked_up:
            self._table.put(lookup_item(self._layout, place))
        self._table.put(item)
