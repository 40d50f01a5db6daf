"""A plan of a send: priced by the rates that `sqsdelay cost` prints, with a warning where it pays."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sqsdelay.core.message import Message, Route
from sqsdelay.cost.strategies import RELAYED_ON_TIME
from sqsdelay.spark.estimate import Planned, plan_of
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.run import Counts

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DAY = 86_400


def counted(options: Options, *delays: int, messages: int = 1, size: int = 200) -> Counts:
    """What a task tells of so many messages of each delay."""
    planned, counts = Planned(options, round(NOW.timestamp() * 1000)), Counts()
    for delay in delays:
        stored = planned.add(Message("x" * size, due_at=NOW + timedelta(seconds=delay)), messages)
        counts.routes[Route.STORE if stored else Route.DELAY_QUEUE] += messages
    planned.price(counts)
    return counts


def plan(options: Options, *delays: int, **more: int) -> dict[str, Any]:
    return plan_of(counted(options, *delays, **more), options)


def test_relaying_what_could_be_parked_is_warned_of() -> None:
    """A month of hops costs hundreds of times as much as a store; with the store nothing is said."""
    (warning,) = plan(Options(), 30 * DAY, messages=10_000)["warnings"]
    assert warning.startswith("hops, in tens costs ")
    assert "--store" in warning
    stored = plan(Options(store="dynamodb://t"), 30 * DAY, messages=10_000)
    assert stored["way"] == "DynamoDB, parked after 2.25 h"
    assert (stored["relayed"], stored["warnings"]) == (0, [])


def test_an_s3_store_is_priced_as_spark_writes_to_it() -> None:
    """No hop and no request for each message; with look-up objects a PUT and two GETs for each. What is due
    sooner hops as ever."""
    costs = {}
    for url in ("s3://bucket", "s3://bucket?lookup=on"):
        stored = plan(Options(store=url), DAY, messages=10**6)
        assert (stored["way"], stored["relayed"]) == ("S3, parked by the sender after 2.25 h", 0)
        costs[url] = float(stored["costs"][stored["way"]])
    bulk, looked_up = costs.values()
    assert 0.05 < bulk < 0.20
    assert looked_up - bulk == pytest.approx(5.80)
    assert "S3, parked by the sender after 2.25 h" not in plan(Options(), DAY)["costs"]
    options = Options(store="s3://bucket")
    assert plan(options, 8_000)["relayed"] == 1
    # As the summary's routes tell it, too.
    planned, start = Planned(options, 0), datetime.fromtimestamp(0, UTC)
    dues = (start + timedelta(seconds=delay) for delay in (60, 8100, 8101))
    assert [planned.add(Message("x", due_at=due)) for due in dues] == [False, False, True]


def test_more_than_the_relay_holds_is_warned_of() -> None:
    """By the figure of the guide to capacity; what a message timer holds is not relayed. What goes into the
    store does not count against the delay queue's quota."""
    stored = Options(store="s3://bucket")
    for many in (
        plan(options, 1000, 9000, messages=RELAYED_ON_TIME + 1) for options in (Options(), stored)
    ):
        assert any("max_concurrency" in warning for warning in many["warnings"])
    assert many["seconds_at_quota"] == -(-(RELAYED_ON_TIME + 1) // 24_000)
    assert plan(Options(), 900, -5)["relayed"] == 0


def test_tasks_of_any_sizes_tell_a_few_numbers() -> None:
    """A hundred sizes and delays come back in less than 1 kB, and add up to one plan; what is too large for
    one way has no price there."""
    options = Options(store="s3://bucket")
    told = Counts()
    for size in range(1, 1001, 10):
        told.add(counted(options, size * DAY // 100, size=size))
    assert len(pickle.dumps(told)) < 1024
    assert told.relayed == sum(900 < size * DAY // 100 <= 8100 for size in range(1, 1001, 10))
    told.add(counted(options, DAY, size=300_000))
    costs = plan_of(told, options)["costs"]
    assert [name for name, cost in costs.items() if cost is None] == ["EventBridge Scheduler alone"]
