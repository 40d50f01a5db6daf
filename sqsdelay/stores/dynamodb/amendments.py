"""Amendments in the table: items without the index's keys, which DynamoDB forgets when they have expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.core.amendments import AMENDMENT_LIFETIME_MS, Amendment
from sqsdelay.stores.dynamodb.table import KEY, Item, Table, number

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

EXPIRY: Final = "expires_at"
"""The attribute DynamoDB's time to live reads: epoch seconds."""

NEVER_CANCELLED: Final = (
    f"attribute_not_exists({KEY}) OR {EXPIRY} <= :now_s "
    "OR (attribute_exists(due_ms) AND attribute_not_exists(cancelled_ms))"
)
"""DynamoDB may keep expired ones for days."""

_MAX_KEYS: Final = 100
"""Keys of one BatchGetItem. Source: BatchGetItem API reference."""


def expire_amendments(client: DynamoDBClient, table: str) -> None:
    """Switch time to live on, unless it is; messages have no expiry and are never forgotten."""
    state = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    if state.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        client.update_time_to_live(
            TableName=table,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRY},
        )


def put_amendment(table: Table, amendment: Amendment, *, now_ms: int) -> None:
    """Write an amendment; a new due time keeps when the message was cancelled before."""
    if amendment.due_ms is None or amendment.cancelled_ms is not None:
        table.call(table.client.put_item, Item=_item(table, amendment))
        return
    new = table.applied(
        table.client.put_item,
        Item=_item(table, amendment),
        ConditionExpression=NEVER_CANCELLED,
        ExpressionAttributeValues={":now_s": number(now_ms // 1000)},
    )
    if not new:
        found = read_amendments(table, [amendment.message_id], now_ms=now_ms).get(
            amendment.message_id
        )
        table.call(table.client.put_item, Item=_item(table, amendment.after(found)))


def _item(table: Table, amendment: Amendment) -> Item:
    item: Item = {
        KEY: {"S": _key(table, amendment.message_id)},
        "message_id": {"S": amendment.message_id},
        "at_ms": number(amendment.at_ms),
        EXPIRY: number(-(-amendment.until_ms // 1000)),
    }
    for name, value in (("due_ms", amendment.due_ms), ("cancelled_ms", amendment.cancelled_ms)):
        if value is not None:
            item[name] = number(value)
    return item


def read_amendments(
    table: Table, message_ids: Sequence[str], *, now_ms: int
) -> dict[str, Amendment]:
    """The amendments of those messages that have one; DynamoDB may keep expired ones for days."""
    keys = list(dict.fromkeys(_key(table, message_id) for message_id in message_ids))
    amendments = {}
    for start in range(0, len(keys), _MAX_KEYS):
        for item in _items(table, keys[start : start + _MAX_KEYS]):
            if int(item[EXPIRY]["N"]) * 1000 > now_ms:
                amendment = _amendment(item)
                amendments[amendment.message_id] = amendment
    return amendments


def _amendment(item: Item) -> Amendment:
    fields = {n: int(item[n]["N"]) for n in ("due_ms", "at_ms", "cancelled_ms") if n in item}
    # A former version kept the end of an amendment alone, to the second.
    at_ms = fields.pop("at_ms", int(item[EXPIRY]["N"]) * 1000 - AMENDMENT_LIFETIME_MS)
    return Amendment(message_id=str(item["message_id"]["S"]), at_ms=at_ms, **fields)


def _items(table: Table, keys: list[str]) -> list[Item]:
    request: Any = {
        table.name: {"Keys": [{KEY: {"S": key}} for key in keys], "ConsistentRead": True}
    }
    items: list[Item] = []
    while request:
        with table.translated():
            answer = table.client.batch_get_item(RequestItems=request)
        items += answer["Responses"].get(table.name, [])
        request = answer.get("UnprocessedKeys")
    return items


def _key(table: Table, message_id: str) -> str:
    """No endpoint's name begins with '#': no message has this key. Tables from former versions have it."""
    return f"#mark/{table.key(message_id)[KEY]['S']}"
