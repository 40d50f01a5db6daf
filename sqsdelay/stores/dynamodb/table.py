"""The table: its keys and index, its items, and the calls on it, many at a time.

An item's index key is a shard (by hash of the message id, so that a hot due minute is spread) and
its due time, so that a query reads due messages only, the earliest first.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.core.stored_message import StoredMessage, from_store
from sqsdelay.errors import MessageTooLarge, StoreError, StoreMissing, StoreUnavailable
from sqsdelay.limits import MAX_DYNAMODB_ITEM_BYTES
from sqsdelay.processes.forks import in_each_child

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

INDEX: Final = "due"
KEY: Final = "store_key"
SHARD: Final = "store_shard"
DUE: Final = "store_due"
HELD: Final = "held_until_ms"

_CONCURRENCY: Final = 16
_PAGE: Final = 1000
_ITEM_OVERHEAD_BYTES: Final = 200
"""Names and numbers of an item, generously."""

Item = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")


class ConditionFailed(StoreError):
    """The item is not as the write demands."""


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


class Table:
    """One endpoint's items in the table, with errors translated."""

    def __init__(
        self, name: str, endpoint: str, client: DynamoDBClient | None, *, shards: int
    ) -> None:
        self.name = name
        self._owned = client is None
        self.client = client or _default_client()
        self._endpoint = endpoint
        self._shards = [f"{endpoint}/{number}" for number in range(shards)]
        self._threads = _threads()
        in_each_child(self, Table._begin_anew)

    def _begin_anew(self) -> None:
        self._threads = _threads()
        if self._owned:
            self.client.close()

    def key(self, message_id: str) -> Item:
        """The primary key of a message."""
        return {KEY: {"S": f"{self._endpoint}/{message_id}"}}

    def item(self, m: StoredMessage) -> Item:
        """A message as an item.

        Raises:
            MessageTooLarge
        """
        headers = m.headers()
        texts = (self._endpoint, m.message_id, m.message_id, m.message_id, m.destination, headers)
        size = len(m.body) + sum(len(text.encode()) for text in texts) + _ITEM_OVERHEAD_BYTES
        if size > MAX_DYNAMODB_ITEM_BYTES:
            raise MessageTooLarge(
                f"message {m.message_id} takes {size} bytes; a DynamoDB item holds "
                f"{MAX_DYNAMODB_ITEM_BYTES}; shorten it, store the body elsewhere and send a pointer, "
                "or use a SQLite or PostgreSQL store"
            )
        return {
            **self.key(m.message_id),
            SHARD: {"S": self._shards[zlib.crc32(m.message_id.encode()) % len(self._shards)]},
            DUE: {"S": due_key(m.due_ms, m.message_id)},
            HELD: {"N": "0"},
            "message_id": {"S": m.message_id},
            "destination": {"S": m.destination},
            "due_ms": {"N": str(m.due_ms)},
            "body": {"B": m.body},
            "headers": {"S": headers},
            "failures": {"N": str(m.failures)},
        }

    def earliest(self, limit: int, condition: str = "", **values: Item) -> list[Item]:
        """Index entries with the earliest due times, over all shards.

        Args:
            condition: on the due key, in DynamoDB's terms, e.g. ``<= :due``.
            values: of the condition; ``now`` leaves out what is held then.
        """

        def of_shard(shard: str) -> list[Item]:
            return list(islice(self._entries(shard, limit, condition, values), limit))

        found = [entry for part in self.each(of_shard, self._shards) for entry in part]
        return sorted(found, key=lambda entry: str(entry[DUE]["S"]))[:limit]

    def count(self) -> int:
        """All entries of the endpoint's index."""

        def of_shard(shard: str) -> int:
            pages = self._pages(shard, _PAGE, "", {}, Select="COUNT")
            return sum(page["Count"] for page in pages)

        return sum(self.each(of_shard, self._shards))

    def _entries(
        self, shard: str, limit: int, condition: str, values: dict[str, Item]
    ) -> Iterator[Item]:
        for page in self._pages(shard, limit, condition, values):
            yield from page["Items"]

    def _pages(
        self, shard: str, limit: int, condition: str, values: dict[str, Item], **more: Any
    ) -> Iterator[Item]:
        query: dict[str, Any] = {
            "IndexName": INDEX,
            "KeyConditionExpression": f"{SHARD} = :shard"
            + (f" AND {DUE} {condition}" if condition else ""),
            "ExpressionAttributeValues": {f":{name}": value for name, value in values.items()}
            | {":shard": {"S": shard}},
            # One at a time would be a call for each held message in front.
            "Limit": min(max(limit, 25), _PAGE),
            **more,
        }
        if "now" in values:
            query["FilterExpression"] = f"{HELD} <= :now"
        while True:
            page = self.call(self.client.query, **query)
            yield page
            if "LastEvaluatedKey" not in page:
                return
            query["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def each(self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """``do`` for each item, several at a time; answers in order."""
        return list(self._threads.map(do, items)) if len(items) > 1 else [do(i) for i in items]

    def applied(self, call: Callable[..., Any], **arguments: Any) -> bool:
        """Make a conditional write; False where its condition does not hold."""
        try:
            self.call(call, **arguments)
        except ConditionFailed:
            return False
        return True

    def call(self, call: Callable[..., Any], **arguments: Any) -> Any:
        """Make a call on this table.

        Raises:
            ConditionFailed, StoreMissing, StoreUnavailable, StoreError
        """
        with self.translated():
            return call(TableName=self.name, **arguments)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """botocore's errors in sqsdelay's terms."""
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            raise _store_error(error, self.name) from error

    def close(self) -> None:
        self._threads.shutdown()


def due_key(due_ms: int, message_id: str = "") -> str:
    """Due time and id as text that sorts like them."""
    return f"{due_ms:015d}#{message_id}"


def due_of(entry: Item) -> int:
    """The due time of an index entry, epoch milliseconds."""
    return int(entry[DUE]["S"].partition("#")[0])


def message_of(item: Item) -> StoredMessage:
    """The message of an item; what somebody wrote by hand and is none says so."""
    due = _value(item, "due_ms", "N")
    failures = _value(item, "failures", "N")
    return from_store(
        _value(item, "message_id", "S") or item[KEY]["S"].partition("/")[2],
        _value(item, "destination", "S"),
        int(due) if due is not None and due.lstrip("-").isdigit() else due,
        _value(item, "body", "B"),
        _value(item, "headers", "S"),
        int(failures) if failures is not None and failures.isdigit() else 0,
    )


def _value(item: Item, name: str, kind: str) -> Any:
    """An attribute's value; None where it is missing or of another type."""
    found = item.get(name, {}).get(kind)
    return bytes(found) if kind == "B" and found is not None else found


def number(value: int) -> Item:
    """A number in DynamoDB's shape."""
    return {"N": str(value)}


def first_of_each(messages: Iterable[StoredMessage]) -> dict[str, StoredMessage]:
    """The first message of each id: DynamoDB writes a call's items in no order."""
    first: dict[str, StoredMessage] = {}
    for message in messages:
        first.setdefault(message.message_id, message)
    return first


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_CONCURRENCY, thread_name_prefix="dynamodb-store")


def _default_client() -> DynamoDBClient:
    # A table that does not answer must fail well within a function's 30 s, so that messages go on.
    config = Config(
        connect_timeout=2,
        read_timeout=3,
        retries={"mode": "standard", "max_attempts": 2},
        max_pool_connections=_CONCURRENCY,
        tcp_keepalive=True,
    )
    return boto3.client("dynamodb", config=config)


def _store_error(error: ClientError | BotoCoreError, table: str) -> StoreError:
    code = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(str(error))
    if code == "ResourceNotFoundException":
        return StoreMissing(
            f"DynamoDB table {table} does not exist; run sqsdelay store create (set_up()), or deploy it"
        )
    if code == "ValidationException":
        return StoreError(f"DynamoDB store {table}: {error}")
    return StoreUnavailable(f"DynamoDB store {table} cannot be used now: {error}")
