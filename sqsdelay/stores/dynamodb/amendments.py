"""Amendments in the table: items that DynamoDB forgets when they have expired.

One item more says that there are any, and until when: it is written before the first of them, and outlives
them all. So where nobody cancels or moves messages, a batch of copies costs one read instead of one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqsdelay.core.stored_message import Amendment, latest_amendments
from sqsdelay.stores.dynamodb.item import number
from sqsdelay.stores.dynamodb.layout import EXPIRY, PARTITION, Item, Layout
from sqsdelay.stores.dynamodb.leases import LOOKED_AT_MS, LeaseBook
from sqsdelay.stores.dynamodb.table import Table

LEFT_AT: Final = "a"
DUE: Final = "u"
CANCELLED: Final = "c"

NEVER_CANCELLED: Final = (
    f"attribute_not_exists({PARTITION}) OR {EXPIRY} <= :now_s "
    f"OR (attribute_exists({DUE}) AND attribute_not_exists({CANCELLED}))"
)
"""DynamoDB may keep expired ones for days."""

_TOLD_AHEAD_SECONDS: Final = 24 * 3600
"""So much longer than the amendment at hand there are said to be some: a write a day for each process."""


class Amendments:
    """An endpoint's amendments.

    Args:
        table: where they are kept.
        layout: the endpoint's keys.
    """

    def __init__(self, table: Table, layout: Layout, book: LeaseBook) -> None:
        self._table = table
        self._layout = layout
        self._book = book
        self._told_until = 0
        self._told = (0, 0)
        """When that was last seen, and in which of the tables of this name."""
        self._some_until = 0

    def put(self, amendments: Sequence[Amendment], *, now_ms: int) -> None:
        """Write amendments, of each message the last."""
        last = list(latest_amendments(amendments).values())
        if not last:
            return
        self._book.get()
        self._tell(max(_until(amendment) for amendment in last))
        self._table.each(lambda amendment: self._put(amendment, now_ms), last)

    def _tell(self, until: int) -> None:
        """Say that there are amendments, before there are: whoever reads that there are none reads it
        before the first of them is written."""
        if until <= self._told_until and self._is_told():
            return
        until += _TOLD_AHEAD_SECONDS
        # Not where another process has said so for longer.
        self._table.applied(
            self._table.client.put_item,
            Item={**self._layout.amended, EXPIRY: number(until)},
            ConditionExpression=f"attribute_not_exists({PARTITION}) OR {EXPIRY} < :until",
            ExpressionAttributeValues={":until": number(until)},
        )
        self._told_until = until
        self._told = self._table.clock.now_ms(), self._table.made_anew

    def _is_told(self) -> bool:
        """Whether it is said still: the table may be another one by now."""
        now_ms, seen = self._table.clock.now_ms(), self._told
        if seen[1] != self._table.made_anew:
            return False
        if not 0 <= now_ms - seen[0] < LOOKED_AT_MS:
            if not self._table.get([self._layout.amended]):
                return False
            self._told = now_ms, seen[1]
        return True

    def _put(self, amendment: Amendment, now_ms: int) -> None:
        """One that moves what was cancelled before keeps when that was."""
        if amendment.due_ms is None or amendment.cancelled_ms is not None:
            self._table.put(self._item(amendment))
            return
        new = self._table.applied(
            self._table.client.put_item,
            Item=self._item(amendment),
            ConditionExpression=NEVER_CANCELLED,
            ExpressionAttributeValues={":now_s": number(now_ms // 1000)},
        )
        if not new:
            found = self._read([amendment.message_id], now_ms).get(amendment.message_id)
            self._table.put(self._item(amendment.after(found)))

    def _item(self, amendment: Amendment) -> Item:
        item: Item = {
            **self._layout.amendment(amendment.message_id),
            LEFT_AT: number(amendment.at_ms),
            EXPIRY: number(_until(amendment)),
        }
        for name, value in ((DUE, amendment.due_ms), (CANCELLED, amendment.cancelled_ms)):
            if value is not None:
                item[name] = number(value)
        return item

    def read(self, message_ids: Sequence[str], *, now_ms: int) -> dict[str, Amendment]:
        """The amendments of those messages that have one."""
        return self._read(message_ids, now_ms) if message_ids and self._any(now_ms) else {}

    def _any(self, now_ms: int) -> bool:
        """Whether there may be amendments. That there are none is asked for each time."""
        if now_ms < self._some_until * 1000:
            return True
        told = self._book.get([self._layout.amended])
        if told:
            self._some_until = int(told[0][EXPIRY]["N"])
        return bool(told)

    def _read(self, message_ids: Sequence[str], now_ms: int) -> dict[str, Amendment]:
        keys = [self._layout.amendment(message_id) for message_id in dict.fromkeys(message_ids)]
        prefix = len(self._layout.amendment("")[PARTITION]["S"])
        amendments = {}
        for item in self._book.get(keys):
            if int(item[EXPIRY]["N"]) * 1000 > now_ms:
                message_id = item[PARTITION]["S"][prefix:]
                amendments[message_id] = _amendment(item, message_id)
        return amendments


def _until(amendment: Amendment) -> int:
    """When an amendment may be forgotten, epoch seconds."""
    return -(-amendment.until_ms // 1000)


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
