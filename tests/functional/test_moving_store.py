"""docs/stores.md, "Moving to another store", step by step: real workers, SQLite; all of AWS stands in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from sqsdelay.core.delay import utc
from sqsdelay.core.message import MESSAGE_ID
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, ParkingSettings, Schedule
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.relaying import Relay, RelaySettings
from sqsdelay.relaying.gathering import Parker
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.stores import SchedulerStore, SqliteStore
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.services.in_memory_scheduler import InMemoryScheduler

HOP: Final = 900
TICK: Final = 450
"""Seconds from one turn of the workers to the next."""

NEVER: Final = 999_999_999

DELAYS: Final = (8_000, 8_500, 150_000)
"""Seconds: hops only, or is parked; the middle one is released while the consumer still has the old store."""

CHANGES: Final = {"kept": None, "cancelled": None, "later": 20_000, "sooner": -4_000}
"""What becomes of a message's due time, seconds."""


class Move:
    """An endpoint between two stores. Three times, messages are sent; of all, some are changed then."""

    def __init__(self, folder: Path, old: str, new: str) -> None:
        self.clock = ManualClock()
        self.queues = InMemoryQueues(self.clock)
        self.endpoint = self.queues.create_endpoint("orders")
        self.queues.create_queue(self.endpoint.parking_queue.name)
        self.scheduler = InMemoryScheduler(self.clock, self.queues)
        self.outbox = SqsOutbox(self.queues, self.endpoint)
        self.dispatchers: list[Dispatcher] = []
        self.old, self.new = self.place(folder / f"old-{old}"), self.place(folder / f"new-{new}")
        self.senders_store, self.told = self.old, [self.old]
        self.consume_with((self.old, DEFAULT_PARK_AFTER_SECONDS))
        self.due: dict[str, int | None] = {}
        self.arrived: dict[str, int] = {}
        self.copies: Counter[str] = Counter()

    def place(self, path: Path) -> ParkingPlace:
        """A store; what releases from it runs all the time, from schedules with their consumer alone."""
        if path.name.endswith("schedules"):
            role = "arn:aws:iam::123456789012:role/orders"
            place: ParkingPlace = SchedulerStore(
                "g", role_arn=role, endpoint="orders", client=self.scheduler, clock=self.clock
            )
        else:
            place = store = SqliteStore(path, endpoint="orders", clock=self.clock)
            self.dispatchers.append(Dispatcher(store, self.outbox, clock=self.clock))
        place.set_up()
        return place

    def consume_with(self, *places: tuple[ParkingPlace, int]) -> None:
        settings = [RelaySettings(parking=ParkingSettings(*each)) for each in places]
        self.consumers = cycle([Relay(self.queues, self.endpoint, each) for each in settings])
        self.parkers = [
            Parker(self.queues, self.endpoint, each)
            for each, (place, _) in zip(settings, places, strict=True)
            if place.fires
        ]

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
            for store in self.told:
                schedule = Schedule(store, endpoint="orders")
                if new_ms is None:
                    schedule.cancel(name, now_ms=now_ms)
                else:
                    schedule.reschedule(name, new_ms, now_ms=now_ms)

    def run(self, seconds: int) -> None:
        """All workers take turns, for so long."""
        until_ms = self.clock.true_ms + seconds * 1000
        while self.clock.true_ms < until_ms:
            self.clock.advance(TICK)
            self.scheduler.fire()
            while copies := self._received(self.endpoint.delay_queue.name):
                next(self.consumers).process(copies)
            for parker in self.parkers:
                list(parker.rounds(more=lambda: True))
            for dispatcher in self.dispatchers:
                while dispatcher.dispatch().claimed:
                    pass
            while copies := self._received("orders"):
                for copy in copies:
                    name = copy.attributes[MESSAGE_ID]["StringValue"]
                    self.copies[name] += 1
                    self.arrived[name] = self.clock.true_ms
                self.queues.delete_batch("orders", copies)

    def parking(self) -> int:
        """How many messages the parking queue holds."""
        found = self.queues.attributes(self.endpoint.parking_queue.name)
        return sum(int(n) for name, n in found.items() if name.startswith("ApproximateNumber"))

    def _received(self, queue: str) -> Sequence[ReceivedMessage]:
        return self.queues.receive_batch(queue, wait_seconds=0)


@pytest.mark.parametrize(("old", "new"), [("db", "db"), ("db", "schedules"), ("schedules", "db")])
def test_nothing_is_lost_or_comes_twice_and_no_change_is_undone(
    tmp_path: Path, old: str, new: str
) -> None:
    """Of what is sent and changed before, during and after the move."""
    move = Move(tmp_path, old, new)
    move.send_and_change(0)
    # 1: changes go to both.
    move.told = [move.old, move.new]
    move.send_and_change(1)
    move.run(DEFAULT_PARK_AFTER_SECONDS)
    # 2: senders, and the delay consumer; that of schedules stays, and parks nothing.
    move.senders_store = move.new
    kept = [(move.old, NEVER)] if move.old.fires else []
    move.consume_with((move.new, DEFAULT_PARK_AFTER_SECONDS), *kept)
    move.send_and_change(2)
    while move.old.pending_count() or move.parking():
        move.run(HOP)
    # 3: what released from the old store stops.
    move.consume_with((move.new, DEFAULT_PARK_AFTER_SECONDS))
    if not move.old.fires:
        del move.dispatchers[0]
    while move.new.pending_count() or move.queues.next_visible_ms() is not None:
        move.run(HOP)
    due = {name: due_ms for name, due_ms in move.due.items() if due_ms is not None}
    assert move.copies == Counter(list(due))
    late = {name: move.arrived[name] - due_ms for name, due_ms in due.items()}
    assert min(late.values()) >= 0
    assert max(late.values()) <= TICK * 1000
