"""Moving messages from a timeout store to native delays, in memory and virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from sqsdelay.core.fifo import FifoIds, read_fifo_ids
from sqsdelay.core.message import Message, string
from sqsdelay.core.stored_message import Amendment, StoredMessage, to_store
from sqsdelay.errors import ConfigurationError, StoreUnavailable
from sqsdelay.operating.migration import Migration, MigrationStatus, Transfer
from sqsdelay.relaying.relay import Relay
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sending.settings import SenderSettings
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock
from tests.faulty import FaultyStore

HOUR_MS = 3_600_000


class World:
    """A timeout store with messages an hour apart, and an endpoint with native delays."""

    def __init__(self, count: int = 5) -> None:
        self.clock = ManualClock()
        self.queues = InMemoryQueues(self.clock)
        self.endpoint = self.queues.create_endpoint("orders")
        self.store = FaultyStore(self.clock)
        self.sender = QueueSender(self.queues, SenderSettings(idempotent=True))
        for number in range(count):
            self.add(f"m{number}", hours=number + 1)

    def add(self, message_id: str, *, hours: float, to: str = "orders", body: bytes = b"x") -> None:
        message = StoredMessage(
            message_id=message_id,
            destination=to,
            due_ms=self.clock.true_ms + round(hours * HOUR_MS),
            body=body,
            attributes={"kind": string("reminder")},
        )
        self.store.store([message])

    def migration(self, *, from_hours: float) -> Migration:
        due_from_ms = self.clock.true_ms + round(from_hours * HOUR_MS)
        return Migration(self.store, self.sender, due_from_ms=due_from_ms)

    def arrivals(self, hours: float) -> list[tuple[float, str]]:
        """Ids that arrive within so many hours, each with the hour it arrived."""
        relay, found = Relay(self.queues, self.endpoint), []
        start = self.clock.true_ms
        url = self.queues.url(self.endpoint.delay_queue)
        while (at := self.queues.next_visible_ms()) is not None and at <= start + hours * HOUR_MS:
            self.clock.advance((at - self.clock.true_ms) / 1000)
            while copies := self.queues.receive_batch(url, wait_seconds=0):
                relay.process(copies)
            copies = self.queues.receive_batch("orders", wait_seconds=0)
            self.queues.delete_batch("orders", copies)
            hour = (self.clock.true_ms - start) / HOUR_MS
            found += [(hour, c.attributes["sqsdelay.MessageId"]["StringValue"]) for c in copies]
        return found


def test_messages_move_and_arrive_on_time_once() -> None:
    """Due time, id and attributes as they were; the store is empty afterwards."""
    world = World()
    outcomes = list(world.migration(from_hours=0).run())
    assert [o.status for o in outcomes] == [MigrationStatus.MIGRATED] * 5
    assert world.store.pending_count() == 0
    assert world.arrivals(10) == [(1, "m0"), (2, "m1"), (3, "m2"), (4, "m3"), (5, "m4")]


def test_what_is_due_before_the_cut_off_stays() -> None:
    """It is left to whoever serves the store; exactly at the cut-off moves."""
    world = World()
    moved = [o.message.message_id for o in world.migration(from_hours=3).run()]
    assert moved == ["m2", "m3", "m4"]
    assert [m.message_id for m in world.store.pending(10)] == ["m0", "m1"]


def test_the_preview_counts_and_touches_nothing() -> None:
    """How many, how many stay, from when to when, and where to."""
    world = World()
    world.add("b", hours=9, to="billing")
    plan = world.migration(from_hours=2).plan()
    assert (plan.messages, plan.left) == (5, 1)
    assert plan.earliest_ms == world.clock.true_ms + 2 * HOUR_MS
    assert plan.latest_ms == world.clock.true_ms + 9 * HOUR_MS
    assert plan.destinations == {"orders": 4, "billing": 1}
    assert world.store.pending_count() == 6
    assert world.queues.next_visible_ms() is None


def test_a_repeat_after_a_crash_sends_nothing_twice_within_five_minutes() -> None:
    """Sent but not removed: the second run's copies are swallowed by the delay queue."""
    world = World()
    world.store.down = {"cancel"}
    with pytest.raises(StoreUnavailable):
        list(world.migration(from_hours=0).run())
    assert world.store.pending_count() == 5
    world.clock.advance(299)
    world.store.down = set()
    list(world.migration(from_hours=0).run())
    assert world.store.pending_count() == 0
    assert sorted(name for _, name in world.arrivals(10)) == ["m0", "m1", "m2", "m3", "m4"]


def test_a_repeat_later_is_the_documented_duplicate() -> None:
    """After the deduplication interval a second copy arrives, with the same message id."""
    world = World(count=1)
    world.store.down = {"cancel"}
    with pytest.raises(StoreUnavailable):
        list(world.migration(from_hours=0).run())
    world.clock.advance(301)
    world.store.down = set()
    list(world.migration(from_hours=0).run())
    assert [name for _, name in world.arrivals(10)] == ["m0", "m0"]


def test_one_that_cannot_be_sent_stays_and_holds_up_nobody() -> None:
    """A body that is no text, an id SQS does not take, a destination without a delay queue."""
    world = World(count=2)
    world.queues.create_queue("billing")
    world.add("binary", hours=1.5, body=b"\xff")
    world.add("\N{SNOWMAN}", hours=1.6)
    world.add("elsewhere", hours=1.7, to="billing")
    world.add("nowhere", hours=1.8, to="no queue")
    failed = {
        o.message.message_id: o.error or ""
        for o in world.migration(from_hours=0).run()
        if o.status is MigrationStatus.FAILED
    }
    assert "is not UTF-8" in failed["binary"]
    assert "is not valid" in failed["\N{SNOWMAN}"]
    assert "sqsdelay endpoint create billing" in failed["elsewhere"]
    assert "is not a queue name" in failed["nowhere"]
    assert {m.message_id for m in world.store.pending(10)} == set(failed)


def test_a_fifo_queues_ids_move_with_the_message() -> None:
    """Group and deduplication id reach the delay queue of the FIFO endpoint."""
    world = World(count=0)
    fifo = world.queues.create_endpoint("bills.fifo")
    message = Message(
        "x", delay=7200, message_id="m", message_group_id="g", message_deduplication_id="d"
    )
    world.store.store([to_store(message, "bills.fifo", now_ms=world.clock.true_ms)])
    (outcome,) = world.migration(from_hours=0).run()
    assert outcome.status is MigrationStatus.MIGRATED, outcome.error
    world.clock.advance(900)
    (copy,) = world.queues.receive_batch(fifo.delay_queue.name, wait_seconds=0)
    assert read_fifo_ids(copy) == FifoIds("g", "d")


def test_more_than_a_page_moves_without_a_gap() -> None:
    """Removing on the way does not shift the next page."""
    world = World(count=0)
    for number in range(2500):
        world.add(f"m{number:04}", hours=1 + number / 10_000)
    outcomes = [o.message.message_id for o in world.migration(from_hours=0).run()]
    assert outcomes == [f"m{number:04}" for number in range(2500)]
    assert world.store.pending_count() == 0


def test_one_released_at_the_same_moment_is_reported() -> None:
    """Without a cut-off a dispatcher may hold it: sent, not removed, and said so."""
    world = World(count=1)
    with world.store.claim(1, due_by_ms=world.clock.true_ms + HOUR_MS):
        (outcome,) = world.migration(from_hours=0).run()
    assert outcome.status is MigrationStatus.SENT_NOT_REMOVED
    assert "a later --due-from" in (outcome.error or "")


def test_another_message_of_that_id_in_the_target_stays_apart() -> None:
    """What has an id of the other store's stays where it is; neither message is removed for the other."""
    world, target = World(count=2), InMemoryStore(ManualClock())
    other = replace(world.store.pending(1)[0], body=b"y")
    target.store([other])
    done = {o.message.message_id: o for o in Transfer(world.store, target, due_from_ms=0).run()}
    assert done["m0"].status is MigrationStatus.FAILED
    assert "use a different id" in str(done["m0"].error)
    assert done["m1"].status is MigrationStatus.MIGRATED
    assert [message.body for message in world.store.pending(2)] == [b"x"]
    assert [message.body for message in target.pending(2)] == [b"y", b"x"]
    assert target.find("m0") == other


def test_a_run_that_was_cut_off_is_completed() -> None:
    """What an earlier run stored and did not remove is the same message, and no other of that id."""
    world, target = World(count=1), InMemoryStore(ManualClock())
    target.store(world.store.pending(1))
    (done,) = Transfer(world.store, target, due_from_ms=0).run()
    assert done.status is MigrationStatus.MIGRATED
    assert (world.store.pending_count(), target.pending_count()) == (0, 1)


@pytest.mark.parametrize(("found", "says"), [(True, "was not moved"), (False, "will arrive all")])
def test_what_the_first_store_has_in_hand_is_taken_back(found: bool, says: str) -> None:
    """The outcome says whether the target delivers it as well: not every store finds every id."""

    class Target(InMemoryStore):
        def cancel(self, message_ids: Sequence[str]) -> list[bool]:
            if not found:
                raise ConfigurationError("lookup=off")
            return super().cancel(message_ids)

    world, target = World(count=1), Target(ManualClock())
    migration = Transfer(world.store, target, due_from_ms=0)
    with world.store.claim(1, due_by_ms=world.clock.true_ms + HOUR_MS):
        (done,) = migration.run()
    assert done.status is MigrationStatus.SENT_NOT_REMOVED
    assert says in str(done.error)
    assert target.pending_count() == (0 if found else 1)


def test_an_older_amendment_does_not_undo_a_later_one() -> None:
    """A migration is repeated while the target is used: what was cancelled there stays cancelled."""

    class Amended(FaultyStore):
        def all_amendments(self) -> Iterator[Amendment]:
            yield Amendment(message_id="moved", at_ms=1_000, due_ms=9_000)
            yield Amendment(message_id="new", at_ms=clock.true_ms)

    clock = ManualClock()
    target = InMemoryStore(clock)
    cancelled = Amendment(message_id="moved", at_ms=clock.true_ms)
    target.amend([cancelled])
    assert list(Transfer(Amended(clock), target, due_from_ms=0).run()) == []
    assert target.amendments(["moved", "new"]) == {
        "moved": cancelled,
        "new": replace(cancelled, message_id="new"),
    }
