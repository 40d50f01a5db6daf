"""The timeout manager on queues and a store in memory, under virtual time."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage, size_of, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import (
    ConfigurationError,
    CriticalError,
    InvalidEndpoint,
    QueueMissing,
    QueueUnavailable,
    SendFailed,
    StoreUnavailable,
)
from sqsdelay.ports.queues import Failure
from sqsdelay.sqs.timeouts import SqsTimeouts, timeout_queues
from sqsdelay.testing import InMemoryQueues, ManualClock
from sqsdelay.timeouts.manager import TimeoutManager, TimeoutSettings, TimeoutStatus
from tests.faulty import FaultyStore


class World:
    """An endpoint with a timeout manager, and the time."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.queues = InMemoryQueues(self.clock)
        for name in ("orders", "orders-delay-error", "orders-timeouts", "billing"):
            self.queues.create_queue(name)
        self.queues.create_queue("orders-timeouts-dispatcher")
        self.store = FaultyStore(self.clock)
        self.done: list[tuple[TimeoutStatus, list[str]]] = []
        self.transport = SqsTimeouts(self.queues, Endpoint.parse("orders"))
        self.manager = self.another(**settings)

    def another(self, **settings: Any) -> TimeoutManager:
        critical = settings.pop("on_critical", None)
        return TimeoutManager(
            self.store,
            self.transport,
            settings=TimeoutSettings(wait_seconds=0, **settings),
            on_critical=critical,
            on_done=lambda status, ids: self.done.append((status, list(ids))),
            clock=self.clock,
        )

    def delay(
        self,
        message_id: str,
        seconds: float,
        *,
        to: str = "orders",
        body: str = "hi",
        group: str | None = None,
    ) -> None:
        attributes = {
            "sqsdelay.MessageId": string(message_id),
            "sqsdelay.Destination": string(to),
            "sqsdelay.DueAt": string(str(self.clock.true_ms + round(seconds * 1000))),
        }
        if group is not None:
            attributes["sqsdelay.MessageGroupId"] = string(group)
        self.put("orders-timeouts", OutgoingMessage(body, attributes, size_of(body, attributes)))

    def put(self, queue: str, entry: OutgoingMessage) -> None:
        (sent,) = self.queues.send_batch(queue, [entry])
        assert not isinstance(sent, Failure)

    def arrived(self, queue: str = "orders") -> list[ReceivedMessage]:
        copies = self.queues.receive_batch(queue, wait_seconds=0)
        self.queues.delete_batch(queue, copies)
        return copies

    def arrived_ids(self, queue: str = "orders") -> list[str]:
        return [c.attributes["sqsdelay.MessageId"]["StringValue"] for c in self.arrived(queue)]

    def left(self, queue: str) -> int:
        return len(self.queues._queues[queue].messages)


@pytest.fixture
def world() -> World:
    return World()


def test_a_message_waits_in_the_store_and_arrives_when_due(world: World) -> None:
    """Timeouts queue, store, dispatcher queue, destination; nothing left behind anywhere."""
    world.delay("m", 3600)
    assert world.manager.arrivals.turn() == 1
    assert world.store.pending_count() == 1
    world.clock.advance(3599.999)
    assert world.manager.announcer.turn() == 0
    world.clock.advance(1)  # an idle manager knows the broker's clock to the second
    assert world.manager.announcer.turn() == 1
    assert world.manager.dispatch.turn() == 1
    (copy,) = world.arrived()
    assert copy.body == "hi"
    assert copy.attributes["sqsdelay.MessageId"]["StringValue"] == "m"
    assert "sqsdelay.Destination" not in copy.attributes
    assert world.store.pending_count() == 0
    assert (world.left("orders-timeouts"), world.left("orders-timeouts-dispatcher")) == (0, 0)
    assert [status for status, _ in world.done] == ["stored", "announced", "dispatched"]


def test_what_is_due_on_arrival_is_sent_on_at_once(world: World) -> None:
    """It is not stored, and needs no dispatcher."""
    world.delay("past", -5)
    world.delay("now", 0)
    world.delay("later", 1)
    world.manager.arrivals.turn()
    assert world.arrived_ids() == ["past", "now"]
    assert world.store.pending_count() == 1
    assert world.left("orders-timeouts") == 0


def test_the_destination_is_the_messages_own(world: World) -> None:
    """A timeout manager serves whoever sends to it; the header says where to."""
    world.delay("m", 10, to="billing")
    world.manager.arrivals.turn()
    world.clock.advance(10)
    world.manager.announcer.turn()
    world.manager.dispatch.turn()
    assert world.arrived_ids("billing") == ["m"]
    assert world.arrived() == []


def test_a_message_delivered_twice_is_stored_once(world: World) -> None:
    """The queue delivers at least once; the store's key is the message id."""
    world.delay("m", 10)
    world.delay("m", 10)
    world.manager.arrivals.turn()
    assert world.store.pending_count() == 1
    assert world.left("orders-timeouts") == 0


def announced(world: World, *names: str) -> None:
    """Messages that are stored, due and announced."""
    for name in names:
        world.delay(name, 1)
    world.manager.arrivals.turn()
    world.clock.advance(1)
    world.manager.announcer.turn()


def test_an_id_delivered_twice_is_a_message_sent_once(world: World) -> None:
    """The second id, in the same batch or later, finds nothing and is dropped."""
    announced(world, "m")
    again = OutgoingMessage('{"message_id": "m"}', {}, 20)
    world.put("orders-timeouts-dispatcher", again)
    world.manager.dispatch.turn()
    world.put("orders-timeouts-dispatcher", again)
    world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]
    assert world.left("orders-timeouts-dispatcher") == 0
    assert world.done[-1] == ("dropped", ["m"])


def test_a_due_message_is_announced_once(world: World) -> None:
    """Not again while its id waits, however long the queue is; nor by a look every five minutes."""
    announced(world, "m")
    for _ in range(11):
        world.clock.advance(300)
        assert world.manager.announcer.turn() == 0
    world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]


def test_an_announcement_that_is_never_seen_is_made_again(world: World) -> None:
    """The dispatcher queue was purged: after an hour the message goes on all the same."""
    announced(world, "m")
    world.arrived("orders-timeouts-dispatcher")
    world.clock.advance(3600)
    assert world.manager.announcer.turn() == 1
    world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]


def test_what_a_dead_process_announced_another_announces_once_more(world: World) -> None:
    """After five minutes, once; each process remembers for itself."""
    announced(world, "m")
    other = world.another()
    assert other.announcer.turn() == 0
    for told in (1, 0, 0):
        world.clock.advance(300)
        assert other.announcer.turn() == told
    assert world.left("orders-timeouts-dispatcher") == 2
    other.dispatch.turn()
    assert world.arrived_ids() == ["m"]


def test_an_id_of_a_clock_ahead_is_waited_for(world: World) -> None:
    """Managers' clocks differ by up to a second: not dropped, and then five minutes late."""
    world.delay("m", 3)
    world.manager.arrivals.turn()
    world.put("orders-timeouts-dispatcher", OutgoingMessage('{"message_id": "m"}', {}, 20))
    world.manager.dispatch.turn()
    assert world.arrived() == []
    world.clock.advance(3)
    world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]


def test_a_cancelled_message_is_dropped_when_its_id_comes(world: World) -> None:
    """Cancelling works until the message is sent."""
    announced(world, "m")
    assert world.store.cancel(["m"]) == [True]
    world.manager.dispatch.turn()
    assert world.arrived() == []
    assert world.done[-1] == ("dropped", ["m"])


def test_a_message_moved_after_its_announcement_waits_again(world: World) -> None:
    """The id is dropped, and a new one comes at the new due time."""
    announced(world, "m")
    world.store.reschedule("m", world.clock.true_ms + 60_000)
    world.manager.dispatch.turn()
    assert world.arrived() == []
    world.clock.advance(60)
    assert world.manager.announcer.turn() == 1
    world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]


def test_what_cannot_be_read_goes_to_the_error_queue(world: World) -> None:
    """No destination, a destination that is no queue, a foreign body in the dispatcher queue."""
    world.put("orders-timeouts", OutgoingMessage("x", {}, 1))
    world.delay("m", 10, to="no queue")
    world.put("orders-timeouts-dispatcher", OutgoingMessage("x", {}, 1))
    world.manager.arrivals.turn()
    world.manager.dispatch.turn()
    reasons = [
        json.loads(copy.attributes["sqsdelay.Error"]["StringValue"])["reason"]
        for copy in world.arrived("orders-delay-error")
    ]
    assert len(reasons) == 3
    assert "gives its destination" in reasons[0]
    assert "'no queue' is not a queue name" in reasons[1]
    assert "it was not sent by a timeout manager" in reasons[2]
    assert (world.left("orders-timeouts"), world.left("orders-timeouts-dispatcher")) == (0, 0)


def test_what_the_store_can_never_keep_goes_to_the_error_queue(world: World) -> None:
    """One message too large for the store stops none of its batch."""
    world.delay("a", 10)
    world.store.largest = 100
    world.delay("b", 10, body="x" * 101)
    world.delay("c", 10)
    world.manager.arrivals.turn()
    assert [m.message_id for m in world.store.pending(10)] == ["a", "c"]
    (rejected,) = world.arrived("orders-delay-error")
    assert "MessageTooLarge" in rejected.attributes["sqsdelay.Error"]["StringValue"]
    assert world.left("orders-timeouts") == 0


def test_what_its_destination_refuses_goes_to_the_error_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For ever refused: rejected with the reason and removed, on arrival and on dispatch."""
    refusal = Failure("Invalid", SendFailed("no", code="Invalid", transient=False), False)
    monkeypatch.setattr(world.transport, "send", lambda messages: [refusal] * len(messages))
    announced(world, "m")
    world.manager.dispatch.turn()
    world.delay("n", 0)
    world.manager.arrivals.turn()
    errors = [
        json.loads(c.attributes["sqsdelay.Error"]["StringValue"])
        for c in world.arrived("orders-delay-error")
    ]
    assert [(e["messageId"], e["reason"]) for e in errors] == [
        ("m", "Invalid: no"),
        ("n", "Invalid: no"),
    ]
    assert world.store.pending_count() == 0
    assert world.left("orders-timeouts") == 0


def test_a_destination_out_of_reach_is_waited_for(world: World) -> None:
    """Its message stays stored, and is tried again after 1, 2 and 4 s, until the queue is there."""
    announced(world, "m")
    world.queues.delete_queue("orders")
    for seconds in (1, 2, 4):
        assert world.manager.dispatch.turn() == 1
        assert world.manager.dispatch.turn() == 0
        assert world.left("orders-timeouts-dispatcher") == 0
        world.clock.advance(seconds)
    world.queues.create_queue("orders")
    world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]


def test_nothing_is_lost_while_the_store_is_down(world: World) -> None:
    """Arrivals and ids come back, and go their way once it is up."""
    world.delay("m", 60)
    world.store.down = {"store", "claim", "find", "cancel"}
    with pytest.raises(StoreUnavailable):
        world.manager.arrivals.turn()
    assert world.left("orders-timeouts") == 1
    world.clock.advance(2)
    world.store.down = set()
    world.manager.arrivals.turn()
    world.clock.advance(58)
    world.store.down = {"claim"}
    with pytest.raises(StoreUnavailable):
        world.manager.announcer.turn()
    world.store.down = set()
    world.manager.announcer.turn()
    world.store.down = {"find"}
    with pytest.raises(StoreUnavailable):
        world.manager.dispatch.turn()
    world.clock.advance(2)
    world.store.down = set()
    world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]


def test_sent_but_not_removed_is_not_sent_again(world: World) -> None:
    """The store went away right after the send: next time the message is only removed."""
    announced(world, "m")
    world.store.down = {"cancel"}
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            world.manager.dispatch.turn()
        world.clock.advance(2)
    world.store.down = set()
    world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]
    assert world.store.pending_count() == 0
    assert world.done[-1] == ("dispatched", ["m"])


def test_removal_waits_for_an_announcement_in_progress(world: World) -> None:
    """A message another manager holds at this moment is removed when it is free, not sent again."""
    announced(world, "m")
    world.clock.advance(300)
    with world.store.claim(1, due_by_ms=world.clock.true_ms):
        world.manager.dispatch.turn()
        assert world.store.pending_count() == 1
    world.clock.advance(2)
    world.manager.dispatch.turn()
    assert world.store.pending_count() == 0
    assert world.arrived_ids() == ["m"]


def test_a_message_that_another_removed_meanwhile_is_done_with(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody cancelled it right after its send: there is nothing to wait for."""
    announced(world, "m")
    cancel = world.store.cancel
    monkeypatch.setattr(world.store, "cancel", lambda ids: [not gone for gone in cancel(ids)])
    world.manager.dispatch.turn()
    assert world.left("orders-timeouts-dispatcher") == 0
    assert world.done[-1] == ("dispatched", ["m"])


def test_an_announcement_that_failed_is_made_at_the_next_turn(world: World) -> None:
    """Not only after the five minutes for which the message is held."""
    world.delay("m", 1)
    world.manager.arrivals.turn()
    world.clock.advance(1)
    world.queues.delete_queue("orders-timeouts-dispatcher")
    with pytest.raises(QueueUnavailable, match="not announced"):
        world.manager.announcer.turn()
    world.queues.create_queue("orders-timeouts-dispatcher")
    assert world.manager.announcer.turn() == 1
    world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]


@pytest.mark.parametrize("down", ["store", "claim", "find"])
def test_two_minutes_without_storage_are_a_critical_error(down: str) -> None:
    """Each task notices by itself, also while another one still gets through to the storage."""
    world = World()
    announced(world, "x")
    world.store.down = {down}
    turn = {
        "store": world.manager.arrivals.turn,
        "claim": world.manager.announcer.turn,
        "find": world.manager.dispatch.turn,
    }[down]
    world.delay("m", 600)
    for _ in range(60):
        with pytest.raises(StoreUnavailable):
            turn()
        world.clock.advance(2)
    with pytest.raises(
        CriticalError, match=r"timeout storage .* failing for 120 s \(limit 120 s\)"
    ):
        turn()
    assert world.left("orders-timeouts") == 1


def test_removing_may_fail_for_too_long_while_finding_works(world: World) -> None:
    """Read-only storage is an outage too: found every time, removed never."""
    announced(world, "m")
    world.store.down = {"cancel"}
    for _ in range(60):
        with pytest.raises(StoreUnavailable):
            world.manager.dispatch.turn()
        world.clock.advance(2)
    with pytest.raises(CriticalError, match=r"timeout storage \(removing\)"):
        world.manager.dispatch.turn()
    assert world.arrived_ids() == ["m"]


def test_an_empty_receive_says_nothing_of_the_storage(world: World) -> None:
    """While ids are hidden after a failure there is nothing to ask the storage for."""
    announced(world, "m")
    world.store.down = {"find"}
    for _ in range(60):
        with pytest.raises(StoreUnavailable):
            world.manager.dispatch.turn()
        world.clock.advance(1)
        assert world.manager.dispatch.turn() == 0
        world.clock.advance(1)
    with pytest.raises(CriticalError, match=r"timeout storage \(finding\)"):
        world.manager.dispatch.turn()


def test_a_success_in_between_is_no_lasting_outage(world: World) -> None:
    """Two minutes of failures on end are counted, not two minutes since the first."""
    world.store.down = {"claim"}
    with pytest.raises(StoreUnavailable):
        world.manager.announcer.turn()
    world.clock.advance(119)
    world.store.down = set()
    world.manager.announcer.turn()
    world.clock.advance(2)
    world.store.down = {"claim"}
    with pytest.raises(StoreUnavailable):
        world.manager.announcer.turn()


def test_one_may_go_on_after_a_critical_error() -> None:
    """With ``on_critical`` the manager tells, and keeps trying."""
    told: list[CriticalError] = []
    world = World(on_critical=told.append, outage_seconds=10)
    world.store.down = {"claim"}
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            world.manager.announcer.turn()
        world.clock.advance(10)
    assert len(told) == 2


def test_a_missing_queue_is_found_at_the_start(world: World) -> None:
    """Before anything is received."""
    world.queues.delete_queue("orders-timeouts-dispatcher")
    with pytest.raises(QueueMissing, match="orders-timeouts-dispatcher"):
        world.manager.run(threading.Event())


def test_a_task_that_fails_ends_the_others(world: World) -> None:
    """A critical error of one thread comes out of `run`; no thread goes on alone."""
    manager = world.another(outage_seconds=1)
    world.store.down = {"claim"}
    manager.start()
    with pytest.raises(StoreUnavailable):
        manager.announcer.turn()
    world.clock.advance(1)
    stop = threading.Event()
    with pytest.raises(CriticalError):
        manager.run(stop)
    assert stop.is_set()


def test_names_must_leave_room_for_the_suffix() -> None:
    """60 characters and the longer suffix are SQS's 80; one more is refused."""
    timeouts, dispatcher = timeout_queues(Endpoint.parse("a" * 60))
    assert len(dispatcher.name) == 80
    assert timeouts.name == "a" * 60 + "-timeouts"
    with pytest.raises(
        InvalidEndpoint, match="has 61 characters; with a timeout manager the limit is 60"
    ):
        timeout_queues(Endpoint.parse("a" * 61))


def test_a_fifo_endpoint_is_refused() -> None:
    """With what to do instead."""
    with pytest.raises(InvalidEndpoint, match=r"'orders\.fifo' is a FIFO queue"):
        timeout_queues(Endpoint.parse("orders.fifo"))


def test_a_fifo_destination_gets_its_message_by_way_of_its_due_queue(world: World) -> None:
    """FIFO queues take no message timers; the endpoint's own consumer sends it on from there."""
    world.queues.create_queue("bills.fifo")
    world.queues.create_queue("bills-due")
    world.delay("m", 10, to="bills.fifo", group="g")
    world.delay("n", 10, to="bills.fifo")
    world.manager.arrivals.turn()
    (rejected,) = world.arrived("orders-delay-error")
    assert (
        "sqsdelay.MessageGroupId is missing" in rejected.attributes["sqsdelay.Error"]["StringValue"]
    )
    world.clock.advance(10)
    world.manager.announcer.turn()
    world.manager.dispatch.turn()
    assert len(world.arrived("bills-due")) == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("outage_seconds", 0),
        ("announce_again_seconds", -1),
        ("batch_size", 0),
        ("poll_seconds", 0),
        ("wait_seconds", 21),
        ("number_of_retries", -1),
    ],
)
def test_a_setting_out_of_range_is_refused(setting: str, value: float) -> None:
    """Value, limit, remedy."""
    changed: dict[str, Any] = {setting: value}
    with pytest.raises(ConfigurationError, match=f"{setting}={value}; use"):
        TimeoutSettings(**changed)
