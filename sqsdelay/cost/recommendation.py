"""Which way to deploy for a workload: hops alone, a DynamoDB or S3 store, or EventBridge Scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Final

from sqsdelay.cost.prices import Prices
from sqsdelay.cost.strategies import STRATEGIES, bill
from sqsdelay.cost.workload import TOGETHER, Bill, Workload
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.limits import DEFAULT_HOP_SECONDS, MAX_BATCH_ENTRIES

_HOP: Final = DEFAULT_HOP_SECONDS
_FULL_BATCHES: Final = lcm(*range(1, MAX_BATCH_ENTRIES + 1), TOGETHER)
"""So many messages fill batches of any size: none is charged for a last batch with room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A strategy, and how many messages share a request.

    With ``park_after_seconds`` the delay consumer parks, at the first hop, a message that has more
    than that remaining; others hop on. With ``stored`` the sender puts it into a store at once, with
    ``own_ids`` one that looks them up.
    """

    name: str
    strategy: str
    batch: int
    park_after_seconds: int | None = None
    stored: str | None = None
    own_ids: bool = False

    @property
    def parks_above_seconds(self) -> int | None:
        """The delays above which messages are parked."""
        after = self.park_after_seconds
        if after is None:
            return None
        return max(_HOP, after + (0 if self.stored else _HOP))

    def strategy_of(self, delay_seconds: int) -> str:
        """What becomes of a message."""
        above = self.parks_above_seconds
        parks = above is not None and delay_seconds > above
        return (self.stored or "parked") if parks else self.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A message's cost: a base, so much for each hop, and so much for each second of its delay."""

    base: Fraction
    hop: Fraction
    second: Fraction


def ways(park_after_seconds: Sequence[int]) -> list[Way]:
    """Relaying one by one and in full batches, parking after each of these, and AWS's scheduler.

    Raises:
        ConfigurationError: a negative number of seconds.
    """
    if below := [seconds for seconds in park_after_seconds if seconds < 0]:
        raise InvalidSetting("use 0 or more", park_after_seconds=below[0])
    full = MAX_BATCH_ENTRIES
    parking = [
        Way(
            name=f"parked after {seconds / 3600:g} h",
            strategy="relay",
            batch=full,
            park_after_seconds=seconds,
        )
        for seconds in sorted(set(park_after_seconds))
    ]
    return [
        Way(name="relay", strategy="relay", batch=1),
        Way(name=f"relay, batches of {full}", strategy="relay", batch=full),
        *parking,
        Way(name="eventbridge-scheduler", strategy="eventbridge-scheduler", batch=1),
    ]


def stored_in_s3_at_once(park_after_seconds: int, *, lookup: bool = False) -> Way:
    """Put into an S3 store by the sender, where more than that remains; else relayed in full batches."""
    return Way(
        name=f"stored in S3 after {park_after_seconds / 3600:g} h",
        strategy="relay",
        batch=MAX_BATCH_ENTRIES,
        park_after_seconds=park_after_seconds,
        stored="stored-in-s3",
        own_ids=lookup,
    )


@lru_cache(maxsize=100_000)
def rate(
    strategy: str,
    message_bytes: int,
    batch: int,
    prices: Prices,
    *,
    direct: bool,
    own_ids: bool = False,
) -> Rate | None:
    """What a message of this size costs; None if it is too large for the strategy.

    It leaves out what runs however few messages there are. ``direct``: delays that one message
    timer holds.

    Raises:
        ConfigurationError: a value out of range.
    """

    def each(delay_seconds: int) -> Fraction | None:
        messages = _FULL_BATCHES if batch > 1 else 1
        load = Workload(
            delay_seconds=delay_seconds,
            messages=messages,
            message_bytes=message_bytes,
            batch=batch,
            park_after_seconds=0,
            own_ids=own_ids,
        )
        paid = bill(strategy, load, prices)
        return None if paid.impossible else paid.for_messages / messages

    if direct:
        base = each(_HOP)
        return None if base is None else Rate(base=base, hop=Fraction(0), second=Fraction(0))
    # A bill grows evenly with hops and with seconds: three of them tell how.
    one_hop, longer, two_hops = each(_HOP + 1), each(2 * _HOP), each(3 * _HOP)
    if one_hop is None or longer is None or two_hops is None:
        return None
    second = (longer - one_hop) / (_HOP - 1)
    hop = two_hops - longer - _HOP * second
    return Rate(base=longer - hop - 2 * _HOP * second, hop=hop, second=second)


_SEARCH_HOPS = 10_000


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
        messages=TOGETHER,
        message_bytes=message_bytes,
        batch=batch,
        hop_seconds=hop_seconds,
        park_after_seconds=0,
    )
    for hops in range(1, _SEARCH_HOPS):
        remaining = replace(load, delay_seconds=(hops + 1) * hop_seconds)
        stored, hopped = (bill(code, remaining, prices) for code in ("stored", "relay"))
        if stored.impossible is None and stored.for_messages < hopped.for_messages:
            return remaining.delay_seconds
    raise ConfigurationError(
        f"at these prices a store costs more than {_SEARCH_HOPS} hops of {hop_seconds} s; do not park"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The cheapest way to deploy.

    Args:
        deploy: what to tell ``cdk deploy``.
        bill: what it costs.
        others: the other ways that can hold the messages, the cheaper first.
    """

    deploy: str
    bill: Bill
    others: tuple[tuple[str, Bill], ...]


def recommend(load: Workload, prices: Prices) -> Recommendation:
    """Of what `cdk deploy` makes, what costs the least; of equal ones what deploys the least."""
    found = [
        (each.deploy, bill(code, load, prices))
        for code, each in STRATEGIES.items()
        if each.deploy and not each.by_sender
    ]
    possible = [(deploy, paid) for deploy, paid in found if paid.impossible is None]
    (deploy, best), *others = sorted(possible, key=lambda each: each[1].total)
    return Recommendation(deploy=deploy, bill=best, others=tuple(others))
