"""`DynamoDbStore`: leases by conditional writes, for dispatchers without a server of their own."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.core.amendments import Amendment, latest_amendments
from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.one_line import one_line
from sqsdelay.core.stored_message import StoredMessage, check_stored_due
from sqsdelay.errors import ConfigurationError, StoreError, StoreMissing
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.ports.stores import Claim, TransactionMode
from sqsdelay.stores.answers import new_once
from sqsdelay.stores.dynamodb.amendments import expire_amendments, put_amendment, read_amendments
from sqsdelay.stores.dynamodb.claim import DynamoDbClaim
from sqsdelay.stores.dynamodb.table import (
    DUE,
    INDEX,
    KEY,
    ConditionFailed,
    Item,
    Table,
    due_key,
    due_of,
    first_of_each,
    message_of,
    number,
    table_definition,
)
from sqsdelay.stores.lease import DEFAULT_LEASE_SECONDS, checked_lease, kept_alive

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

logger = logging.getLogger(__name__)

DEFAULT_SHARDS: Final = 8
"""A partition writes about 1,000 items a second; so many times that at one due minute."""

_NOT_LEASED: Final = (
    f"attribute_exists({KEY}) AND (attribute_not_exists(claimed_by) OR held_until_ms <= :now)"
)


class DynamoDbStore:
    """Delayed messages in a DynamoDB table, which several endpoints may share.

    Args:
        table: the table's name.
        endpoint: whose messages these are.
        client: a boto3 DynamoDB client; made from the default session when left out.
        shards: how many index partitions the messages are spread over; the same for all who use
            the table (more may be chosen later, not fewer).
        lease_seconds: how long the messages of a dispatcher that died stay held.
        clock: leases are timed with it; dispatchers' clocks may differ by half a lease.
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
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        if shards < 1:
            raise ConfigurationError(f"shards={shards}; use 1 or more")
        self._lease_seconds = checked_lease(lease_seconds)
        self._table = Table(table, endpoint, client, shards=shards)
        self._client = self._table.client
        self._clock = clock or SystemClock()
        self._watchers: list[Callable[[], None]] = []

    def set_up(self) -> None:
        """Create the table (on-demand billing) unless it exists, and let it forget old amendments."""
        with self._table.translated():
            with suppress(self._client.exceptions.ResourceInUseException):
                self._client.create_table(TableName=self._table.name, **table_definition())
            self._client.get_waiter("table_exists").wait(
                TableName=self._table.name, WaiterConfig={"Delay": 2}
            )
            expire_amendments(self._client, self._table.name)

    def initialize(self, mode: TransactionMode) -> None:
        if mode not in self.modes:
            raise ConfigurationError(
                f"a DynamoDB store cannot give {mode}: its transactions cannot include your own writes; use "
                f"{TransactionMode.AT_LEAST_ONCE}, or a SQLite or PostgreSQL store"
            )
        table = self._table.call(self._client.describe_table)["Table"]
        if INDEX not in {index["IndexName"] for index in table.get("GlobalSecondaryIndexes", ())}:
            raise StoreMissing(
                f"table {self._table.name} has no index {INDEX!r}; it is not a message store"
            )

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        if transaction is not None:
            raise ConfigurationError(
                "a DynamoDB store takes no transaction=; leave it out, or use SQLite or PostgreSQL"
            )
        items = [self._table.item(message) for message in first_of_each(messages).values()]
        put = self._table.each(self._put, items)
        inserted = [item["message_id"]["S"] for item, new in zip(items, put, strict=True) if new]
        if inserted:
            self._wake()
        return new_once(messages, inserted)

    def _put(self, item: Item) -> bool:
        return self._table.applied(
            self._client.put_item, Item=item, ConditionExpression=f"attribute_not_exists({KEY})"
        )

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[Claim]:
        token = uuid.uuid4().hex
        found = self._free(limit, except_destinations, "< :due", due={"S": due_key(due_by_ms + 1)})
        taken = self._table.each(lambda entry: self._take(entry, token), found)
        errors = [error for error in taken if isinstance(error, StoreError)]
        messages = [message for message in taken if isinstance(message, StoredMessage)]
        if errors and not messages:
            raise errors[0]
        for error in errors:
            # The others of this claim go on; this one is free again when its lease, if any, ends.
            logger.warning("message not claimed: %s", one_line(error))
        claim = DynamoDbClaim(self._table, self._clock, token, messages)
        if not messages:
            yield claim
            return
        try:
            with kept_alive(
                lambda: claim.renew(self._lease_seconds), lease_seconds=self._lease_seconds
            ):
                yield claim
        finally:
            claim.release()

    def _take(self, entry: Item, token: str) -> StoredMessage | StoreError | None:
        """Lease what the index shows, if nobody else did and it was not moved."""
        now_ms = self._clock.now_ms()
        try:
            answer = self._table.call(
                self._client.update_item,
                Key={KEY: entry[KEY]},
                UpdateExpression="SET claimed_by = :claim, held_until_ms = :until",
                # The second part: a first attempt of botocore's may have had it, its answer lost.
                ConditionExpression=f"{DUE} = :due AND (held_until_ms <= :now OR claimed_by = :claim)",
                ExpressionAttributeValues={
                    ":claim": {"S": token},
                    ":until": number(now_ms + round(self._lease_seconds * 1000)),
                    ":due": entry[DUE],
                    ":now": number(now_ms),
                },
                ReturnValues="ALL_NEW",
            )
        except ConditionFailed:
            return None
        except StoreError as error:
            return error
        return message_of(answer["Attributes"])

    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        found = self._free(1, except_destinations)
        return due_of(found[0]) if found else None

    def _free(
        self, limit: int, except_destinations: Collection[str], condition: str = "", **values: Item
    ) -> list[Item]:
        """Index entries that nobody holds, the earliest first, without those destinations.

        The index does not show a destination: with any to leave out, items are read for it.
        """
        wide = limit
        destinations: dict[str, str] = {}
        while True:
            found = self._table.earliest(wide, condition, now=self._now(), **values)
            if not except_destinations:
                return found
            new = [entry for entry in found if entry[KEY]["S"] not in destinations]
            destinations |= zip(
                (entry[KEY]["S"] for entry in new),
                self._table.each(self._destination, new),
                strict=True,
            )
            wanted = [e for e in found if destinations[e[KEY]["S"]] not in except_destinations]
            if len(wanted) >= limit or len(found) < wide:
                return wanted[:limit]
            wide *= 4

    def _destination(self, entry: Item) -> str:
        read = self._table.call(
            self._client.get_item, Key={KEY: entry[KEY]}, ProjectionExpression="destination"
        )
        return str(read.get("Item", {}).get("destination", {}).get("S", ""))

    def pending_count(self) -> int:
        """Reads the endpoint's whole index: for people, not for loops."""
        return self._table.count()

    def pending(
        self,
        limit: int,
        *,
        after: tuple[int, str] | None = None,
        due_from_ms: int | None = None,
        due_before_ms: int | None = None,
    ) -> list[StoredMessage]:
        start = due_key(max(0, due_from_ms or 0))
        end = due_key(MAX_DUE_MS + 1 if due_before_ms is None else max(0, due_before_ms))
        if after is not None:
            # No id holds a NUL: nothing lies between a key and itself with one behind it.
            start = max(start, due_key(*after) + "\0")
        if start > end:
            return []
        found = self._table.earliest(
            limit, "BETWEEN :start AND :end", start={"S": start}, end={"S": end}
        )
        read = self._table.each(self._read, found)
        return [message for message in read if message is not None]

    def _read(self, entry: Item) -> StoredMessage | None:
        item = self._table.call(self._client.get_item, Key={KEY: entry[KEY]}).get("Item")
        return None if item is None else message_of(item)

    def find(self, message_id: str) -> StoredMessage | None:
        key = self._table.key(message_id)
        item = self._table.call(self._client.get_item, Key=key, ConsistentRead=True).get("Item")
        return None if item is None else message_of(item)

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        return self._table.each(self._cancel, message_ids)

    def _cancel(self, message_id: str) -> bool:
        return self._table.applied(
            self._client.delete_item,
            Key=self._table.key(message_id),
            ConditionExpression=_NOT_LEASED,
            ExpressionAttributeValues={":now": self._now()},
        )

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        check_stored_due(due_ms)
        moved = self._table.applied(
            self._client.update_item,
            Key=self._table.key(message_id),
            UpdateExpression=f"SET {DUE} = :key, due_ms = :due, held_until_ms = :zero REMOVE claimed_by",
            ConditionExpression=_NOT_LEASED,
            ExpressionAttributeValues={
                ":key": {"S": due_key(due_ms, message_id)},
                ":due": number(due_ms),
                ":zero": number(0),
                ":now": self._now(),
            },
        )
        self._wake()
        return moved

    def amend(self, amendments: Sequence[Amendment]) -> None:
        now_ms = self._clock.now_ms()
        last = list(latest_amendments(amendments).values())
        self._table.each(
            lambda amendment: put_amendment(self._table, amendment, now_ms=now_ms), last
        )

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        return read_amendments(self._table, message_ids, now_ms=self._clock.now_ms())

    @contextmanager
    def watch(self, wake: Callable[[], None]) -> Iterator[None]:
        """Wakes for what this object stores; other processes' messages are found by polling."""
        self._watchers.append(wake)
        try:
            yield
        finally:
            self._watchers.remove(wake)

    def close(self) -> None:
        self._table.close()

    def _wake(self) -> None:
        for wake in list(self._watchers):
            wake()

    def _now(self) -> Item:
        return number(self._clock.now_ms())
