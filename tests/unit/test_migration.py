"""Moving messages from a timeout store to native delays, in memory and virtual time."""

from __future__ import annotations

import random
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from sqsdelay.core.message import Message, string
from sqsdelay.core.readable import instant
from sqsdelay.core.received_message import FifoIds, read_fifo_ids
from sqsdelay.core.stored_message import Amendment, StoredMessage, to_store
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.errors import ConfigurationError, StoreUnavailable
from sqsdelay.operating.migration import Migration, MigrationStatus
from sqsdelay.ports.queues import Failure
from sqsdelay.relaying.relay import Relay
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.stores.s3.s3_store import S3Store
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing import InMemoryOutbox, InMemoryQueues, InMemoryStore, ManualClock
from tests.messages import a_message
from tests.services.in_memory_s3 import InMemoryS3

HOUR_MS = 3_600_000


MakeStore = Callable[[ManualClock], SqliteStore | PostgresStore]


class FaultySqlite(SqliteStore):
    """A store that may be unable to remove what was sent."""

    down = False

    def remove_taken(self, message_ids: Sequence[str]) -> list[bool]:
        if self.down:
            raise StoreUnavailable("down")
        return super().remove_taken(message_ids)


class World:
    """A timeout store with messages an hour apart, and an endpoint with native delays."""

    def __init__(self, count: int = 5) -> None:
        self.clock = ManualClock()
        self.queues = InMemoryQueues(self.clock)
        self.endpoint = self.queues.create_endpoint("orders")
        self.store = FaultySqlite(":memory:", endpoint="orders", clock=self.clock)
        self.store.set_up()
        weakref.finalize(self, self.store.close)  # Python 3.13 warns of a connection left open.
        self.sender = QueueSender(self.queues, SenderSettings(idempotent=True))
        for number in range(count):
            self.add(f"m{number}", hours=number + 1)

    def add(self, message_id: str, *, hours: float, to: str = "orders", body: bytes = b"x") -> None:
        message = a_message(
            message_id,
            self.clock.true_ms + round(hours * HOUR_MS),
            to=to,
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
    at = {hours: instant(world.clock.true_ms + hours * HOUR_MS) for hours in (2, 9)}
    plan = world.migration(from_hours=2).plan()
    assert (plan["would_migrate"], plan["left"]) == (5, 1)
    assert (plan["earliest"], plan["latest"]) == (at[2], at[9])
    assert plan["destinations"] == {"orders": 4, "billing": 1}
    assert world.store.pending_count() == 6
    assert world.queues.next_visible_ms() is None


@pytest.mark.parametrize(("seconds", "copies"), [(299, 1), (301, 2)])
def test_a_repeat_after_a_crash_within_five_minutes_and_later(seconds: int, copies: int) -> None:
    """Sent but not removed: the second run's copies are swallowed by the delay queue, until the deduplication
    interval is over; then each arrives twice, with the same message id, as documented."""
    world = World()
    world.store.down = True
    with pytest.raises(StoreUnavailable):
        list(world.migration(from_hours=0).run())
    assert world.store.pending_count() == 5
    world.clock.advance(seconds)
    world.store.down = False
    list(world.migration(from_hours=0).run())
    assert world.store.pending_count() == 0
    assert Counter(name for _, name in world.arrivals(10)) == {f"m{n}": copies for n in range(5)}


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
    ids: Any = {"message_id": "m", "message_group_id": "g", "message_deduplication_id": "d"}
    message = Message("x", delay=7200, **ids)
    world.store.store([to_store(message, "bills.fifo", now_ms=world.clock.true_ms)])
    (outcome,) = world.migration(from_hours=0).run()
    assert outcome.status is MigrationStatus.MIGRATED, outcome.error
    world.clock.advance(900)
    (copy,) = world.queues.receive_batch(fifo.delay_queue.name, wait_seconds=0)
    assert read_fifo_ids(copy) == FifoIds("g", "d")


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_many_move_without_a_gap_in_two_statements_a_hundred(count: int) -> None:
    """Removing on the way does not shift the next page."""
    world, statements = World(count=0), Counter[str]()
    for number in range(count):
        world.add(f"m{number:05}", hours=1 + number / 10_000)
    world.store._connection.set_trace_callback(lambda text: statements.update([text.split()[0]]))
    outcomes = [o.message.message_id for o in world.migration(from_hours=0).run()]
    world.store._connection.set_trace_callback(None)
    assert outcomes == [f"m{number:05}" for number in range(count)]
    # What an earlier run had taken is asked for once, and there is a page behind the last.
    assert statements["UPDATE"] + statements["DELETE"] == 2 * count / 100 + 2
    assert world.store.pending_count() == 0


def test_one_that_became_due_meanwhile_is_reported() -> None:
    """A run that is held up for more than a minute: a dispatcher has it, and it may arrive twice."""
    world = World(count=1)
    (taken,) = world.store.take(1, due_from_ms=0)
    world.clock.advance(3600)
    with world.store.claim(1, due_by_ms=world.clock.now_ms()) as claim:
        assert [m.message_id for m in claim.messages] == [taken.message_id]
        assert world.store.remove_taken([taken.message_id]) == [False]
        assert list(world.migration(from_hours=0).run()) == []


def test_what_was_taken_is_changed_by_nobody() -> None:
    """Whoever cancels or moves it hears that it is too late, also after the one who took it has died."""
    world = World(count=2)
    world.store.take(1, due_from_ms=0)
    world.clock.advance(600)
    assert world.store.cancel(["m0", "m1"]) == [False, True]
    assert world.store.reschedule("m0", world.clock.now_ms()) is False
    assert world.store.next_due_ms() is None
    assert [o.message.message_id for o in world.migration(from_hours=9).run()] == ["m0"]


def test_a_dispatcher_takes_over_what_became_due() -> None:
    """One that holds a message, as a timeout manager does with what it announces, can cancel it again."""
    world = World(count=1)
    world.store.take(1, due_from_ms=0)
    world.clock.advance(3600)
    with world.store.claim(1, due_by_ms=world.clock.now_ms()) as claim:
        assert claim.hold(["m0"], seconds=300) == [True]
    assert world.store.remove_taken(["m0"]) == [False]
    assert world.store.cancel(["m0"]) == [True]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_amendments_move_to_the_consumers_store(kind: str, request: pytest.FixtureRequest) -> None:
    """20,000 of them, and none over a later one there; again, and nothing changes."""
    world, moved = World(count=0), InMemoryStore(ManualClock())
    store: Any = world.store
    if kind == "postgres":
        url, table = request.getfixturevalue("postgres"), f"orders_{uuid.uuid4().hex[:12]}"
        store = PostgresStore(url, endpoint="orders", table=table, clock=world.clock)
        store.set_up()
    now_ms = world.clock.now_ms()
    amendments = [
        Amendment(message_id=f"a{n}", at_ms=now_ms - n, due_ms=None if n % 2 else now_ms + n)
        for n in range(20_000)
    ]
    store.amend(amendments)
    later = Amendment(message_id="a7", at_ms=now_ms, due_ms=now_ms + 5)
    moved.amend([later])
    for _ in range(2):
        migration = Migration(store, world.sender, amendments_to=moved)
        assert list(migration.run()) == []
    kept = moved.amendments([amendment.message_id for amendment in amendments])
    assert kept.pop("a7") == later
    assert kept == {a.message_id: a for a in amendments if a.message_id != "a7"}
    store.close()


def test_other_stores_are_refused() -> None:
    """With the way that is left."""
    world = World()
    store = S3Store("messages", endpoint="orders", client=cast(Any, InMemoryS3()))
    with pytest.raises(ConfigurationError, match="let this store release what it has"):
        Migration(store, world.sender, due_from_ms=0)


class Killed(BaseException):
    """The mover's process ends here."""


class Interrupted(InMemoryOutbox):
    """Others come in between the claim, the send and the removal."""

    def __init__(self, clock: ManualClock, others: Callable[[], None]) -> None:
        super().__init__(clock)
        self._others = others

    def send(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        self._others()
        sent = super().send(messages)
        self._others()
        return sent


class Party:
    """1,500 messages, a mover, two dispatchers and somebody who cancels and reschedules; whatever one of
    them does outside of the store, another may come in between."""

    def __init__(self, make_store: MakeStore, seed: int) -> None:
        self.clock = ManualClock()
        self.random = random.Random(seed)
        self.stores = [make_store(self.clock) for _ in range(4)]
        self.stores[0].set_up()
        self.queues = InMemoryQueues(self.clock)
        self.endpoint = self.queues.create_endpoint("orders")
        self.sender = QueueSender(self.queues, SenderSettings(idempotent=True))
        self.outbox = Interrupted(self.clock, self.others)
        given: Any = {"settings": DispatchSettings(batch_size=20), "clock": self.clock}
        self.dispatchers = [Dispatcher(each, self.outbox, **given) for each in self.stores[:2]]
        now_ms, names = self.clock.true_ms, [f"m{n:04}" for n in range(1500)]
        self.due = {name: now_ms + self.random.randrange(7_200_000) for name in names}
        self.stores[0].store([a_message(name, due_ms) for name, due_ms in self.due.items()])
        self.at_work: list[Dispatcher] = []
        self.sends = 0
        self.busy = 0

    def others(self) -> None:
        """Some of the others do something, each perhaps while another is at it."""
        if self.busy > 2:
            return
        self.busy += 1
        for _ in range(self.random.randrange(4)):
            self.random.choice([self.dispatch, self.change, self.change])()
        self.busy -= 1

    def dispatch(self) -> None:
        dispatcher = self.dispatchers[self.busy % 2]
        if dispatcher not in self.at_work:
            self.at_work.append(dispatcher)
            dispatcher.dispatch()
            self.at_work.remove(dispatcher)

    def change(self) -> None:
        name = self.random.choice(list(self.due))
        if self.random.random() < 0.5:
            if self.stores[2].cancel([name]) == [True]:
                del self.due[name]
        else:
            due_ms = self.clock.now_ms() + self.random.randrange(7_200_000)
            if self.stores[2].reschedule(name, due_ms):
                self.due[name] = due_ms

    def send_many(self, queue: str, messages: Sequence[Message]) -> Any:
        self.sends += 1
        if self.sends == 2:
            raise Killed
        self.others()
        sent = self.sender.send_many(queue, messages)
        self.others()
        self.clock.advance(0.5)
        if self.sends in (4, 6):
            raise Killed
        return sent

    def migrate(self) -> None:
        mover: Any = self
        cut_off = self.clock.now_ms() + 1_000_000  # Sooner ones would not enter the delay queue.
        with suppress(Killed):
            for outcome in Migration(self.stores[3], mover, due_from_ms=cut_off).run():
                assert outcome.status is MigrationStatus.MIGRATED, outcome
                self.others()

    def copies(self) -> list[tuple[str, int]]:
        """Id and due time of whatever arrives."""
        self.clock.advance(900)
        url = self.queues.url(self.endpoint.delay_queue)
        found = [(message.message_id, message.due_ms) for message in self.outbox.sent]
        while copies := self.queues.receive_batch(url, wait_seconds=0):
            for copy in copies:
                name = copy.attributes["sqsdelay.MessageId"]["StringValue"]
                due_ms = int(copy.attributes["sqsdelay.DueAt"]["StringValue"])
                found.append((name, due_ms))
            self.queues.delete_batch(url, copies)
        return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_beside_dispatchers_and_changes_killed_three_times(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing is lost, nothing arrives twice, and no change that was confirmed is undone."""
    url = f"sqlite:///{tmp_path}/store.db"
    if kind == "postgres":
        url = request.getfixturevalue("postgres")
    table = f"orders_{uuid.uuid4().hex[:12]}"

    def make(clock: ManualClock) -> SqliteStore | PostgresStore:
        if kind == "postgres":
            return PostgresStore(url, endpoint="orders", table=table, clock=clock)
        store = SqliteStore(tmp_path / "store.db", endpoint="orders", clock=clock)
        # Thousands of small transactions; what the disk has plays no part here.
        store._connection.execute("PRAGMA synchronous = OFF")
        return store

    party = Party(make, seed=7)
    for _ in range(4):
        party.migrate()
        party.others()
    assert party.sends > 10
    party.clock.advance(7_300)
    party.busy = 9  # Nobody comes in between any more.
    while party.dispatchers[0].dispatch().claimed:
        pass
    assert party.stores[0].pending_count() == 0
    assert sorted(party.copies()) == sorted(party.due.items())
    for store in party.stores:
        store.close()
