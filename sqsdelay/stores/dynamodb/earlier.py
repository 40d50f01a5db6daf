"""Tables of the earlier layout (an index by due time, a claim per message), read to be moved over.

Nothing is stored in them any more, and nothing released: `sqsdelay store migrate --to` empties them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.core.clock import SystemClock
from sqsdelay.core.stored_message import AMENDMENT_LIFETIME_MS, Amendment, StoredMessage, from_store
from sqsdelay.stores.dynamodb.layout import Item
from sqsdelay.stores.dynamodb.table import OLD_KEY, Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_INDEX: Final = "due"
_SHARD: Final = "store_shard"
_DUE: Final = "store_due"
_MOST_SHARDS: Final = 64
"""More than were ever the default; an empty one costs half a read unit."""

_NOT_LEASED: Final = (
    f"attribute_exists({OLD_KEY}) AND (attribute_not_exists(claimed_by) OR held_until_ms <= :now)"
)


def is_earlier(table: Table) -> bool:
    """Whether a table has the earlier layout.

    Raises:
        StoreMissing, StoreUnavailable
    """
    described = table.call(table.client.describe_table)["Table"]
    return [schema["AttributeName"] for schema in described["KeySchema"]] == [OLD_KEY]


class EarlierTable:
    """One endpoint's messages in a table of the earlier layout."""

    def __init__(self, name: str, *, endpoint: str, client: DynamoDBClient | None = None) -> None:
        self._table = Table(name, client, None)
        self._endpoint = endpoint

    @property
    def earlier(self) -> bool:
        """Whether it has that layout at all."""
        return is_earlier(self._table)

    def pending(
        self, limit: int, *, after: tuple[int, str] | None = None, due_from_ms: int | None = None
    ) -> list[StoredMessage]:
        """One page by due time and id."""
        start = "" if after is None or after[0] < 0 else f"{after[0]:015d}#{after[1]}"
        start = max(start, f"{max(0, due_from_ms or 0):015d}")

        def of_shard(shard: int) -> list[Item]:
            return list(islice(self._entries(shard, start, limit), limit))

        found = [item for part in self._table.each(of_shard, range(_MOST_SHARDS)) for item in part]
        first = sorted(found, key=lambda item: str(item[_DUE]["S"]))[:limit]
        items = self._table.each(self._read, first)
        return [message for message in items if message is not None]

    def _entries(self, shard: int, start: str, limit: int) -> Iterator[Item]:
        query: dict[str, Any] = {
            "IndexName": _INDEX,
            "KeyConditionExpression": f"{_SHARD} = :shard AND {_DUE} > :start",
            "ExpressionAttributeValues": {
                ":shard": {"S": f"{self._endpoint}/{shard}"},
                ":start": {"S": start or "0"},
            },
            "Limit": limit,
        }
        while True:
            page = self._table.call(self._table.client.query, **query)
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            query["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def _read(self, entry: Item) -> StoredMessage | None:
        answer = self._table.call(
            self._table.client.get_item, Key={OLD_KEY: entry[OLD_KEY]}, ConsistentRead=True
        )
        item = answer.get("Item")
        if item is None:
            return None
        return from_store(
            _value(item, "message_id", "S") or item[OLD_KEY]["S"].partition("/")[2],
            _value(item, "destination", "S"),
            _number(item, "due_ms"),
            _value(item, "body", "B"),
            _value(item, "headers", "S"),
            _number(item, "failures"),
        )

    def pending_count(self) -> int:
        """How many messages are left."""
        return sum(
            self._table.each(
                lambda shard: sum(1 for _ in self._entries(shard, "", 1000)), range(_MOST_SHARDS)
            )
        )

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        """Remove messages that no dispatcher has in hand."""
        now = {"N": str(SystemClock().now_ms())}

        def remove(message_id: str) -> bool:
            return self._table.applied(
                self._table.client.delete_item,
                Key={OLD_KEY: {"S": f"{self._endpoint}/{message_id}"}},
                ConditionExpression=_NOT_LEASED,
                ExpressionAttributeValues={":now": now},
            )

        return self._table.each(remove, message_ids)

    def all_amendments(self) -> Iterator[Amendment]:
        """The amendments left for messages in the delay queue."""
        request: dict[str, Any] = {
            "FilterExpression": f"begins_with({OLD_KEY}, :prefix)",
            "ExpressionAttributeValues": {":prefix": {"S": f"#mark/{self._endpoint}/"}},
        }
        while True:
            page = self._table.call(self._table.client.scan, **request)
            for item in page["Items"]:
                told = {n: int(item[n]["N"]) for n in ("due_ms", "cancelled_ms") if n in item}
                # At first the end of an amendment was kept alone, to the second.
                until_ms = int(item["expires_at"]["N"]) * 1000
                at_ms = (
                    int(item["at_ms"]["N"]) if "at_ms" in item else until_ms - AMENDMENT_LIFETIME_MS
                )
                yield Amendment(message_id=item["message_id"]["S"], at_ms=at_ms, **told)
            if "LastEvaluatedKey" not in page:
                return
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def close(self) -> None:
        """End the threads."""
        self._table.close()


def _value(item: Item, name: str, kind: str) -> Any:
    """An attribute's value; None where it is missing or of another type."""
    found = item.get(name, {}).get(kind)
    return bytes(found) if kind == "B" and found is not None else found


def _number(item: Item, name: str) -> int | None:
    found = _value(item, name, "N")
    return int(found) if found is not None and found.lstrip("-").isdigit() else None
