"""Marks in the table: items that DynamoDB forgets when they have expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqsdelay.marks import Mark
from sqsdelay.stores.dynamodb.item import number
from sqsdelay.stores.dynamodb.layout import EXPIRY, PARTITION, Item, Layout
from sqsdelay.stores.dynamodb.table import Table

DUE: Final = "u"

NOT_CANCELLED: Final = (
    f"attribute_not_exists({PARTITION}) OR attribute_exists({DUE}) OR {EXPIRY} <= :now_s"
)
"""A cancellation stays; DynamoDB may keep expired ones for days."""


def mark_item(layout: Layout, mark: Mark, until_ms: int) -> Item:
    """A mark as an item."""
    item: Item = {**layout.mark(mark.message_id), EXPIRY: number(-(-until_ms // 1000))}
    if mark.due_ms is not None:
        item[DUE] = number(mark.due_ms)
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
            due_ms = int(item[DUE]["N"]) if DUE in item else None
            marks[message_id] = Mark(message_id=message_id, due_ms=due_ms)
    return marks
