"""What becomes due in the time ahead, span by span."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sqsdelay.operating.listing import Listing
from sqsdelay.ports.stores import CountsDue, ParkingPlace

MOST_READ: Final = 500
"""Messages read of a store that cannot count: each is paid for, its body too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How many messages are due in each span.

    Args:
        edges_ms: where the spans begin, and where the last one ends; epoch milliseconds.
        counts: messages due in each span, one fewer than edges.
        complete_until_ms: the counts are whole up to here; None where they are whole.
    """

    edges_ms: tuple[int, ...]
    counts: tuple[int, ...]
    complete_until_ms: int | None = None


def outlook(store: ParkingPlace, edges_ms: Sequence[int]) -> Outlook:
    """Count what a store has, span by span; of one that cannot count, the earliest `MOST_READ`.

    Args:
        edges_ms: ascending; two or more.

    Raises:
        StoreUnavailable, StoreMissing
    """
    edges = tuple(edges_ms)
    if isinstance(store, CountsDue):
        counted = tuple(store.count_due(start, end) for start, end in pairwise(edges))
        return Outlook(edges_ms=edges, counts=counted)
    listing = Listing(after=None, due_from_ms=edges[0], due_before_ms=edges[-1])
    counts = [0] * (len(edges) - 1)
    last_ms = None
    for message in listing.read(store, MOST_READ):
        counts[bisect_right(edges, message.due_ms) - 1] += 1
        last_ms = message.due_ms
    cut = listing.listed == MOST_READ and listing.has_more(store)
    return Outlook(edges_ms=edges, counts=tuple(counts), complete_until_ms=last_ms if cut else None)
