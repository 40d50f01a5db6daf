"""The timeout manager while a destination is deleted, full or denied, counted over virtual minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.stores import SqliteStore
from sqsdelay.testing import ManualClock
from sqsdelay.timeouts.manager import TimeoutStatus
from tests.faulty import AWAY
from tests.unit.timeout_site import DISPATCHER, ERRORS, TIMEOUTS, World


def test_messages_for_a_deleted_queue_end_in_the_error_queue() -> None:
    """200 of them: each announced once, tried eight times in two minutes, rejected with the reason.

    Fifty messages for a healthy queue, behind them, arrive within seconds.
    """
    world = World(managers=2)
    world.delay_many("gone", 200, seconds=10)
    world.delay_many("well", 50, seconds=11)
    world.run(24)
    assert world.left("well") == 50
    world.run(100)
    assert world.left(ERRORS) == 0
    world.run(56)
    assert world.left(ERRORS) == 200
    error = next(iter(world.queues._queues[ERRORS].messages.values())).message.attributes
    about = json.loads(error["sqsdelay.Error"]["StringValue"])
    assert (about["destination"], about["reason"]) == (
        "gone",
        "QueueMissing: queue gone does not exist",
    )
    assert world.counted[TimeoutStatus.ANNOUNCED] == 250
    assert world.queues.sends[DISPATCHER] == 250
    assert (world.left(DISPATCHER), world.store.pending_count()) == (0, 0)


def test_a_full_queue_is_waited_for_and_starves_nobody() -> None:
    """Ten minutes: one attempt a minute, one announcement each, nothing rejected, all arrive at last."""
    world = World()
    world.queues.failing = {"full": AWAY}
    world.delay_many("full", 200)
    world.delay_many("well", 50)
    world.run(20)
    assert world.left("well") == 50
    world.run(580)
    first = 200  # one batch of ids, before the queue was known to be full
    assert world.queues.sends["full"] in range(first, first + 20)
    assert world.queues.sends[DISPATCHER] <= 250
    assert (world.left(ERRORS), world.store.pending_count()) == (0, 200)
    world.queues.failing = {}
    world.run(90)
    assert world.left("full") == 200
    assert (world.left(DISPATCHER), world.store.pending_count()) == (0, 0)


def test_due_on_arrival_for_a_deleted_queue() -> None:
    """It waits in the store, not in the timeouts queue, and goes the same way."""
    world = World(number_of_retries=2)
    world.delay_many("gone", 3, seconds=-5)
    world.run(1)
    assert (world.left("orders-timeouts"), world.store.pending_count()) == (0, 3)
    world.run(10)
    assert (world.left(ERRORS), world.store.pending_count()) == (3, 0)


def test_an_error_queue_that_is_full_loses_nothing() -> None:
    """What cannot be rejected stays in the store, and is tried again."""
    world = World(number_of_retries=0)
    world.queues.failing = {ERRORS: AWAY}
    world.delay_many("gone", 3)
    world.run(200)
    assert world.store.pending_count() == 3
    assert world.queues.sends[ERRORS] < 40
    world.queues.failing = {}
    world.run(61)
    assert (world.left(ERRORS), world.store.pending_count()) == (3, 0)


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_many_for_a_good_queue(count: int) -> None:
    """Two managers: each is announced once and arrives, within so many turns as 500 a turn need; nothing is
    asked twice."""
    world = World(managers=2)
    world.delay_many("well", count, seconds=60)
    while world.left(TIMEOUTS):
        world.manager.store_arrivals()
    world.clock.advance(60)
    turns, most = 0, 0
    while world.store.pending_count():
        for manager in world.managers:
            manager.announce()
            manager.dispatch()
            turns += 1
        most = max(most, world.left(DISPATCHER))
    assert turns <= count / 500 + 2
    assert most <= 500
    assert world.left("well") == count
    assert (world.queues.sends[DISPATCHER], world.queues.sends["well"]) == (count, count)
    assert world.left(DISPATCHER) == 0


@pytest.mark.parametrize("count", [1_200, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_many_for_a_missing_queue_hold_up_nobody(
    count: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Healthy ones that are due later leave in the same second, at every stage; the missing queue gets a
    handful of ids and a send a claim, and each message its attempts and then the error queue."""

    def sqlite(clock: ManualClock) -> SqliteStore:
        store = SqliteStore(tmp_path / "store.db", endpoint="orders", clock=clock)
        request.addfinalizer(store.close)  # Python 3.13 warns of a connection left open.
        store.set_up()
        return store

    world = World(store=sqlite)
    world.delay_many("gone", count, seconds=100)
    for n in range(200):
        world.delay(f"well-{n}", 101 + n, to="well")
    while world.left(TIMEOUTS):
        world.manager.store_arrivals()
    world.clock.advance(100)
    for second in range(202):
        assert world.left("well") >= second - 1
        world.run(1, turns=3)
    while world.left(ERRORS) < count:
        world.run(1, turns=3)
    assert (world.left("well"), world.store.pending_count()) == (200, 0)
    assert world.queues.sends[DISPATCHER] <= 1_500
    assert world.counted[TimeoutStatus.REJECTED] == count


def test_what_could_not_be_sent_is_tried_soon_however_slow_the_error_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its queue's pause ends while another message is rejected; it does not wait to be announced again."""
    world = World(number_of_retries=0)
    world.queues.failing = {"full": AWAY}
    world.delay("a", 1, to="full")
    world.delay("b", 1, to="gone")
    world.manager.store_arrivals()
    world.clock.advance(1)
    world.manager.announce()
    reject = world.transport.reject

    def slow(refused: Any) -> Any:
        world.clock.advance(2)
        return reject(refused)

    monkeypatch.setattr(world.transport, "reject", slow)
    world.manager.dispatch()
    assert world.left(ERRORS) == 1
    world.queues.failing = {}
    world.run(3)
    assert world.left("full") == 1
