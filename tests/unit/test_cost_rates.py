"""Rates are the bills: the same sums, message by message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsdelay.cost import Workload, bills, shipped_prices
from sqsdelay.cost.recommendation import Way, rate, ways
from sqsdelay.cost.workload import BANDS, band_of
from sqsdelay.errors import ConfigurationError

PRICES = shipped_prices()
YEAR = 365 * 24 * 3600
MANY = 2520
"""Fills batches of any size."""


@given(
    delay_seconds=st.integers(0, 3 * YEAR),
    message_bytes=st.integers(1, 1_000_000),
    batch=st.sampled_from([1, 10]),
    strategy=st.sampled_from(["relay", "parked", "eventbridge-scheduler"]),
)
def test_a_rate_is_the_bill_divided(
    delay_seconds: int, message_bytes: int, batch: int, strategy: str
) -> None:
    """Base, hops and seconds give what `sqsdelay cost` bills, to the last digit, for any message."""
    load = Workload(
        delay_seconds=delay_seconds,
        messages=MANY,
        message_bytes=message_bytes,
        batch=1 if strategy == "eventbridge-scheduler" else batch,
    )
    (bill,) = [bill for bill in bills(load, PRICES) if bill.strategy == strategy]
    each = rate(strategy, message_bytes, load.batch, PRICES, direct=load.hops == 0)
    if bill.impossible:
        assert each is None
        return
    assert each is not None
    cost = each.base + each.hop * load.hops + each.second * delay_seconds
    assert cost * MANY == bill.for_messages


def test_a_relays_rate_grows_with_hops_and_a_stores_with_time() -> None:
    """What is what."""
    relay = rate("relay", 1000, 10, PRICES, direct=False)
    parked = rate("parked", 1000, 10, PRICES, direct=False)
    assert relay is not None
    assert parked is not None
    assert relay.hop > 0 == relay.second
    assert parked.second > 0 == parked.hop


@pytest.mark.parametrize(
    ("after", "delay", "strategy"),
    [(3600, 4500, "relay"), (3600, 4501, "parked"), (0, 900, "relay"), (0, 901, "parked")],
)
def test_parking_is_decided_at_the_first_hop(after: int, delay: int, strategy: str) -> None:
    """After 900 s in the delay queue, a message is parked if more than ``park_after`` remains."""
    way = Way(name="", strategy="relay", batch=10, park_after_seconds=after)
    assert way.strategy_of(delay) == strategy


def test_ways_are_named_and_sorted() -> None:
    """One for each time to park after, once."""
    names = [way.name for way in ways([8100, 3600, 3600])]
    assert names == [
        "relay",
        "relay, batches of 10",
        "parked after 1 h",
        "parked after 2.25 h",
        "eventbridge-scheduler",
    ]
    with pytest.raises(ConfigurationError, match="park_after_seconds=-1; use 0 or more"):
        ways([-1])


@pytest.mark.parametrize(
    ("delay", "name"),
    [(0, "up to 1 min"), (60, "up to 1 min"), (61, "up to 15 min"), (900, "up to 15 min"),
     (901, "up to 1 h"), (YEAR, "up to 1 year"), (YEAR + 1, "above 1 year")],
)  # fmt: skip
def test_bands_end_with_their_last_second(delay: int, name: str) -> None:
    """Edges belong to the band below."""
    assert BANDS[band_of(delay)].name == name
