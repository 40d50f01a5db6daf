"""From which remaining delay on parking is cheaper than more hops."""

from __future__ import annotations

from dataclasses import replace

from sqsdelay.cost.bill import Bill
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.strategies import relay, stored_by_sender
from sqsdelay.cost.workload import Workload
from sqsdelay.errors import ConfigurationError
from sqsdelay.limits import DEFAULT_HOP_SECONDS, MAX_BATCH_ENTRIES

_SEARCH_HOPS = 10_000
_MESSAGES = 1_000
"""Enough that a last batch that is not full makes no difference."""


def break_even_seconds(
    prices: Prices,
    *,
    message_bytes: int = 1024,
    batch: int = MAX_BATCH_ENTRIES,
    hop_seconds: int = DEFAULT_HOP_SECONDS,
) -> int:
    """The shortest remaining delay, in whole hops, at which further hops cost more than a store.

    Compared is what still grows with the message: on one side its hops (requests and Lambda), on
    the other the DynamoDB store's writes, reads and storage and the dispatcher. Idle polling and
    schedules run anyway. The default ``batch`` of 10 takes hops at their cheapest, so that parking
    from there on never costs more.

    Raises:
        ConfigurationError: a value out of range, or prices at which hops are always cheaper.
    """
    load = Workload(
        delay_seconds=0,
        messages=_MESSAGES,
        message_bytes=message_bytes,
        batch=batch,
        hop_seconds=hop_seconds,
    )
    for hops in range(1, _SEARCH_HOPS):
        remaining = replace(load, delay_seconds=(hops + 1) * hop_seconds)
        if _cheaper(stored_by_sender(remaining, prices), relay(remaining, prices)):
            return remaining.delay_seconds
    raise ConfigurationError(
        f"at these prices a store costs more than {_SEARCH_HOPS} hops of {hop_seconds} s; do not park"
    )


def _cheaper(store: Bill, hops: Bill) -> bool:
    return store.impossible is None and store.for_messages < hops.for_messages
