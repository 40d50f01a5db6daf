"""Full batches: as few calls as 10 entries and 1 MiB allow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from sqsdelay.limits import MAX_BATCH_BYTES, MAX_BATCH_ENTRIES

T = TypeVar("T")


def full_batches(
    items: Iterable[T], *, target: Callable[[T], Hashable], size: Callable[[T], int]
) -> Iterator[list[T]]:
    """Group ``items`` per target, in order, into batches that SQS takes in one call.

    Args:
        target: the queue an item goes to; a batch has one.
        size: an item's bytes as SQS counts them.
    """
    waiting: dict[Hashable, list[T]] = {}
    sizes: dict[Hashable, int] = {}
    for item in items:
        key, item_size = target(item), size(item)
        batch = waiting.get(key)
        if batch and (len(batch) == MAX_BATCH_ENTRIES or sizes[key] + item_size > MAX_BATCH_BYTES):
            yield batch
            batch = None
        if batch is None:
            batch = waiting[key] = []
            sizes[key] = 0
        batch.append(item)
        sizes[key] += item_size
    yield from waiting.values()
