"""docs/stores.md, "Moving to another store", step by step: real stores and workers, SQS and time stand in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from sqsdelay.core.delay import utc
from sqsdelay.core.message import MESSAGE_ID
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, ParkingSettings, Schedule
from sqsdelay.relaying.mover import RelaySettings
from sqsdelay.relaying.relay import Relay
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.stores import SqliteStore
from sqsdelay.testing import InMemoryQueues, ManualClock

HOP: Final = 900
TICK: Final = 450
"""Seconds from one turn of the workers to the next."""

DELAYS: Final = (8_000, 86_400, 150_000)
"""Seconds: hops only, or is parked; the middle one is released while the consumer still has the old store."""

CHANGES: Final = {"kept": None, "cancelled": None, "later": 20_000, "sooner": -4_000}
"""What becomes of a message's due time, seconds."""


class Move:
    """An endpoint between two stores. Three times, messages are sent; of all, some are changed then."""

    def __init__(self, old: SqliteStore, new: SqliteStore, clock: ManualClock) -> None:
        self.clock, self.queues = clock, InMemoryQueues(clock)
        self.endpoint = self.queues.create_endpoint("orders")
        outbox = SqsOutbox(self.queues, self.endpoint)
        self.old, self.new = old, new
        self.dispatchers = {s: Dispatcher(s, outbox, clock=clock) for s in (old, new)}
        self.serving, self.senders_store, self.told = [old], old, [old]
        self.consume_with(old)
        self.due: dict[str, int | None] = {}
        self.arrived: dict[str, int] = {}
        self.copies: Counter[str] = Counter()

    def consume_with(self, store: SqliteStore) -> None:
        settings = RelaySettings(parking=ParkingSettings(store))
        self.consumer = Relay(self.queues, self.endpoint, settings)

    def send_and_change(self, phase: int) -> None:
        """Through the delay queue, and by a sender that parks; changed a hop later, as some sent before."""
        for way in ("delay-queue", "store"):
            parking = ParkingSettings(self.senders_store) if way == "store" else None
            sender = QueueSender(self.queues, SenderSettings(parking=parking))
            for delay in DELAYS:
                for at in range(phase, 3):
                    for change in CHANGES:
                        name = f"{way}/{delay}/{phase}/{at}/{change}"
                        self.due[name] = due_ms = self.clock.true_ms + delay * 1000
                        sender.send("orders", "x", due_at=utc(due_ms), message_id=name)
        self.run(HOP)
        now_ms = self.clock.true_ms
        for name, was_due_ms in self.due.items():
            *_, turn, change = name.split("/")
            if int(turn) != phase or change == "kept" or was_due_ms is None:
                continue
            if was_due_ms - now_ms < 2 * HOP * 1000:
                continue  # It is on its way to the destination, where nothing changes it.
            seconds = CHANGES[change]
            self.due[name] = new_ms = None if seconds is None else was_due_ms + seconds * 1000
            for schedule in map(Schedule, self.told):
                if new_ms is None:
                    schedule.cancel(name, now_ms=now_ms)
                else:
                    schedule.reschedule(name, new_ms, now_ms=now_ms)

    def run(self, seconds: int) -> None:
        """All workers take turns, for so long."""
        until_ms = self.clock.true_ms + seconds * 1000
        while self.clock.true_ms < until_ms:
            self.clock.advance(TICK)
            while copies := self._received(self.endpoint.delay_queue.name):
                self.consumer.process(copies)
            for store in self.serving:
                while self.dispatchers[store].dispatch().claimed:
                    pass
            while copies := self._received("orders"):
                for copy in copies:
                    name = copy.attributes[MESSAGE_ID]["StringValue"]
                    self.copies[name] += 1
                    self.arrived[name] = self.clock.true_ms
                self.queues.delete_batch("orders", copies)

    def _received(self, queue: str) -> Sequence[ReceivedMessage]:
        return self.queues.receive_batch(queue, wait_seconds=0)


def test_nothing_is_lost_or_comes_twice_and_no_change_is_undone(tmp_path: Path) -> None:
    """Of what is sent and changed before, during and after the move."""
    clock = ManualClock()
    with ExitStack() as stack:
        old, new = (
            stack.enter_context(
                closing(SqliteStore(tmp_path / f"{n}.db", endpoint="orders", clock=clock))
            )
            for n in ("old", "new")
        )
        for store in (old, new):
            store.set_up()
        move = Move(old, new, clock)
        move.send_and_change(0)
        # 1 and 2: a dispatcher; senders; changes go to both.
        move.serving, move.senders_store, move.told = [old, new], new, [old, new]
        move.send_and_change(1)
        move.run(DEFAULT_PARK_AFTER_SECONDS)
        # 3: the delay consumer.
        move.consume_with(new)
        move.send_and_change(2)
        while old.pending_count():
            move.run(HOP)
        # 4: the old dispatcher stops.
        move.serving = [new]
        while new.pending_count() or move.queues.next_visible_ms() is not None:
            move.run(HOP)
    due = {name: due_ms for name, due_ms in move.due.items() if due_ms is not None}
    assert move.copies == Counter(list(due))
    late = {name: move.arrived[name] - due_ms for name, due_ms in due.items()}
    assert min(late.values()) >= 0
    assert max(late.values()) <= TICK * 1000
