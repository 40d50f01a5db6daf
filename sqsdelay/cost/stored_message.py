"""What a parked message costs in a DynamoDB store, from its items' sizes."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from sqsdelay.cost.bill import Line
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.workload import Workload
from sqsdelay.limits import MAX_RETENTION_SECONDS

ITEM_BYTES: Final = 60
"""Of an item besides body and attributes: names, keys of an endpoint with a short name, expiry."""

STORAGE_OVERHEAD_BYTES: Final = 100
"""DynamoDB adds this to each item. Source: DynamoDB guide, "Storage" considerations of items."""

_WRITE_UNIT_BYTES: Final = 1024
_READ_UNIT_BYTES: Final = 4096

_READS: Final = Fraction(3, 2)
"""A released message's bytes are read twice: once to see what is due, eventually consistent, which is
half the price, and once under the shard's lease."""

LEASE_WRITES_PER_MESSAGE: Final = Fraction(2, 100)
"""A lease is written twice a batch: assumed are batches of 100 messages of a shard."""

_GB: Final = 2**30
MONTH_SECONDS: Final = 365 * 24 * 3600 // 12


def item_bytes(load: Workload) -> int:
    """The item of one message."""
    return load.message_bytes + ITEM_BYTES


def write_units(load: Workload) -> int:
    """Write request units of one message's life in the store: its put. Time to live deletes it."""
    return -(-item_bytes(load) // _WRITE_UNIT_BYTES)


def store_lines(load: Workload, prices: Prices) -> tuple[Line, ...]:
    """Writes, reads and storage of all messages."""
    stored = item_bytes(load) + STORAGE_OVERHEAD_BYTES
    # What is released stays until it expires.
    months = Fraction(load.delay_seconds + MAX_RETENTION_SECONDS, MONTH_SECONDS)
    rare = load.infrequent_access
    write = prices.dynamodb_ia_write_unit if rare else prices.dynamodb_write_unit
    read = prices.dynamodb_ia_read_unit if rare else prices.dynamodb_read_unit
    month = prices.dynamodb_ia_gb_month if rare else prices.dynamodb_gb_month
    return (
        Line(
            what="DynamoDB write units (put)",
            quantity=load.messages * write_units(load),
            unit_price=write,
        ),
        Line(
            what="DynamoDB lease writes (two a batch of a shard)",
            quantity=load.messages * LEASE_WRITES_PER_MESSAGE,
            unit_price=write,
        ),
        Line(
            what="DynamoDB read units (queries)",
            quantity=load.messages * _READS * Fraction(item_bytes(load), _READ_UNIT_BYTES),
            unit_price=read,
        ),
        Line(
            what="DynamoDB storage, GB-months",
            quantity=Fraction(load.messages * stored, _GB) * months,
            unit_price=month,
        ),
    )
