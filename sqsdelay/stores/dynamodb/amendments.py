"""Amendments in the table: items that DynamoDB forgets when they have expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqsdelay.core.amendments import Amendment
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


def put_amendment(table: Table, layout: Layout, amendment: Amendment, *, now_ms: int) -> None:
    """Write an amendment. One that moves what was cancelled before keeps when that was."""
    if amendment.due_ms is None or amendment.cancelled_ms is not None:
        table.put(_item(layout, amendment))
        return
    new = table.applied(
        table.client.put_item,
        Item=_item(layout, amendment),
        ConditionExpression=NEVER_CANCELLED,
        ExpressionAttributeValues={":now_s": number(now_ms // 1000)},
    )
    if not new:
        found = read_amendments(table, layout, [amendment.message_id], now_ms=now_ms).get(
            amendment.message_id
        )
        table.put(_item(layout, amendment.after(found)))


def _item(layout: Layout, amendment: Amendment) -> Item:
    item: Item = {
        **layout.amendment(amendment.message_id),
        LEFT_AT: number(amendment.at_ms),
        EXPIRY: number(-(-amendment.until_ms // 1000)),
    }
    for name, value in ((DUE, amendment.due_ms), (CANCELLED, amendment.cancelled_ms)):
        if value is not None:
            item[name] = number(value)
    return item


def read_amendments(
    table: Table, layout: Layout, message_ids: Sequence[str], *, now_ms: int
) -> dict[str, Amendment]:
    """The amendments of those messages that have one; DynamoDB may keep expired ones for days."""
    keys = [layout.amendment(message_id) for message_id in dict.fromkeys(message_ids)]
    prefix = len(layout.amendment("")[PARTITION]["S"])
    amendments = {}
    for item in table.get(keys):
        if int(item[EXPIRY]["N"]) * 1000 > now_ms:
            message_id = item[PARTITION]["S"][prefix:]
            amendments[message_id] = _amendment(item, message_id)
    return amendments


def _amendment(item: Item, message_id: str) -> Amendment:
    due_ms, cancelled_ms = (
        int(item[name]["N"]) if name in item else None for name in (DUE, CANCELLED)
    )
    return Amendment(
        message_id=message_id,
        at_ms=int(item[LEFT_AT]["N"]),
        due_ms=due_ms,
        cancelled_ms=cancelled_ms,
    )
