"""Marks in the table: items without the index's keys, which DynamoDB forgets when they have expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.core.marks import MARK_LIFETIME_MS, Mark
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


def expire_marks(client: DynamoDBClient, table: str) -> None:
    """Switch time to live on, unless it is; messages have no expiry and are never forgotten."""
    state = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    if state.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        client.update_time_to_live(
            TableName=table,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRY},
        )


def put_mark(table: Table, mark: Mark, *, now_ms: int) -> None:
    """Write a mark. One that moves what was cancelled before keeps when that was."""
    if mark.due_ms is None or mark.cancelled_ms is not None:
        table.call(table.client.put_item, Item=_item(table, mark))
        return
    new = table.applied(
        table.client.put_item,
        Item=_item(table, mark),
        ConditionExpression=NEVER_CANCELLED,
        ExpressionAttributeValues={":now_s": number(now_ms // 1000)},
    )
    if not new:
        found = read_marks(table, [mark.message_id], now_ms=now_ms).get(mark.message_id)
        table.call(table.client.put_item, Item=_item(table, mark.after(found)))


def _item(table: Table, mark: Mark) -> Item:
    item: Item = {
        KEY: {"S": _key(table, mark.message_id)},
        "message_id": {"S": mark.message_id},
        "at_ms": number(mark.at_ms),
        EXPIRY: number(-(-mark.until_ms // 1000)),
    }
    for name, value in (("due_ms", mark.due_ms), ("cancelled_ms", mark.cancelled_ms)):
        if value is not None:
            item[name] = number(value)
    return item


def read_marks(table: Table, message_ids: Sequence[str], *, now_ms: int) -> dict[str, Mark]:
    """The marks of those messages that have one; DynamoDB may keep expired ones for days."""
    keys = list(dict.fromkeys(_key(table, message_id) for message_id in message_ids))
    marks = {}
    for start in range(0, len(keys), _MAX_KEYS):
        for item in _items(table, keys[start : start + _MAX_KEYS]):
            if int(item[EXPIRY]["N"]) * 1000 > now_ms:
                mark = _mark(item)
                marks[mark.message_id] = mark
    return marks


def _mark(item: Item) -> Mark:
    told = {n: int(item[n]["N"]) for n in ("due_ms", "at_ms", "cancelled_ms") if n in item}
    # A former version kept the end of a mark alone, to the second.
    at_ms = told.pop("at_ms", int(item[EXPIRY]["N"]) * 1000 - MARK_LIFETIME_MS)
    return Mark(message_id=str(item["message_id"]["S"]), at_ms=at_ms, **told)


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
    """No endpoint's name begins with '#': no message has this key."""
    return f"#mark/{table.key(message_id)[KEY]['S']}"
