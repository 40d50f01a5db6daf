"""Marks in the table: items that DynamoDB forgets when they have expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqsdelay.core.marks import Mark
from sqsdelay.stores.dynamodb.item import number
from sqsdelay.stores.dynamodb.layout import EXPIRY, PARTITION, Item, Layout
from sqsdelay.stores.dynamodb.table import Table

LEFT_AT: Final = "a"
DUE: Final = "u"
CANCELLED: Final = "c"

NEVER_CANCELLED: Final = (
    f"attribute_not_exists({PARTITION}) OR {EXPIRY} <= :now_s "
    f"OR (attribute_exists({DUE}) AND attribute_not_exists({CANCELLED}))"
)
"""DynamoDB may keep expired ones for days."""


def put_mark(table: Table, layout: Layout, mark: Mark, *, now_ms: int) -> None:
    """Write a mark. One that moves what was cancelled before keeps when that was."""
    if mark.due_ms is None or mark.cancelled_ms is not None:
        table.put(_item(layout, mark))
        return
    new = table.applied(
        table.client.put_item,
        Item=_item(layout, mark),
        ConditionExpression=NEVER_CANCELLED,
        ExpressionAttributeValues={":now_s": number(now_ms // 1000)},
    )
    if not new:
        found = read_marks(table, layout, [mark.message_id], now_ms=now_ms).get(mark.message_id)
        table.put(_item(layout, mark.after(found)))


def _item(layout: Layout, mark: Mark) -> Item:
    item: Item = {
        **layout.mark(mark.message_id),
        LEFT_AT: number(mark.at_ms),
        EXPIRY: number(-(-mark.until_ms // 1000)),
    }
    for name, value in ((DUE, mark.due_ms), (CANCELLED, mark.cancelled_ms)):
        if value is not None:
            item[name] = number(value)
    return item


def read_marks(
    table: Table, layout: Layout, message_ids: Sequence[str], *, now_ms: int
) -> dict[str, Mark]:
    """The marks of those messages that have one; DynamoDB may keep expired ones for days."""
    keys = [layout.mark(message_id) for message_id in dict.fromkeys(message_ids)]
    prefix = len(layout.mark("")[PARTITION]["S"])
    marks = {}
    for item in table.get(keys):
        if int(item[EXPIRY]["N"]) * 1000 > now_ms:
            message_id = item[PARTITION]["S"][prefix:]
            marks[message_id] = _mark(item, message_id)
    return marks


def _mark(item: Item, message_id: str) -> Mark:
    due_ms, cancelled_ms = (
        int(item[name]["N"]) if name in item else None for name in (DUE, CANCELLED)
    )
    return Mark(
        message_id=message_id,
        at_ms=int(item[LEFT_AT]["N"]),
        due_ms=due_ms,
        cancelled_ms=cancelled_ms,
    )
