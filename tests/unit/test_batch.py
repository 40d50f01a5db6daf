"""Batches of 10 entries and 1 MiB: full to the byte, never over."""

from __future__ import annotations

from sqsdelay.core.message import full_batches
from sqsdelay.limits import MAX_BATCH_BYTES, MAX_BATCH_ENTRIES


def batches(*sizes: int) -> list[list[int]]:
    return list(full_batches(sizes, target=lambda _: "orders", size=lambda size: size))


def test_a_batch_may_be_full_to_the_byte() -> None:
    """The limit itself is allowed, twice in a row; one byte more begins the next batch."""
    half = MAX_BATCH_BYTES // 2
    assert batches(half, half, half, half) == [[half, half], [half, half]]
    assert batches(half, half + 1, half - 1) == [[half], [half + 1, half - 1]]
    assert batches(MAX_BATCH_BYTES, MAX_BATCH_BYTES) == [[MAX_BATCH_BYTES], [MAX_BATCH_BYTES]]


def test_a_batch_has_ten_entries_at_most() -> None:
    """The eleventh begins the next."""
    assert [len(batch) for batch in batches(*[1] * 21)] == [MAX_BATCH_ENTRIES, MAX_BATCH_ENTRIES, 1]
