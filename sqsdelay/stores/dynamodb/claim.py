"""A claim on DynamoDB: batches of leased shards, and how they are taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final

from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError, StoreError
from sqsdelay.stores.dynamodb.batch import ShardBatch
from sqsdelay.stores.dynamodb.item import Entry
from sqsdelay.stores.dynamodb.lanes import Lanes, Range
from sqsdelay.stores.dynamodb.layout import (
    CLAIMED_AHEAD_MS,
    HOUR_MS,
    Lane,
    Layout,
    Place,
    due_ms_of,
    position,
)
from sqsdelay.stores.dynamodb.leases import Lease, LeaseBook, Leases
from sqsdelay.stores.dynamodb.table import Table

logger = logging.getLogger(__name__)

_LEAST_PEEKED: Final = 25
"""Of each shard, so that few messages are claimed in order over all shards."""

_MOST_ROUNDS: Final = 20
"""Batches in which nothing but messages to excluded destinations was found, before a claim gives up."""


class DynamoDbClaim:
    """Messages under the leases of their shards."""

    transaction: Final = None

    def __init__(self, table: Table, batches: list[ShardBatch], limit: int) -> None:
        held = [(entry, batch) for batch in batches for entry in batch.open]
        held = sorted(held, key=lambda one: one[0].place)[:limit]
        self.messages: list[StoredMessage] = [entry.message for entry, _ in held]
        self._table = table
        self._batches = batches
        self._held = {entry.message_id: (entry, batch) for entry, batch in held}

    def attempt(self) -> AbstractContextManager[None]:
        raise ConfigurationError("a DynamoDB store has no transaction to attempt anything in")

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        return self._settle(message_ids, lambda entry, batch: batch.remove(entry))

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        until_ms = self._in(retry_after_seconds)
        return self._settle(message_ids, lambda entry, batch: batch.hold(entry, until_ms, 1))

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        until_ms = self._in(seconds)
        return self._settle(message_ids, lambda entry, batch: batch.hold(entry, until_ms, 0))

    def _in(self, seconds: float) -> int:
        return self._table.clock.now_ms() + round(seconds * 1000)

    def _settle(
        self, message_ids: Sequence[str], one: Callable[[Entry, ShardBatch], bool]
    ) -> list[bool]:
        asked = [i for i in dict.fromkeys(message_ids) if i in self._held]
        owned = {batch: batch.owned() for batch in dict.fromkeys(self._held[i][1] for i in asked)}
        mine = [i for i in asked if owned[self._held[i][1]]]
        done = dict(zip(mine, self._table.each(lambda i: one(*self._held[i]), mine), strict=True))
        for batch in owned:
            batch.settled({i for i in mine if self._held[i][1] is batch})
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
        errors = []
        for batch in self._batches:
            try:
                batch.let_go()
            except StoreError as error:
                errors.append(error)
        if errors:
            # Nothing is lost: the leases end, and what they covered is released again.
            raise errors[0]


class Claimant:
    """Takes shards for claims."""

    def __init__(self, table: Table, layout: Layout, lanes: Lanes, book: LeaseBook) -> None:
        self._table = table
        self._layout = layout
        self._lanes = lanes
        self._book = book

    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str]
    ) -> DynamoDbClaim:
        """A claim of the first messages that are due, of as many shards as are this one's share."""
        for _ in range(_MOST_ROUNDS):
            leases = self._book.read()
            wanted = Range(
                # Never further ahead than what is written far can be sure of.
                min(due_by_ms, leases.read_ms + CLAIMED_AHEAD_MS),
                leases.read_ms,
                frozenset(except_destinations),
            )
            batches = self._take_all(leases, wanted, limit)
            moved = sum(batch.set_aside(except_destinations) for batch in batches)
            claim = DynamoDbClaim(self._table, batches, limit)
            if claim.messages or not batches:
                break
            claim.release()
            if not moved:
                break
        return claim

    def _take_all(self, leases: Leases, wanted: Range, limit: int) -> list[ShardBatch]:
        free = leases.free(self._book.owner)
        if leases.crowded(self._book.owner):
            self._book.wait()
        each = max(_LEAST_PEEKED, -(-limit // max(1, len(free))))
        peeked = self._table.each(lambda lease: self._lanes.peek(lease, wanted, each), free)
        first = set(sorted(place for places in peeked for place in places)[:limit])
        chosen = [
            (lease, [place for place in places if place in first])
            for lease, places in zip(free, peeked, strict=True)
        ]
        taken = self._table.each(lambda some: self._take(*some, wanted), chosen)
        batches = [batch for batch in taken if isinstance(batch, ShardBatch)]
        errors = [error for error in taken if isinstance(error, StoreError)]
        if errors and not batches:
            raise errors[0]
        for error in errors:
            # The others of this claim go on; this shard is free when its lease, if any, ends.
            logger.warning("shard not taken: %s", one_line(error))
        return batches

    def _take(
        self, lease: Lease, places: list[Place], wanted: Range
    ) -> ShardBatch | StoreError | None:
        """Lease a shard up to the last of these places, and read what the lease covers."""
        far = max((p.position for p in places if p.lane is Lane.FAR), default="")
        near = max((p.position for p in places if p.lane is Lane.NEAR), default="")
        this_hour = wanted.due_by_ms // HOUR_MS
        if not far and due_ms_of(lease.cursor) // HOUR_MS < this_hour:
            # A cursor moves on with the hours, although nothing is due.
            far = position(this_hour * HOUR_MS)
        if not far and not near:
            return None
        try:
            taken = self._book.take(lease, far=far, near=near)
            if taken is None:
                # Somebody was faster: from now on others leave this dispatcher its share.
                self._book.wait()
                return None
            return self._read(taken, wanted)
        except StoreError as error:
            return error

    def _read(self, lease: Lease, wanted: Range) -> ShardBatch:
        try:
            found, all_of_it = self._lanes.taken(lease, wanted)
        except StoreError:
            with suppress(StoreError):
                self._book.settle(lease, cursor=lease.cursor)
            raise
        passes = lease.cursor
        if lease.taken_far:
            far = [entry.place.position for entry in found if entry.place.lane is Lane.FAR]
            passes = lease.taken_far if all_of_it else max(far)
        return ShardBatch(self._table, self._layout, self._book, lease, found, passes)
