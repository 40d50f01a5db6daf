"""The timeout manager on queues and a store in memory, under virtual time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message, OutgoingMessage, string
from sqsdelay.errors import (
    CriticalError,
    InvalidDelay,
    InvalidEndpoint,
    InvalidMessage,
    QueueMissing,
    QueueUnavailable,
    SendFailed,
)
from sqsdelay.ports.queues import Failure
from sqsdelay.sqs.timeouts import timeout_queues
from sqsdelay.testing import InMemoryStore, ManualClock
from sqsdelay.timeouts import TimeoutSender
from tests.unit.timeout_site import DISPATCHER, ERRORS, World


@pytest.fixture
def world() -> World:
    return World()


def test_a_message_waits_in_the_store_and_arrives_when_due(world: World) -> None:
    """Timeouts queue, store, dispatcher queue, destination; nothing left behind anywhere."""
    world.delay("m", 3600)
    assert world.manager.store_arrivals() == 1
    assert world.store.pending_count() == 1
    world.clock.advance(3599.999)
    assert world.manager.announce() == 0
    world.clock.advance(1)  # an idle manager knows the broker's clock to the second
    assert world.manager.announce() == 1
    assert world.manager.dispatch() == 1
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
    world.manager.store_arrivals()
    assert world.arrived_ids() == ["past", "now"]
    assert world.store.pending_count() == 1
    assert world.left("orders-timeouts") == 0


def test_the_destination_is_the_messages_own(world: World) -> None:
    """A timeout manager serves whoever sends to it; the header says where to. Delivered to it twice, a
    message is stored once."""
    world.delay("m", 10, to="billing")
    world.delay("m", 10, to="billing")
    world.manager.store_arrivals()
    assert (world.left("orders-timeouts"), world.store.pending_count()) == (0, 1)
    world.clock.advance(10)
    world.manager.announce()
    world.manager.dispatch()
    assert world.arrived_ids("billing") == ["m"]
    assert world.arrived() == []


def announced(world: World, *names: str) -> None:
    """Messages that are stored, due and announced."""
    for name in names:
        world.delay(name, 1)
    world.manager.store_arrivals()
    world.clock.advance(1)
    world.manager.announce()


def test_an_id_delivered_twice_is_a_message_sent_once(world: World) -> None:
    """The second id, in the same batch or later, finds nothing and is dropped."""
    announced(world, "m")
    again = OutgoingMessage('{"message_id": "m"}', {}, 20)
    world.put("orders-timeouts-dispatcher", again)
    world.manager.dispatch()
    world.put("orders-timeouts-dispatcher", again)
    world.manager.dispatch()
    assert world.arrived_ids() == ["m"]
    assert world.left("orders-timeouts-dispatcher") == 0
    assert world.done[-1] == ("dropped", ["m"])


def test_a_due_message_is_announced_once(world: World) -> None:
    """Not again while its id waits. Where that takes too long the message goes without it, once."""
    announced(world, "m")
    world.clock.advance(299)
    assert world.manager.announce() == 0
    world.clock.advance(1)
    assert world.manager.announce() == 1
    assert world.arrived_ids() == ["m"]
    assert (world.queues.sends[DISPATCHER], world.done[-1]) == (1, ("dispatched", ["m"]))
    world.manager.dispatch()
    assert (world.left(DISPATCHER), world.done[-1]) == (0, ("dropped", ["m"]))
    assert world.arrived() == []


def test_what_a_dead_process_or_a_purged_queue_took_along_arrives(world: World) -> None:
    """After five minutes, from the store; whoever looks there has nothing to remember."""
    announced(world, "m")
    world.arrived(DISPATCHER)
    other = world.another()
    assert other.announce() == 0
    world.clock.advance(300)
    assert other.announce() == 1
    assert (world.arrived_ids(), world.queues.sends[DISPATCHER]) == (["m"], 1)


def test_an_id_of_a_clock_ahead_is_waited_for(world: World) -> None:
    """Managers' clocks differ by up to a second: not dropped, and then five minutes late."""
    world.delay("m", 3)
    world.manager.store_arrivals()
    world.put("orders-timeouts-dispatcher", OutgoingMessage('{"message_id": "m"}', {}, 20))
    world.manager.dispatch()
    assert world.arrived() == []
    world.clock.advance(3)
    world.manager.dispatch()
    assert world.arrived_ids() == ["m"]


def test_a_cancelled_message_is_dropped_when_its_id_comes(world: World) -> None:
    """Cancelling works until the message is sent."""
    announced(world, "m")
    assert world.store.cancel(["m"]) == [True]
    world.manager.dispatch()
    assert world.arrived() == []
    assert world.done[-1] == ("dropped", ["m"])


def test_a_message_moved_after_its_announcement_waits_again(world: World) -> None:
    """The id is dropped, and a new one comes at the new due time."""
    announced(world, "m")
    world.store.reschedule("m", world.clock.true_ms + 60_000)
    world.manager.dispatch()
    assert world.arrived() == []
    world.clock.advance(60)
    assert world.manager.announce() == 1
    world.manager.dispatch()
    assert world.arrived_ids() == ["m"]


def test_what_cannot_be_read_goes_to_the_error_queue(world: World) -> None:
    """No destination, a destination that is no queue, a foreign body in the dispatcher queue."""
    world.put("orders-timeouts", OutgoingMessage("x", {}, 1))
    world.delay("m", 10, to="no queue")
    world.put("orders-timeouts-dispatcher", OutgoingMessage("x", {}, 1))
    world.manager.store_arrivals()
    world.manager.dispatch()
    reasons = [
        json.loads(copy.attributes["sqsdelay.Error"]["StringValue"])["reason"]
        for copy in world.arrived("orders-delay-error")
    ]
    assert len(reasons) == 3
    assert "gives its destination" in reasons[0]
    assert "'no queue' is not a queue name" in reasons[1]
    assert "it was not sent by a timeout manager" in reasons[2]
    assert (world.left("orders-timeouts"), world.left("orders-timeouts-dispatcher")) == (0, 0)


def test_10000_that_cannot_be_read_are_worked_off_in_batches(world: World) -> None:
    """Each goes to the error queue; deleting them takes no request of its own for each."""
    url = world.queues.url(Endpoint.parse(DISPATCHER).queue)
    for start in range(0, 10_000, 10):
        bodies = [OutgoingMessage(f"no id {start + n}", {}, 8) for n in range(10)]
        world.queues.send_batch(url, bodies)
    turns = 0
    while world.left(DISPATCHER):
        world.manager.dispatch()
        turns += 1
    assert world.left(ERRORS) == 10_000
    assert turns <= 30
    assert world.queues.calls.count("delete") <= 1_100


def test_what_the_store_can_never_keep_goes_to_the_error_queue(world: World) -> None:
    """One message too large for the store stops none of its batch."""
    world.delay("a", 10)
    world.store.largest = 100
    world.delay("b", 10, body="x" * 101)
    world.delay("c", 10)
    world.manager.store_arrivals()
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
    world.manager.dispatch()
    world.delay("n", 0)
    world.manager.store_arrivals()
    errors = [
        json.loads(c.attributes["sqsdelay.Error"]["StringValue"])
        for c in world.arrived("orders-delay-error")
    ]
    assert [(e["messageId"], e["reason"]) for e in errors] == [(m, "Invalid: no") for m in "mn"]
    assert world.store.pending_count() == 0
    assert world.left("orders-timeouts") == 0


def test_a_destination_out_of_reach_is_waited_for(world: World) -> None:
    """Its message stays stored, and is tried again after 1, 2 and 4 s, until the queue is there."""
    announced(world, "m")
    world.queues.delete_queue("orders")
    world.manager.dispatch()
    for seconds in (1, 2, 4):
        assert world.manager.announce() == 0
        world.clock.advance(seconds)
        assert world.manager.announce() == 1
        assert world.left(DISPATCHER) == 0
    world.queues.create_queue("orders")
    world.clock.advance(8)
    world.manager.announce()
    assert world.arrived_ids() == ["m"]


def test_nothing_is_lost_while_the_store_is_down(world: World) -> None:
    """Arrivals and ids come back, and go their way once it is up."""
    world.delay("m", 60)
    world.fails(world.manager.store_arrivals, "store", "claim", "claim_ids", "remove")
    assert world.left("orders-timeouts") == 1
    world.clock.advance(2)
    world.manager.store_arrivals()
    world.clock.advance(58)
    world.fails(world.manager.announce, "claim")
    world.manager.announce()
    world.fails(world.manager.dispatch, "claim_ids")
    world.clock.advance(2)
    world.manager.dispatch()
    assert world.arrived_ids() == ["m"]


def test_sent_but_not_removed_is_not_sent_again(world: World) -> None:
    """The store went away right after the send: next time the message is only removed."""
    announced(world, "m")
    for _ in range(2):
        world.fails(world.manager.dispatch, "remove")
        world.clock.advance(2)
    world.manager.dispatch()
    assert world.arrived_ids() == ["m"]
    assert world.store.pending_count() == 0
    assert world.done[-1] == ("dispatched", ["m"])


def test_what_another_has_just_now_is_waited_for(world: World) -> None:
    """A second process got the same id, or dispatches from the store: one of them sends, whoever lets go."""
    announced(world, "m", "n")
    with world.store.claim_ids(["m", "n"]) as claim:
        world.manager.dispatch()
        claim.remove(["m"])
    assert (world.arrived(), world.left(DISPATCHER)) == ([], 2)
    world.clock.advance(1)
    world.manager.dispatch()
    assert (world.arrived_ids(), world.left(DISPATCHER)) == (["n"], 0)


@pytest.mark.parametrize("raises", [False, True])
def test_an_announcement_that_failed_is_made_at_the_next_turn(world: World, raises: bool) -> None:
    """Not only after the five minutes of its hold, and also where the transport raises."""
    world.delay("m", 1)
    world.manager.store_arrivals()
    world.clock.advance(1)
    with pytest.MonkeyPatch.context() as patch:
        if raises:
            patch.setattr(world.transport, "announce", Mock(side_effect=QueueUnavailable("away")))
        world.queues.delete_queue("orders-timeouts-dispatcher")
        with pytest.raises(QueueUnavailable, match="away" if raises else "not announced"):
            world.manager.announce()
    world.queues.create_queue("orders-timeouts-dispatcher")
    assert world.manager.announce() == 1
    world.manager.dispatch()
    assert world.arrived_ids() == ["m"]


def test_a_store_that_fails_on_others_delays_no_announcement(world: World) -> None:
    """A new message is held when those dispatched straight from the store have been settled."""
    announced(world, "again")
    world.delay("new", 300)
    world.manager.store_arrivals()
    world.clock.advance(300)
    world.fails(world.manager.announce, "remove")
    world.clock.advance(60)
    world.manager.announce()
    world.manager.dispatch()
    assert world.arrived_ids() == ["again", "new"]


@pytest.mark.parametrize(
    ("down", "task", "use"),
    [
        ("store", "store_arrivals", "storing"),
        ("claim", "announce", "fetching"),
        ("claim_ids", "dispatch", "finding"),
        ("remove", "dispatch", "removing"),
    ],
)
def test_two_minutes_without_storage_are_a_critical_error(down: str, task: str, use: str) -> None:
    """Each use is noticed by itself, also while others work: read-only storage finds, but never removes."""
    world = World()
    announced(world, "x")
    turn = getattr(world.manager, task)
    world.delay("m", 600)
    for _ in range(60):
        world.fails(turn, down)
        world.clock.advance(2)
    world.store.down = {down}
    words = rf"timeout storage \({use}\) .*for 120 s \(limit 120 s\)"
    with pytest.raises(CriticalError, match=words):
        turn()
    assert world.left("orders-timeouts") == 1
    assert world.arrived_ids() == (["x"] if down == "remove" else [])


def test_an_empty_receive_says_nothing_of_the_storage(world: World) -> None:
    """While ids are hidden after a failure there is nothing to ask the storage for."""
    announced(world, "m")
    for _ in range(60):
        world.fails(world.manager.dispatch, "claim_ids")
        world.clock.advance(1)
        assert world.manager.dispatch() == 0
        world.clock.advance(1)
    world.store.down = {"claim_ids"}
    with pytest.raises(CriticalError, match=r"timeout storage \(finding\)"):
        world.manager.dispatch()


def test_a_success_in_between_is_no_lasting_outage(world: World) -> None:
    """Two minutes of failures on end are counted, not two minutes since the first."""
    world.fails(world.manager.announce, "claim")
    world.clock.advance(119)
    world.manager.announce()
    world.clock.advance(2)
    world.fails(world.manager.announce, "claim")


def test_one_may_go_on_after_a_critical_error() -> None:
    """With ``on_critical`` the manager tells, and keeps trying."""
    told: list[CriticalError] = []
    world = World(on_critical=told.append, outage_seconds=10)
    for _ in range(3):
        world.fails(world.manager.announce, "claim")
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
    manager.start()
    world.fails(manager.announce, "claim")
    world.store.down = {"claim"}
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
    with pytest.raises(InvalidEndpoint, match=r"has 61 .* with a timeout manager the limit is 60"):
        timeout_queues(Endpoint.parse("a" * 61))
    with pytest.raises(InvalidEndpoint, match=r"'orders\.fifo' is a FIFO queue"):
        timeout_queues(Endpoint.parse("orders.fifo"))


def test_a_fifo_destination_gets_its_message_by_way_of_its_due_queue(world: World) -> None:
    """FIFO queues take no message timers; the endpoint's own consumer sends it on from there."""
    world.queues.create_queue("bills.fifo")
    world.queues.create_queue("bills-due")
    world.delay("m", 10, to="bills.fifo", group="g")
    world.delay("n", 10, to="bills.fifo")
    world.manager.store_arrivals()
    (rejected,) = world.arrived("orders-delay-error")
    assert (
        "sqsdelay.MessageGroupId is missing" in rejected.attributes["sqsdelay.Error"]["StringValue"]
    )
    world.clock.advance(10)
    world.manager.announce()
    world.manager.dispatch()
    assert len(world.arrived("bills-due")) == 1


class Plain:
    """A store that cannot claim by ids."""

    def __init__(self, clock: ManualClock) -> None:
        self._store = InMemoryStore(clock)

    def __getattr__(self, name: str) -> Any:
        if name == "claim_ids":
            raise AttributeError(name)
        return getattr(self._store, name)

    @contextmanager
    def claim(self, limit: int, **given: Any) -> Iterator[Any]:
        with self._store.claim(limit, **given) as claim:
            del claim.again  # type: ignore[attr-defined]
            yield claim


def test_a_store_that_cannot_claim_by_ids_serves_too() -> None:
    """DynamoDB and S3: dispatched straight from the store; what fails is counted there and tried again. An id
    that somebody else announced is dropped."""
    world = World(store=Plain)
    for name in ("m", "n"):
        world.delay(name, 60)
    world.manager.store_arrivals()
    assert world.store.cancel(["n"]) == [True]
    world.queues.delete_queue("orders")
    world.clock.advance(60)
    world.manager.announce()
    assert (world.left(DISPATCHER), [m.failures for m in world.store.pending(9)]) == (0, [1])
    world.transport.announce(["m"])
    world.manager.dispatch()
    assert (world.left(DISPATCHER), world.store.pending_count()) == (0, 1)
    world.queues.create_queue("orders")
    world.clock.advance(1)
    world.manager.announce()
    assert (world.arrived_ids(), world.store.pending_count()) == (["m"], 0)


def test_a_sender_needs_no_hand_built_calls(world: World) -> None:
    """What it sends waits, and arrives as from a `DelaySender`; what fails says why, and fails alone."""
    sender = TimeoutSender(world.transport)
    sent = sender.send("billing", "hi", delay=60, attributes={"kind": "reminder"})
    assert sent.due is not None
    assert sent.due.timestamp() * 1000 == world.clock.true_ms + 60_000
    results = sender.send_many(
        "orders", [Message("a", message_id="a"), Message("b", delay=-1), Message("c", delay=5)]
    )
    assert [type(result.error) for result in results] == [type(None), InvalidDelay, type(None)]
    world.run(1)
    assert world.arrived_ids() == ["a"]
    world.run(61)
    (copy,) = world.arrived("billing")
    assert copy.attributes["kind"] == string("reminder")
    assert copy.attributes["sqsdelay.MessageId"]["StringValue"] == sent.message_id
    assert "sqsdelay.DueAt" not in copy.attributes
    assert world.arrived_ids() == [results[2].message_id]
    with pytest.raises(QueueMissing, match="nowhere"):
        sender.send("nowhere", "x", delay=60)
    with pytest.raises(InvalidMessage, match="10"):
        sender.send("orders", "x", attributes={str(n): "x" for n in range(9)})


def test_a_sender_keeps_what_a_fifo_destination_needs(world: World) -> None:
    """Group and deduplication id."""
    for name in ("bills.fifo", "bills-due"):
        world.queues.create_queue(name)
    ids: dict[str, Any] = {"message_group_id": "g", "message_deduplication_id": "d"}
    TimeoutSender(world.transport).send("bills.fifo", "x", delay=5, **ids)
    world.run(7)
    (copy,) = world.arrived("bills-due")
    assert copy.attributes["sqsdelay.MessageDeduplicationId"]["StringValue"] == "d"
    assert copy.attributes["sqsdelay.MessageGroupId"]["StringValue"] == "g"
