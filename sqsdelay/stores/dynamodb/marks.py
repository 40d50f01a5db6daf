"""Marks in the table: items without the index's keys, which DynamoDB forgets when they have expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.marks import Mark
from sqsdelay.stores.dynamodb.table import KEY, Item, Table, number

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

EXPIRY: Final = "expires_at"
"""The attribute DynamoDB's time to live reads: epoch seconds."""

NOT_CANCELLED: Final = (
    f"attribute_not_exists({KEY}) OR attribute_exists(due_ms) OR {EXPIRY} <= :now_s"
)
"""A cancellation stays; DynamoDB may keep expired ones for days."""

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


def mark_item(table: Table, mark: Mark, until_ms: int) -> Item:
    """A mark as an item."""
    item: Item = {
        KEY: {"S": _key(table, mark.message_id)},
        "message_id": {"S": mark.message_id},
        EXPIRY: number(-(-until_ms // 1000)),
    }
    if mark.due_ms is not None:
        item["due_ms"] = number(mark.due_ms)
    return item


def read_marks(table: Table, message_ids: Sequence[str], *, now_ms: int) -> dict[str, Mark]:
    """The marks of those messages that have one; DynamoDB may keep expired ones for days."""
    keys = list(dict.fromkeys(_key(table, message_id) for message_id in message_ids))
    marks = {}
    for start in range(0, len(keys), _MAX_KEYS):
        for item in _items(table, keys[start : start + _MAX_KEYS]):
            if int(item[EXPIRY]["N"]) * 1000 > now_ms:
                due_ms = int(item["due_ms"]["N"]) if "due_ms" in item else None
                message_id = str(item["message_id"]["S"])
                marks[message_id] = Mark(message_id=message_id, due_ms=due_ms)
    return marks


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
