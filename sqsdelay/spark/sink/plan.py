"""What sending a table would come to, found out by its tasks without sending anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlsplit

from sqsdelay.core.message import Message, OutgoingMessage, size_of, string
from sqsdelay.cost import Prices, shipped_prices
from sqsdelay.cost.recommendation import Way, stored_in_s3_at_once, ways
from sqsdelay.limits import MAX_BATCH_ENTRIES, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.ports.queues import Failure, Queues, SendReceipt
from sqsdelay.spark.estimate import amounts_of, edges_of, hop_count
from sqsdelay.spark.sink.options import Options
from sqsdelay.stores.s3.slots import settings_of

_CALLS_A_SECOND: Final = 2_400
"""A FIFO queue with high throughput, in most regions. Source: docs/capacity.md, "Quoted"."""

RELAY_HOLDS: Final = 1_100_000
"""Pending messages that the deployed function relays on time. Source: docs/capacity.md, "Answers"."""

_FAR_DEARER: Final = 2
_WORTH_A_WORD: Final = Decimal(1)

Workload = dict[tuple[int, int], list[int]]
"""By segment of delays and size in bytes: messages, hops and seconds, summed up."""


class UnsentQueues:
    """The real queues, asked as for a send; what would be sent is taken for sent."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queues, name)

    def send_batch(self, _: str, entries: Sequence[OutgoingMessage]) -> list[SendReceipt | Failure]:
        """Send nothing."""
        return [SendReceipt("not-sent") for _ in entries]


class Planned:
    """What a task would send, summed up so that any way of delaying it can be priced.

    Args:
        options: of the job.
        now_ms: what is due later is delayed, epoch milliseconds.
    """

    def __init__(self, options: Options, now_ms: int) -> None:
        self._edges = edges_of(_compared(options)[0])
        self._now_ms = now_ms
        self.workload: Workload = {}

    def add(self, message: Message) -> None:
        """Count a message."""
        assert message.due_at is not None, "rows have a due time"
        late_ms = round(message.due_at.timestamp() * 1000) - self._now_ms
        seconds = max(0, -(-late_ms // 1000))
        segment = next(i for i, edge in enumerate(self._edges) if seconds <= edge)
        attributes = {name: string(str(value)) for name, value in message.attributes.items()}
        sums = self.workload.setdefault((segment, size_of(message.body, attributes)), [0, 0, 0])
        sums[0] += 1
        sums[1] += hop_count(seconds)
        sums[2] += seconds


def plan_of(workload: Workload, options: Options, prices: Prices | None = None) -> dict[str, Any]:
    """What each way costs, how long sending takes, whether the relay holds it; a warning or None."""
    used, (compared, chosen) = prices or shipped_prices(), _compared(options)
    edges = edges_of(compared)
    costs = _costs(workload, edges, compared, used)
    possible = {name: cost for name, cost in costs.items() if cost is not None}
    cheapest = min(possible, key=lambda name: possible[name], default=None)
    total = sum(sums[0] for sums in workload.values())
    relayed = sum(
        sums[0]
        for (segment, _), sums in workload.items()
        if edges[segment] > MAX_MESSAGE_TIMER_SECONDS
        and chosen.strategy_of(edges[segment]) == "relay"
    )
    return {
        "currency": used.currency,
        "costs": {name: None if cost is None else f"{cost:.2f}" for name, cost in costs.items()},
        "way": chosen.name,
        "cheapest": cheapest,
        "seconds_at_quota": -(-total // (_CALLS_A_SECOND * MAX_BATCH_ENTRIES)),
        "relayed": relayed,
        "relay_holds": RELAY_HOLDS,
        "warnings": _warnings(
            costs, chosen.name, cheapest, relayed, used.currency, stores=options.store is not None
        ),
    }


def _compared(options: Options) -> tuple[list[Way], Way]:
    """The ways that are priced, and the job's own."""
    compared = ways([options.park_after])
    _, relayed, parked, _ = compared
    if options.store is None:
        return compared, relayed
    parts = urlsplit(options.store)
    if parts.scheme != "s3":
        return compared, parked
    ahead = max(options.park_after, options.hop_seconds)
    stored = stored_in_s3_at_once(ahead, lookup=settings_of(parts).get("lookup", False))
    return [*compared, stored], stored


def _costs(
    workload: Workload, edges: Sequence[int], compared: Sequence[Way], prices: Prices
) -> dict[str, Decimal | None]:
    amounts = amounts_of(edges, prices, compared)
    costs: dict[str, Decimal | None] = {way.name: Decimal(0) for way in compared}
    for (segment, size), (messages, hops, seconds) in workload.items():
        found = amounts(segment, size, Decimal(messages), Decimal(hops), Decimal(seconds))
        for way, cost in zip(compared, found, strict=True):
            before = costs[way.name]
            costs[way.name] = None if cost is None or before is None else before + cost
    return costs


def _warnings(
    costs: Mapping[str, Decimal | None],
    chosen: str,
    cheapest: str | None,
    relayed: int,
    currency: str,
    *,
    stores: bool,
) -> list[str]:
    told = []
    mine, least = costs[chosen], None if cheapest is None else costs[cheapest]
    far = mine is not None and least is not None and mine - least > _WORTH_A_WORD
    if mine is not None and least is not None and far and mine > _FAR_DEARER * least:
        told.append(
            f"{chosen} costs {mine:.2f} {currency}, {cheapest} {least:.2f}: "
            + (
                "docs/cost.md compares the stores"
                if stores
                else "give a store (--store) to park messages due far ahead"
            )
        )
    if relayed > RELAY_HOLDS:
        told.append(
            f"{relayed:,} messages are relayed, and the deployed function holds {RELAY_HOLDS:,} on "
            "time: raise its max_concurrency, or give a store (docs/capacity.md)"
        )
    return told
