"""What a parked message costs in a DynamoDB store, from its items' sizes."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from sqsdelay.cost.bill import Line
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.workload import Workload

ITEM_BYTES: Final = 300
"""Of an item besides body and attributes, while it is claimed: names, keys, a UUID twice."""

WAITING_ITEM_BYTES: Final = 250
"""The same while it waits, without the claim."""

INDEX_ENTRY_BYTES: Final = 154
"""Of its index entry: keys, due time, lease."""

_STORAGE_OVERHEAD_BYTES: Final = 100
"""DynamoDB adds this to each item and index entry. Source: DynamoDB guide, "Storage"
considerations of items and of global secondary indexes."""

_WRITE_UNIT_BYTES: Final = 1024
_READ_UNIT_BYTES: Final = 4096
_WRITES: Final = 3
"""Put, claim and delete; each writes the index too, since the claim's lease is projected into it."""

_GB: Final = 2**30
MONTH_SECONDS: Final = 365 * 24 * 3600 // 12


def item_bytes(load: Workload) -> int:
    """The item of one message."""
    return load.message_bytes + ITEM_BYTES


def write_units(load: Workload) -> int:
    """Write request units of one message's life in the store."""
    return _WRITES * (-(-item_bytes(load) // _WRITE_UNIT_BYTES) + 1)


def store_lines(load: Workload, prices: Prices) -> tuple[Line, ...]:
    """Writes, reads and storage of all messages."""
    waiting = load.message_bytes + WAITING_ITEM_BYTES + INDEX_ENTRY_BYTES
    stored = waiting + 2 * _STORAGE_OVERHEAD_BYTES
    months = Fraction(load.delay_seconds, MONTH_SECONDS)
    # The index is queried, eventually consistent: half a unit reads 4 KiB of entries.
    reads = load.messages * Fraction(INDEX_ENTRY_BYTES, 2 * _READ_UNIT_BYTES)
    return (
        Line(
            what="DynamoDB write units (put, claim, delete, and the index)",
            quantity=load.messages * write_units(load),
            unit_price=prices.dynamodb_write_unit,
        ),
        Line(
            what="DynamoDB read units (index)",
            quantity=reads,
            unit_price=prices.dynamodb_read_unit,
        ),
        Line(
            what="DynamoDB storage, GB-months",
            quantity=Fraction(load.messages * stored, _GB) * months,
            unit_price=prices.dynamodb_gb_month,
        ),
    )
