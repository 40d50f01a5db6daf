"""A plan of a send: priced by the rates that `sqsdelay cost` prints, with a warning where it pays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from sqsdelay.core.message import Message
from sqsdelay.cost import shipped_prices
from sqsdelay.spark.estimate import RELAY_HOLDS, Planned, Workload, plan_of
from sqsdelay.spark.sink.options import Options

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PRICES = shipped_prices()


def planned(options: Options, *delays: int) -> Workload:
    plan = Planned(options, round(NOW.timestamp() * 1000))
    for delay in delays:
        plan.add(Message("x" * 200, due_at=NOW + timedelta(seconds=delay)))
    return plan.workload


def test_relaying_what_could_be_parked_is_warned_of() -> None:
    """A month of hops costs hundreds of times as much as a store; with the store nothing is said."""
    options = Options()
    workload = {
        key: [n * 10_000 for n in sums] for key, sums in planned(options, 30 * 86_400).items()
    }
    plan = plan_of(workload, options, PRICES)
    (warning,) = plan["warnings"]
    assert warning.startswith("relay, batches of 10 costs ")
    assert "--store" in warning
    stored = plan_of(workload, Options(store="dynamodb://t"), PRICES)
    assert (stored["way"], stored["relayed"], stored["warnings"]) == ("parked after 2.25 h", 0, [])


def test_an_s3_store_is_priced_as_spark_writes_to_it() -> None:
    """No hop and no request for each message; with look-up objects a PUT and two GETs for each. What is due
    sooner hops as ever."""
    days = {key: [n * 10**6 for n in sums] for key, sums in planned(Options(), 86_400).items()}
    costs = {}
    for url in ("s3://b", "s3://b?lookup=on"):
        options = Options(store=url)
        workload = {k: [n * 10**6 for n in v] for k, v in planned(options, 86_400).items()}
        plan = plan_of(workload, options, PRICES)
        assert (plan["way"], plan["relayed"]) == ("stored in S3 after 2.25 h", 0)
        costs[url] = Decimal(plan["costs"][plan["way"]])
    bulk, looked_up = costs.values()
    assert Decimal("0.05") < bulk < Decimal("0.20")
    assert looked_up - bulk == Decimal("5.80")
    assert "stored in S3 after 2.25 h" not in plan_of(days, Options(), PRICES)["costs"]
    soon = plan_of(planned(options, 8_000), options, PRICES)
    assert soon["relayed"] == 1


def test_more_than_the_relay_holds_is_warned_of() -> None:
    """By the figure of the guide to capacity; what a message timer holds is not relayed."""
    options = Options()
    (key,) = planned(options, 1000)
    plan = plan_of({key: [RELAY_HOLDS + 1] * 3}, options, PRICES)
    assert any("max_concurrency" in warning for warning in plan["warnings"])
    assert plan["seconds_at_quota"] == -(-(RELAY_HOLDS + 1) // 24_000)
    assert plan_of(planned(options, 900, -5), options, PRICES)["relayed"] == 0


def test_the_capacity_is_the_guides() -> None:
    """The row of the function as it is deployed."""
    guide = (Path(__file__).parents[2] / "docs" / "capacity.md").read_text()
    row, *_ = [
        line for line in guide.splitlines() if line.startswith("| relay: function, 10 at once")
    ]
    assert f"| {RELAY_HOLDS:,} |" in row
