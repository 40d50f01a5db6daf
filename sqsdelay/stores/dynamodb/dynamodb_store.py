"""`DynamoDbStore`: parked messages in a table, shards of them leased to dispatchers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.stored_message import Amendment, StoredMessage, check_stored_due
from sqsdelay.errors import ConfigurationError, InvalidSetting, MessageTooLarge
from sqsdelay.limits import MAX_DYNAMODB_ITEM_BYTES
from sqsdelay.ports.stores import Claim, TransactionMode
from sqsdelay.stores.dispatchers import DEFAULT_LEASE_SECONDS, Wakes, checked_lease, kept_alive
from sqsdelay.stores.dynamodb.amendments import Amendments
from sqsdelay.stores.dynamodb.claim import Claimant
from sqsdelay.stores.dynamodb.lanes import Lanes
from sqsdelay.stores.dynamodb.layout import Layout, position
from sqsdelay.stores.dynamodb.leases import LeaseBook
from sqsdelay.stores.dynamodb.listing import Listing
from sqsdelay.stores.dynamodb.table import Table
from sqsdelay.stores.dynamodb.waiting import Waiting
from sqsdelay.stores.ids import new_once

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


class DynamoDbStore(Wakes):
    """Delayed messages in a DynamoDB table, which several endpoints may share.

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
        if not 1 <= shards <= MAX_SHARDS:
            raise InvalidSetting(f"shards={shards}; use 1 to {MAX_SHARDS}")
        if table_class not in TABLE_CLASSES:
            raise InvalidSetting(f"table_class={table_class!r}; use {' or '.join(TABLE_CLASSES)}")
        self._table_class = table_class
        self._table = Table(table, client, clock)
        self._layout = Layout(endpoint)
        self._amendment_clock = clock or SystemClock()
        lanes = Lanes(self._table, self._layout)
        self._book = book = LeaseBook(
            self._table,
            self._layout,
            shards=shards,
            lease_seconds=checked_lease(lease_seconds),
        )
        self._amendments = Amendments(self._table, self._layout, book)
        self._claimant = Claimant(self._table, self._layout, lanes, book)
        self._listing = Listing(self._table, lanes, book)
        self._waiting = Waiting(
            self._table, self._layout, lanes, book, shards=shards, lookup=lookup
        )

    def set_up(self) -> None:
        """Create the table (on-demand billing) unless it exists, and let it forget what is released."""
        self._table.set_up(self._table_class)
        self._book.set_up()

    def initialize(self, mode: TransactionMode) -> None:
        if mode not in self.modes:
            raise ConfigurationError(
                f"a DynamoDB store cannot give {mode}: its transactions cannot include your own writes; use "
                f"{TransactionMode.AT_LEAST_ONCE}, or a SQLite or PostgreSQL store"
            )
        self._table.check()
        self._book.get()

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        if transaction is not None:
            raise ConfigurationError(
                "a DynamoDB store takes no transaction=; leave it out, or use SQLite or PostgreSQL"
            )
        first = list(_first_of_each(messages).values())
        if not first:
            return []
        placed = self._waiting.items(first)
        self._waiting.prepare(place for place, _ in placed)
        put = self._table.each(lambda one: self._waiting.put(*one), placed)
        inserted = [m.message_id for m, new in zip(first, put, strict=True) if new]
        if inserted:
            self._wake()
        return new_once(messages, inserted)

    def too_large(self, message: StoredMessage) -> bool:
        """Whether a message, its body deflated, takes more than an item holds."""
        if len(message.body) + len(message.headers()) <= MAX_DYNAMODB_ITEM_BYTES // 2:
            return False
        try:
            self._waiting.items([message])
        except MessageTooLarge:
            return True
        return False

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[Claim]:
        """Claim messages of as many shards as are this dispatcher's share.

        At most 901 seconds ahead of DynamoDB's clock: what is due later is not yet claimed.
        """
        claim = self._claimant.claim(
            limit, due_by_ms=due_by_ms, except_destinations=except_destinations
        )
        if not claim.messages:
            yield claim
            return
        try:
            with kept_alive(claim.renew, lease_seconds=self._book.lease_seconds):
                yield claim
        finally:
            claim.release()

    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        return self._listing.next_due_ms(except_destinations)

    def pending_count(self) -> int:
        """Reads all of the endpoint's messages: for people, not for loops."""
        return self._listing.count()

    def pending(
        self,
        limit: int,
        *,
        after: tuple[int, str] | None = None,
        due_from_ms: int | None = None,
        due_before_ms: int | None = None,
    ) -> list[StoredMessage]:
        """One page, hour by hour; for people, not for loops."""
        start = "" if after is None else position(*after) if after[0] >= 0 else ""
        return self._listing.page(limit, start, from_ms=due_from_ms, before_ms=due_before_ms)

    def find(self, message_id: str) -> StoredMessage | None:
        entry = self._waiting.find(message_id)
        return None if entry is None else entry.message

    def find_due(self, message_id: str, due_ms: int) -> StoredMessage | None:
        """As `find`; with ``lookup=False``, an id of the user's own is found by its due time."""
        entry = self._waiting.find(message_id, due_ms)
        return None if entry is None else entry.message

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        return self._table.each(self._waiting.cancel, message_ids)

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        check_stored_due(due_ms)
        moved = self._waiting.reschedule(message_id, due_ms)
        self._wake()
        return moved

    def amend(self, amendments: Sequence[Amendment]) -> None:
        self._amendments.put(amendments, now_ms=self._amendment_clock.now_ms())

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        return self._amendments.read(message_ids, now_ms=self._amendment_clock.now_ms())

    def close(self) -> None:
        self._table.close()


def _first_of_each(messages: Iterable[StoredMessage]) -> dict[str, StoredMessage]:
    """The first message of each id: DynamoDB writes a call's items in no order."""
    first: dict[str, StoredMessage] = {}
    for message in messages:
        first.setdefault(message.message_id, message)
    return first
