"""The serverless store: a DynamoDB table, leases by conditional writes, due times in a sharded index.

An item's index key is a shard (by hash of the message id, so that a hot due minute is spread) and
its due time, so that a query reads due messages only, the earliest first.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.clock import Clock, SystemClock
from sqsdelay.errors import (
    ConfigurationError,
    MessageTooLarge,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from sqsdelay.limits import MAX_DYNAMODB_ITEM_BYTES
from sqsdelay.store import Claim, TransactionMode
from sqsdelay.stored import StoredMessage, check_stored_due, from_store
from sqsdelay.stores.lease import DEFAULT_LEASE_SECONDS, checked_lease, kept_alive

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

INDEX: Final = "due"
KEY: Final = "store_key"
SHARD: Final = "store_shard"
DUE: Final = "store_due"
HELD: Final = "held_until_ms"
DEFAULT_SHARDS: Final = 8
"""A partition writes about 1,000 items a second; so many times that at one due minute."""

_CONCURRENCY: Final = 16
_PAGE: Final = 100
_ITEM_OVERHEAD_BYTES: Final = 200
_FREE: Final = "(attribute_not_exists(claimed_by) OR held_until_ms <= :now)"
_MINE: Final = "claimed_by = :claim"

T = TypeVar("T")
R = TypeVar("R")


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
        self._table = table
        self._endpoint = endpoint
        self._client = client or _default_client()
        self._shards = shards
        self._lease_seconds = checked_lease(lease_seconds)
        self._clock = clock or SystemClock()
        self._watchers: list[Callable[[], None]] = []
        self._threads = ThreadPoolExecutor(_CONCURRENCY, thread_name_prefix="dynamodb-store")

    def set_up(self) -> None:
        """Create the table (on-demand billing) unless it exists."""
        with self._translated():
            with suppress(self._client.exceptions.ResourceInUseException):
                self._client.create_table(TableName=self._table, **table_definition())
            self._client.get_waiter("table_exists").wait(
                TableName=self._table, WaiterConfig={"Delay": 2}
            )

    def initialize(self, mode: TransactionMode) -> None:
        if mode not in self.modes:
            raise ConfigurationError(
                f"a DynamoDB store cannot give {mode}: its transactions hold no effect of yours; use "
                f"{TransactionMode.AT_LEAST_ONCE}, or a SQLite or PostgreSQL store"
            )
        answer = self._call(self._client.describe_table)
        indexes = {
            index["IndexName"] for index in answer["Table"].get("GlobalSecondaryIndexes", ())
        }
        if INDEX not in indexes:
            raise StoreMissing(
                f"table {self._table} has no index {INDEX!r}; it is no message store"
            )

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        if transaction is not None:
            raise ConfigurationError(
                "a DynamoDB store takes no transaction=; leave it out, or use SQLite or PostgreSQL"
            )
        items = [self._item(message) for message in messages]
        new = self._each(self._put, items)
        if any(new):
            for wake in list(self._watchers):
                wake()
        return new

    def _put(self, item: dict[str, Any]) -> bool:
        return self._conditionally(
            self._client.put_item, Item=item, ConditionExpression=f"attribute_not_exists({KEY})"
        )

    def _item(self, m: StoredMessage) -> dict[str, Any]:
        headers = m.headers()
        texts = (self._endpoint, m.message_id, m.message_id, m.destination, headers)
        size = len(m.body) + sum(len(t.encode()) for t in texts) + _ITEM_OVERHEAD_BYTES
        if size > MAX_DYNAMODB_ITEM_BYTES:
            raise MessageTooLarge(
                f"message {m.message_id} takes {size} bytes; a DynamoDB item holds "
                f"{MAX_DYNAMODB_ITEM_BYTES}; shorten it, store the body elsewhere and send a pointer, "
                "or use a SQLite or PostgreSQL store"
            )
        return {
            **self._key(m.message_id),
            SHARD: {"S": self._shard(zlib.crc32(m.message_id.encode()) % self._shards)},
            DUE: {"S": _due(m.due_ms, m.message_id)},
            HELD: {"N": "0"},
            "message_id": {"S": m.message_id},
            "destination": {"S": m.destination},
            "due_ms": {"N": str(m.due_ms)},
            "body": {"B": m.body},
            "headers": {"S": headers},
            "failures": {"N": str(m.failures)},
        }

    def _key(self, message_id: str) -> dict[str, Any]:
        return {KEY: {"S": f"{self._endpoint}/{message_id}"}}

    def _shard(self, number: int) -> str:
        return f"{self._endpoint}/{number}"

    @contextmanager
    def claim(self, limit: int, *, due_by_ms: int) -> Iterator[Claim]:
        token = uuid.uuid4().hex
        found = self._earliest(limit, free=True, below=_due(due_by_ms + 1))
        taken = self._each(lambda entry: self._take(entry, token), found)
        claim = _DynamoDbClaim(self, token, [message for message in taken if message is not None])
        if not claim.messages:
            yield claim
            return
        try:
            with kept_alive(claim.renew, lease_seconds=self._lease_seconds):
                yield claim
        finally:
            claim.release()

    def _take(self, entry: dict[str, Any], token: str) -> StoredMessage | None:
        """Lease what the index shows, if nobody else did and it was not moved."""
        now_ms = self._clock.now_ms()
        try:
            answer = self._call(
                self._client.update_item,
                Key={KEY: entry[KEY]},
                UpdateExpression="SET claimed_by = :claim, held_until_ms = :until",
                ConditionExpression=f"{DUE} = :due AND held_until_ms <= :now",
                ExpressionAttributeValues={
                    ":claim": {"S": token},
                    ":until": {"N": str(now_ms + round(self._lease_seconds * 1000))},
                    ":due": entry[DUE],
                    ":now": {"N": str(now_ms)},
                },
                ReturnValues="ALL_NEW",
            )
        except _ConditionFailed:
            return None
        return _message(answer["Attributes"])

    def _earliest(
        self, limit: int, *, free: bool, below: str | None = None, above: str = ""
    ) -> list[dict[str, Any]]:
        """Index entries with the earliest due times, over all shards."""

        def of_shard(number: int) -> list[dict[str, Any]]:
            entries = self._entries(self._shard(number), limit, free=free, below=below, above=above)
            return list(islice(entries, limit))

        found = [entry for part in self._each(of_shard, range(self._shards)) for entry in part]
        return sorted(found, key=lambda entry: entry[DUE]["S"])[:limit]

    def _entries(
        self, shard: str, limit: int, *, free: bool, below: str | None, above: str
    ) -> Iterator[dict[str, Any]]:
        values: dict[str, Any] = {":shard": {"S": shard}}
        condition = f"{SHARD} = :shard"
        if below is not None:
            condition += f" AND {DUE} < :due"
            values[":due"] = {"S": below}
        elif above:
            condition += f" AND {DUE} > :due"
            values[":due"] = {"S": above}
        query: dict[str, Any] = {
            "IndexName": INDEX,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "Limit": min(limit, _PAGE),
        }
        if free:
            query["FilterExpression"] = f"{HELD} <= :now"
            values[":now"] = {"N": str(self._clock.now_ms())}
        while True:
            answer = self._call(self._client.query, **query)
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            query["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def next_due_ms(self) -> int | None:
        found = self._earliest(1, free=True)
        return int(found[0][DUE]["S"].partition("#")[0]) if found else None

    def pending_count(self) -> int:
        """Reads the whole index of the endpoint: for people, not for loops."""

        def of_shard(number: int) -> int:
            return sum(
                1
                for _ in self._entries(self._shard(number), _PAGE, free=False, below=None, above="")
            )

        return sum(self._each(of_shard, range(self._shards)))

    def pending(self, limit: int, *, after: tuple[int, str] | None = None) -> list[StoredMessage]:
        above = "" if after is None else _due(*after)
        found = self._earliest(limit, free=False, above=above)
        read = self._each(self._get, found)
        return [message for message in read if message is not None]

    def _get(self, entry: dict[str, Any]) -> StoredMessage | None:
        item = self._call(self._client.get_item, Key={KEY: entry[KEY]}).get("Item")
        return None if item is None else _message(item)

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        return self._each(self._cancel, message_ids)

    def _cancel(self, message_id: str) -> bool:
        return self._conditionally(
            self._client.delete_item,
            Key=self._key(message_id),
            ConditionExpression=f"attribute_exists({KEY}) AND {_FREE}",
            ExpressionAttributeValues={":now": {"N": str(self._clock.now_ms())}},
        )

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        check_stored_due(due_ms)
        moved = self._conditionally(
            self._client.update_item,
            Key=self._key(message_id),
            UpdateExpression=f"SET {DUE} = :key, due_ms = :due, held_until_ms = :zero REMOVE claimed_by",
            ConditionExpression=f"attribute_exists({KEY}) AND {_FREE}",
            ExpressionAttributeValues={
                ":key": {"S": _due(due_ms, message_id)},
                ":due": {"N": str(due_ms)},
                ":zero": {"N": "0"},
                ":now": {"N": str(self._clock.now_ms())},
            },
        )
        for wake in list(self._watchers):
            wake()
        return moved

    @contextmanager
    def watch(self, wake: Callable[[], None]) -> Iterator[None]:
        """Wakes for what this object stores; other processes' messages are found by polling."""
        self._watchers.append(wake)
        try:
            yield
        finally:
            self._watchers.remove(wake)

    def close(self) -> None:
        self._threads.shutdown()

    def _each(self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        return list(self._threads.map(do, items)) if len(items) > 1 else [do(i) for i in items]

    def _conditionally(self, call: Callable[..., Any], **arguments: Any) -> bool:
        try:
            self._call(call, **arguments)
        except _ConditionFailed:
            return False
        return True

    def _call(self, call: Callable[..., Any], **arguments: Any) -> Any:
        with self._translated():
            return call(TableName=self._table, **arguments)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            raise _store_error(error, self._table) from error


class _ConditionFailed(StoreError):
    """The item is not as the write demands."""


class _DynamoDbClaim:
    transaction: Final = None

    def __init__(self, store: DynamoDbStore, token: str, messages: list[StoredMessage]) -> None:
        self.messages = messages
        self._store = store
        self._token = {":claim": {"S": token}}
        self._open = {message.message_id for message in messages}

    def attempt(self) -> AbstractContextManager[None]:
        raise ConfigurationError("a DynamoDB store has no transaction to attempt anything in")

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        def remove(message_id: str) -> bool:
            return self._store._conditionally(
                self._store._client.delete_item,
                Key=self._store._key(message_id),
                ConditionExpression=_MINE,
                ExpressionAttributeValues=self._token,
            )

        self._open.difference_update(message_ids)
        return self._store._each(remove, message_ids)

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        return self._settle(message_ids, retry_after_seconds, failed=1)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        return self._settle(message_ids, seconds, failed=0)

    def renew(self) -> None:
        self._hold_open("SET held_until_ms = :until", self._store._lease_seconds)

    def release(self) -> None:
        """Let go of what was neither removed nor held."""
        self._hold_open("SET held_until_ms = :until REMOVE claimed_by", 0)

    def _hold_open(self, update: str, seconds: float) -> None:
        self._update(list(self._open), update, {":until": self._in(seconds)})

    def _settle(self, message_ids: Sequence[str], seconds: float, *, failed: int) -> list[bool]:
        self._open.difference_update(message_ids)
        return self._update(
            message_ids,
            "SET held_until_ms = :until, failures = failures + :failed REMOVE claimed_by",
            {":until": self._in(seconds), ":failed": {"N": str(failed)}},
        )

    def _update(
        self, message_ids: Sequence[str], expression: str, values: dict[str, Any]
    ) -> list[bool]:
        def update(message_id: str) -> bool:
            return self._store._conditionally(
                self._store._client.update_item,
                Key=self._store._key(message_id),
                UpdateExpression=expression,
                ConditionExpression=_MINE,
                ExpressionAttributeValues=self._token | values,
            )

        return self._store._each(update, message_ids)

    def _in(self, seconds: float) -> dict[str, str]:
        return {"N": str(self._store._clock.now_ms() + round(seconds * 1000))}


def table_definition() -> dict[str, Any]:
    """Keys, index and billing of the table, under CreateTable's names."""
    return {
        "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "S"} for name in (KEY, SHARD, DUE)
        ],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": INDEX,
                "KeySchema": [
                    {"AttributeName": SHARD, "KeyType": "HASH"},
                    {"AttributeName": DUE, "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": [HELD]},
            }
        ],
        "BillingMode": "PAY_PER_REQUEST",
    }


def _default_client() -> DynamoDBClient:
    config = Config(
        retries={"mode": "standard", "max_attempts": 5},
        max_pool_connections=_CONCURRENCY,
        tcp_keepalive=True,
    )
    return boto3.client("dynamodb", config=config)


def _due(due_ms: int, message_id: str = "") -> str:
    """Due time and id as text that sorts like them."""
    return f"{due_ms:015d}#{message_id}" if message_id else f"{due_ms:015d}"


def _message(item: dict[str, Any]) -> StoredMessage:
    body = item["body"]["B"]
    return from_store(
        item["message_id"]["S"],
        item["destination"]["S"],
        int(item["due_ms"]["N"]),
        bytes(body),
        item["headers"]["S"],
        int(item["failures"]["N"]),
    )


def _store_error(error: ClientError | BotoCoreError, table: str) -> StoreError:
    code = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
    if code == "ConditionalCheckFailedException":
        return _ConditionFailed(str(error))
    if code == "ResourceNotFoundException":
        return StoreMissing(f"DynamoDB table {table} does not exist; call set_up(), or deploy it")
    if code == "ValidationException":
        return StoreError(f"DynamoDB store {table}: {error}")
    return StoreUnavailable(f"DynamoDB store {table} cannot be used now: {error}")
