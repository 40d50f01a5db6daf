"""The timeout manager while a destination is deleted, full or denied, counted over virtual minutes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage, size_of, string
from sqsdelay.errors import QueueUnavailable
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sqs.timeouts import SqsTimeouts
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock
from sqsdelay.timeouts.manager import TimeoutManager, TimeoutSettings, TimeoutStatus

ERRORS = "orders-delay-error"
DISPATCHER = "orders-timeouts-dispatcher"


class CountingQueues(InMemoryQueues):
    """Counts what is sent to each queue; some are full."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.full: set[str] = set()
        self.sends: Counter[str] = Counter()

    def send_batch(self, queue_url: str, entries: Sequence[Any]) -> list[SendReceipt | Failure]:
        self.sends[queue_url] += len(entries)
        if queue_url in self.full:
            return [Failure("Full", QueueUnavailable("full"), transient=True, outage=True)] * len(
                entries
            )
        return super().send_batch(queue_url, entries)


class World:
    """Two managers that share queues and store, or one."""

    def __init__(self, managers: int = 1, **settings: Any) -> None:
        self.clock = ManualClock()
        self.queues = CountingQueues(self.clock)
        for name in ("orders", ERRORS, "orders-timeouts", DISPATCHER, "well", "full"):
            self.queues.create_queue(name)
        self.store = InMemoryStore(self.clock)
        self.done: Counter[TimeoutStatus] = Counter()
        self.managers = [
            TimeoutManager(
                self.store,
                SqsTimeouts(self.queues, Endpoint.parse("orders")),
                settings=TimeoutSettings(wait_seconds=0, **settings),
                on_done=lambda status, ids: self.done.update({status: len(ids)}),
                clock=self.clock,
            )
            for _ in range(managers)
        ]

    def delay(self, to: str, count: int, seconds: float = 1) -> None:
        for n in range(count):
            attributes = {
                "sqsdelay.MessageId": string(f"{to}-{n}"),
                "sqsdelay.Destination": string(to),
                "sqsdelay.DueAt": string(str(self.clock.true_ms + round(seconds * 1000))),
            }
            entry = OutgoingMessage("hi", attributes, size_of("hi", attributes))
            self.queues.send_batch("orders-timeouts", [entry])

    def run(self, seconds: int) -> None:
        """Turns of all tasks, second by second; few enough that order and backlog matter."""
        for _ in range(seconds):
            for manager in self.managers:
                for _ in range(5):
                    manager.arrivals.turn()
                    manager.announcer.turn()
                    manager.dispatch.turn()
            self.clock.advance(1)

    def left(self, queue: str) -> int:
        return len(self.queues._queues[queue].messages)


@pytest.mark.parametrize("managers", [1, 2])
def test_messages_for_a_deleted_queue_end_in_the_error_queue(managers: int) -> None:
    """200 of them: each announced once, tried eight times in two minutes, rejected with the reason.

    Fifty messages for a healthy queue, behind them, arrive within seconds.
    """
    world = World(managers)
    world.delay("gone", 200, seconds=10)
    world.delay("well", 50, seconds=11)
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
    assert world.done[TimeoutStatus.ANNOUNCED] == 250
    assert world.queues.sends[DISPATCHER] == 250
    assert (world.left(DISPATCHER), world.store.pending_count()) == (0, 0)


def test_a_full_queue_is_waited_for_and_starves_nobody() -> None:
    """Ten minutes: one attempt a minute, one announcement each, nothing rejected, all arrive at last."""
    world = World()
    world.queues.full = {"full"}
    world.delay("full", 200)
    world.delay("well", 50)
    world.run(20)
    assert world.left("well") == 50
    world.run(580)
    first = 10  # one batch of ids, before the queue was known to be full
    assert world.queues.sends["full"] in range(first, first + 20)
    assert world.queues.sends[DISPATCHER] <= 250
    assert (world.left(ERRORS), world.store.pending_count()) == (0, 200)
    world.queues.full = set()
    world.run(90)
    assert world.left("full") == 200
    assert (world.left(DISPATCHER), world.store.pending_count()) == (0, 0)


def test_a_restart_announces_once_more() -> None:
    """What waited in the memory of a dead process is in the store: announced when its hold ends."""
    world = World()
    world.queues.full = {"full"}
    world.delay("full", 30)
    world.run(30)
    world.queues.full = set()
    assert world.store.pending_count() == 30
    manager = TimeoutManager(
        world.store,
        SqsTimeouts(world.queues, Endpoint.parse("orders")),
        settings=TimeoutSettings(wait_seconds=0),
        clock=world.clock,
    )
    world.managers = [manager]
    world.run(301)
    assert world.left("full") == 30
    assert world.queues.sends[DISPATCHER] <= 60


def test_due_on_arrival_for_a_deleted_queue() -> None:
    """It waits in the store, not in the timeouts queue, and goes the same way."""
    world = World(number_of_retries=2)
    world.delay("gone", 3, seconds=-5)
    world.run(1)
    assert (world.left("orders-timeouts"), world.store.pending_count()) == (0, 3)
    world.run(10)
    assert (world.left(ERRORS), world.store.pending_count()) == (3, 0)


def test_no_retries_reject_at_once() -> None:
    """The seed's NumberOfRetries for stores, if that is what you want."""
    world = World(number_of_retries=0)
    world.delay("gone", 3)
    world.run(3)
    assert world.left(ERRORS) == 3


def test_an_error_queue_that_is_full_loses_nothing() -> None:
    """What cannot be rejected stays in the store, and is tried again."""
    world = World(number_of_retries=0)
    world.queues.full = {ERRORS}
    world.delay("gone", 3)
    world.run(200)
    assert world.store.pending_count() == 3
    assert world.queues.sends[ERRORS] < 40
    world.queues.full = set()
    world.run(61)
    assert (world.left(ERRORS), world.store.pending_count()) == (3, 0)


def test_more_than_are_remembered_come_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded; those beyond it wait in the store for their turn, and none is lost."""
    monkeypatch.setattr("sqsdelay.timeouts.dispatch._REMEMBERED", 20)
    world = World(number_of_retries=2)
    world.delay("gone", 100)
    world.run(1600)
    assert (world.left(ERRORS), world.store.pending_count()) == (100, 0)
    assert world.left(DISPATCHER) == 0


def test_the_long_poll_is_cut_short_for_a_retry() -> None:
    """A receiver that waits 20 s for ids would try again every 20 s only."""
    world = World()
    waits: list[int] = []
    transport = world.managers[0].dispatch._transport
    receive = transport.receive_due_ids
    manager = TimeoutManager(
        world.store, transport, settings=TimeoutSettings(wait_seconds=20), clock=world.clock
    )

    def receiving(*, wait_seconds: int) -> Any:
        waits.append(wait_seconds)
        return receive(wait_seconds=0)

    transport.receive_due_ids = receiving  # type: ignore[method-assign]
    world.delay("gone", 1)
    manager.arrivals.turn()
    world.clock.advance(1)
    manager.announcer.turn()
    for _ in range(4):
        manager.dispatch.turn()
        world.clock.advance(waits[-1] if waits[-1] < 20 else 0)
    assert waits == [20, 1, 0, 2]
