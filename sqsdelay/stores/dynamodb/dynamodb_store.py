"""`DynamoDbStore`: parked messages in a table, shards of them leased to dispatchers."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.core.delay import Clock, SystemClock, check_range
from sqsdelay.core.limits import MAX_DYNAMODB_ITEM_BYTES
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidSetting, MessageTooLarge
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode
from sqsdelay.stores import shared
from sqsdelay.stores.calls import check_no_transaction
from sqsdelay.stores.dynamodb.claim import DynamoDbClaim
from sqsdelay.stores.dynamodb.layout import HOUR_MS, Entry, due_ms_of, position
from sqsdelay.stores.dynamodb.leases import Lease, LeasedTable, Leases
from sqsdelay.stores.dynamodb.waiting import Waiting
from sqsdelay.stores.shared import DEFAULT_LEASE_SECONDS, Pages, kept_alive

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

DEFAULT_SHARDS: Final = 8
"""A partition writes about 1,000 items a second; so many times that are due in one hour."""

MAX_SHARDS: Final = 1000
"""Each is a query or two that a dispatcher makes whenever it looks."""

STANDARD: Final = "STANDARD"
INFREQUENT_ACCESS: Final = "STANDARD_INFREQUENT_ACCESS"
TABLE_CLASSES: Final = (STANDARD, INFREQUENT_ACCESS)
"""Source: CreateTable API reference, TableClass."""


class DynamoDbStore(Waiting, Pages, DelayedMessageStore):
    """Delayed messages in a DynamoDB table, which several endpoints may share. `pending` reads hour by hour:
    it is for people, not for loops.

    Args:
        table: the table's name.
        endpoint: whose messages these are.
        client: a boto3 DynamoDB client; made from the default session when left out.
        shards: over how many partitions an hour's messages are spread. More can be chosen while
            messages wait; fewer takes effect for new messages only.
        lookup: keep a look-up item for each message whose id the user gave, so that it can be found,
            cancelled and moved by it, and is stored once. It costs a write unit. Ids that sqsdelay
            generates need none.
        table_class: of a table that `set_up` creates.
        lease_seconds: how long the shards of a dispatcher that died stay held.
        clock: tests only: DynamoDB's own time is read from its answers.

    Raises:
        ConfigurationError: a setting out of range, an endpoint with a ``/`` in its name.
    """

    poll_seconds: Final = 1.0
    modes: Final = frozenset({TransactionMode.AT_LEAST_ONCE})

    def __init__(
        self,
        table: str,
        *,
        endpoint: str,
        client: DynamoDBClient | None = None,
        shards: int = DEFAULT_SHARDS,
        lookup: bool = True,
        table_class: str = STANDARD,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        check_range(1, MAX_SHARDS, shards=shards)
        if table_class not in TABLE_CLASSES:
            raise InvalidSetting(f"use {' or '.join(TABLE_CLASSES)}", table_class=table_class)
        self._table_class = table_class
        shared.checked_lease(lease_seconds)
        self._table = LeasedTable(
            table, endpoint, client, clock, shards=shards, lease_seconds=lease_seconds
        )
        self.client = self._table.client
        self._now_ms = (clock or SystemClock()).now_ms
        self._lookup = lookup

    def set_up(self) -> None:
        """Create the table (on-demand billing) unless it exists, and let it forget what is released."""
        self._table.set_up(self._table_class)

    def initialize(self, mode: TransactionMode) -> None:
        check_no_transaction("a DynamoDB store", mode)
        self._table.check()
        self._table.read_leases()

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        check_no_transaction("a DynamoDB store", None, transaction)
        # The first of each id: DynamoDB writes a call's items in no order.
        first = list({message.message_id: message for message in reversed(messages)}.values())[::-1]
        if not first:
            return []
        entries = self._entries(first)
        self._prepare(entry.place for entry in entries)
        put = self._table.each(self._put, entries)
        inserted = [m.message_id for m, new in zip(first, put, strict=True) if new]
        if inserted:
            self._wake()
        return shared.new_once(messages, inserted)

    def too_large(self, message: StoredMessage) -> bool:
        """Whether a message, its body deflated, takes more than an item holds."""
        if len(message.body) + len(message.headers()) <= MAX_DYNAMODB_ITEM_BYTES // 2:
            return False
        with suppress(MessageTooLarge):
            self._entries([message])
            return False
        return True

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[Claim]:
        """Claim messages of as many shards as are this dispatcher's share.

        At most 901 seconds ahead of DynamoDB's clock: what is due later is not yet claimed."""
        claim = DynamoDbClaim(self._table, limit, due_by_ms, except_destinations)
        claim.take()
        if not claim.messages:
            yield claim
            return
        try:
            with kept_alive(claim.renew, lease_seconds=self._table.lease_seconds):
                yield claim
        finally:
            claim.release()

    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        leases = self._table.read_leases()
        now_ms = leases.read_ms

        def kept(entry: Entry) -> bool:
            return entry.message.destination not in except_destinations

        def first_near(lease: Lease) -> int | None:
            after = lease.taken_near if lease.live(now_ms) else ""
            near = self._table.entries(lease.shard, None, after, limit=25)
            free = (entry for entry in near if entry.held_until_ms <= now_ms and kept(entry))
            return next((entry.place.due_ms for entry in free), None)

        dues = [due for due in self._table.each(first_near, leases.shards) if due is not None]
        most = 1 if not except_destinations else 1000
        far = self._far(leases, most, "", min(dues, default=None), in_hand=True)
        dues += islice((entry.place.due_ms for entry in far if kept(entry)), 1)
        return min(dues, default=None)

    def pending_count(self) -> int:
        """Reads all of the endpoint's messages: for people, not for loops."""
        leases = self._table.read_leases()
        first = min(due_ms_of(lease.cursor) for lease in leases.shards) // HOUR_MS
        hours = [None, *self._table.hours_from(first)]

        def waiting(one: tuple[Lease, int | None]) -> int:
            lease, hour = one
            after = "" if hour is None else lease.cursor
            return self._table.count_behind(lease.shard, hour, after)

        return sum(self._table.each(waiting, product(leases.shards, hours)))

    def _page(self, limit: int, from_ms: int, from_id: str, before_ms: int) -> list[StoredMessage]:
        start = "" if from_ms < 0 else position(from_ms, from_id)
        leases = self._table.read_leases()
        near = self._table.each(
            lambda lease: list(self._table.entries(lease.shard, None, start)), leases.shards
        )
        # A held message can be in both lanes for a moment: as many more are read of the far one.
        far = self._far(leases, limit + sum(map(len, near)), start, before_ms)
        found: dict[str, StoredMessage] = {}
        for entry in heapq.merge(*near, far, key=lambda entry: entry.place):
            if entry.place.due_ms >= before_ms or len(found) == limit:
                break
            found.setdefault(entry.message_id, entry.message)
        return list(found.values())

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
        for hour in self._table.hours_from(first):
            if before_ms is not None and hour * HOUR_MS >= before_ms:
                return

            def of_shard(lease: Lease, hour: int = hour) -> list[Entry]:
                page = min(limit + 1, 1000)
                entries = self._table.entries(lease.shard, hour, start(lease), limit=page)
                return list(islice(entries, limit + 1))

            found = self._table.each(of_shard, leases.shards)
            merged = heapq.merge(*found, key=lambda entry: entry.place)
            cut_off = any(len(entries) > limit for entries in found)
            # One more of each is read; the first so many of all shards are sure to be all there.
            yield from islice(merged, limit) if cut_off else merged

    def close(self) -> None:
        self._table.close()
