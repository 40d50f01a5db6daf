"""Claims: what is due of leased shards, and how a shard's messages are settled under its lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Final

from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError, StoreError
from sqsdelay.stores.dynamodb import layout
from sqsdelay.stores.dynamodb.leases import Lease, LeasedTable, Leases
from sqsdelay.stores.dynamodb.table import THERE, Range
from sqsdelay.stores.shared import HoldingClaim

logger = logging.getLogger(__name__)

_LEAST_PEEKED: Final = 25
"""Of each shard, so that few messages are claimed in order over all shards."""

_MOST_ROUNDS: Final = 20
"""Batches in which nothing but messages to excluded destinations was found, before a claim gives up."""

_RENEWED_BEFORE_MS: Final = 3_000
"""A lease that ends sooner is renewed before a message is deleted under it."""


class ShardBatch:
    """Messages of one shard that are being released, under its lease. ``found``: what the lease covers, far
    messages in order. One that is in both lanes (a dispatcher died while it was held) is the near one.
    ``passes``: where the cursor goes when all is settled."""

    def __init__(
        self, table: LeasedTable, lease: Lease, found: Sequence[layout.Entry], passes: str
    ) -> None:
        self._table = table
        self._lease: Lease | None = lease
        self._lock = threading.RLock()
        self._passes = passes
        self._far = [entry for entry in found if entry.place.lane is layout.Lane.FAR]
        self.open = {entry.message_id: entry for entry in found}
        """By id, what is not settled yet: neither removed, nor held elsewhere."""

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
                far, near = self._lease.taken_far, self._lease.taken_near
                self._lease = self._table.take_lease(self._lease, far=far, near=near)

    def remove(self, entry: layout.Entry) -> bool:
        """Delete a released message if it is a near one; the cursor passes a far one."""
        if entry.place.lane is layout.Lane.FAR:
            return True
        there = self._table.delete(self._table.message(entry.place))
        if entry.looked_up:
            self._table.delete(self._table.lookup(entry.message_id))
        return there

    def hold(self, entry: layout.Entry, until_ms: int = 0, failed: int = 0) -> bool:
        """Have a message wait until then among the near ones, where it holds up no cursor. A far one is
        copied there before the cursor passes it. False: a near one was not there."""
        held = entry.at(entry.place, failed=failed, held_until_ms=until_ms)
        if entry.place.lane is layout.Lane.NEAR:
            return self._table.put(self._table.item(held), THERE)[0]
        self._table.put_near(held)
        return True

    def set_near(self, chosen: Callable[[layout.Entry], bool]) -> int:
        """Move the chosen far messages to the near ones as they are; how many."""
        far = [entry for entry in self.open.values() if entry.place.lane is layout.Lane.FAR]
        moved = [entry for entry in far if chosen(entry)]
        for entry in moved:
            self.hold(entry)
            del self.open[entry.message_id]
        return len(moved)

    def let_go(self) -> bool:
        """Move the cursor and free the shard; False: the lease was lost, or let go before. Far messages that
        nobody settled, and that lie before one that is, go to the near ones."""
        with self._lock:
            if self._lease is None:
                return False
            settled = self._table.settle_lease(self._lease, cursor=self._cursor(self._lease))
            self._lease = None
            return settled

    def _cursor(self, lease: Lease) -> str:
        if not self.open:
            return self._passes
        settled = [entry.place for entry in self._far if entry.message_id not in self.open]
        if not settled:
            return lease.cursor
        self.set_near(lambda entry: entry.place < settled[-1])
        return settled[-1].position


class DynamoDbClaim(HoldingClaim):
    """The first messages that are due, under the leases of as many shards as are this dispatcher's share."""

    transaction: Final = None

    def __init__(
        self, table: LeasedTable, limit: int, due_by_ms: int, closed: Collection[str]
    ) -> None:
        self._table = table
        self._limit = limit
        self._due_by_ms = due_by_ms
        self._closed = frozenset(closed)
        self._batches: list[ShardBatch] = []
        self._held: dict[str, tuple[layout.Entry, ShardBatch]] = {}
        self.messages: list[StoredMessage] = []

    def take(self) -> None:
        """Lease shards until there is something in hand, or nothing is due. What goes to closed destinations
        is moved out of the cursors' way."""
        for _ in range(_MOST_ROUNDS):
            leases = self._table.read_leases()
            # Never further ahead than what is written far can be sure of.
            due_by_ms = min(self._due_by_ms, leases.read_ms + layout.CLAIMED_AHEAD_MS)
            self._lease(leases, Range(due_by_ms, leases.read_ms, self._closed))
            closed = sum(
                batch.set_near(lambda entry: entry.message.destination in self._closed)
                for batch in self._batches
            )
            held = [(entry, batch) for batch in self._batches for entry in batch.open.values()]
            held = sorted(held, key=lambda one: one[0].place)[: self._limit]
            if held or not self._batches:
                break
            self.release()
            self._batches = []
            if not closed:
                break
        self.messages = [entry.message for entry, _ in held]
        self._held = {entry.message_id: (entry, batch) for entry, batch in held}

    def _lease(self, leases: Leases, wanted: Range) -> None:
        free = leases.free(self._table.owner)
        if leases.crowded(self._table.owner):
            self._table.ask_for_room()
        each = max(_LEAST_PEEKED, -(-self._limit // max(1, len(free))))
        peeked = self._table.each(
            lambda lease: self._table.peek(lease.shard, lease.cursor, wanted, each), free
        )
        first = set(sorted(place for places in peeked for place in places)[: self._limit])
        chosen = [(lease, first & set(places)) for lease, places in zip(free, peeked, strict=True)]
        taken = self._table.each(lambda some: self._take(*some, wanted), chosen)
        self._batches = [batch for batch in taken if isinstance(batch, ShardBatch)]
        errors = [error for error in taken if isinstance(error, StoreError)]
        if errors and not self._batches:
            raise errors[0]
        for error in errors:
            # The others of this claim go on; this shard is free when its lease, if any, ends.
            logger.warning("shard not taken: %s", one_line(error))

    def _take(
        self, lease: Lease, places: Collection[layout.Place], wanted: Range
    ) -> ShardBatch | StoreError | None:
        """Lease a shard up to the last of these places, and read what the lease covers."""
        far = max((p.position for p in places if p.lane is layout.Lane.FAR), default="")
        near = max((p.position for p in places if p.lane is layout.Lane.NEAR), default="")
        this_hour = wanted.due_by_ms // layout.HOUR_MS
        if not far and layout.due_ms_of(lease.cursor) // layout.HOUR_MS < this_hour:
            # A cursor moves on with the hours, although nothing is due.
            far = layout.position(this_hour * layout.HOUR_MS)
        if not far and not near:
            return None
        taken = None
        try:
            taken = self._table.take_lease(lease, far=far, near=near)
            if taken is None:
                # Somebody was faster: from now on others leave this dispatcher its share.
                self._table.ask_for_room()
                return None
            found, last_far = self._table.taken(taken.shard, taken.cursor, far, near, wanted)
        except StoreError as error:
            if taken is not None:
                with suppress(StoreError):
                    self._table.settle_lease(taken, cursor=taken.cursor)
            return error
        return ShardBatch(self._table, taken, found, passes=last_far or taken.cursor)

    def attempt(self) -> AbstractContextManager[None]:
        raise ConfigurationError("a DynamoDB store has no transaction to attempt anything in")

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        return self._settle(message_ids, lambda entry, batch: batch.remove(entry))

    def _hold(self, message_ids: Sequence[str], seconds: float, failed: int) -> list[bool]:
        until_ms = self._table.clock.now_ms() + round(seconds * 1000)
        return self._settle(message_ids, lambda entry, batch: batch.hold(entry, until_ms, failed))

    def _settle(
        self, message_ids: Sequence[str], one: Callable[[layout.Entry, ShardBatch], bool]
    ) -> list[bool]:
        asked = [i for i in dict.fromkeys(message_ids) if i in self._held]
        owned = {batch: batch.owned() for batch in dict.fromkeys(self._held[i][1] for i in asked)}
        mine = [i for i in asked if owned[self._held[i][1]]]
        done = dict(zip(mine, self._table.each(lambda i: one(*self._held[i]), mine), strict=True))
        for message_id in mine:
            del self._held[message_id][1].open[message_id]
        # Freed at once: one write less than to move the cursor now and free the shard later.
        finished = [batch for batch, ours in owned.items() if ours and not batch.open]
        kept = self._table.each(lambda batch: batch.let_go(), finished)
        lost = {batch for batch, ours in zip(finished, kept, strict=True) if not ours}
        answers = [done.get(i, False) and self._held[i][1] not in lost for i in message_ids]
        for message_id in mine:
            del self._held[message_id]
        return answers

    def renew(self) -> None:
        """Begin the leases anew for what is not settled yet."""
        for batch in self._batches:
            batch.renew()

    def release(self) -> None:
        """Let go of the shards; what was not settled is free again."""
        # After an error the others are let go all the same. Nothing is lost: the lease ends, and what it
        # covered is released again.
        with ExitStack() as stack:
            for batch in self._batches:
                stack.callback(batch.let_go)
