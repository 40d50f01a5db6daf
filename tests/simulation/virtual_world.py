"""A scenario under virtual time: a sender, two workers and a function on one endpoint, and their faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import QueueUnavailable
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying.outcomes import Outcome, RelaySettings
from sqsdelay.relaying.relay import DueRelay, Relay
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.testing import InMemoryStore, ManualClock
from tests.simulation.journal import Journal
from tests.simulation.parcels import Parcel, parcels, send
from tests.simulation.tally import Arrival, Tally, tally
from tests.simulation.virtual_party import (
    Fate,
    Held,
    Killed,
    PartyClock,
    PartysQueues,
    Trouble,
    WatchedQueues,
)

HOUR_MS: Final = 3_600_000
LONGEST_DELAY_MS: Final = 5 * HOUR_MS
_GIVE_UP_MS: Final = 48 * HOUR_MS
"""After the last due time; backoff and outages are over long before."""
_AHEAD_MS: Final = MAX_MESSAGE_TIMER_SECONDS * 1000
_CLOCK_ERROR_MS: Final = 600_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What goes wrong in a scenario: chances per call of a consumer, and an event once or not at all.

    ``away_ms`` is while the destination does not exist, ``denied_ms`` while sends to the delay
    queue are denied, ``idle_ms`` while nobody consumes; from and to, after the start. Nothing is
    due within ``quiet_ms``. ``parked``: there is a store; what is due in more than an hour waits in it.
    """

    chances: Mapping[Trouble, float] = field(default_factory=dict)
    wrong_clocks: bool = False
    away_ms: tuple[int, int] | None = None
    denied_ms: tuple[int, int] | None = None
    idle_ms: tuple[int, int] | None = None
    quiet_ms: tuple[int, int] | None = None
    fifo: bool = False
    parked: bool = False


class Consumer:
    """A worker, or a function whose event source deletes for it. Started again when it dies."""

    def __init__(self, name: str, world: Run, *, deletes: bool) -> None:
        self._name = name
        self._world = world
        self._deletes = deletes
        self._starts = 0
        self.busy = False
        self._start()

    def _start(self) -> None:
        self._starts += 1
        self._party = f"{self._name}-{self._starts}"
        endpoint = self._world.endpoint
        self._queues = self._world.queues_of(self._party, mortal=True)
        store = self._world.store
        self._movers: list[Relay] = [
            Relay(self._queues, endpoint, RelaySettings(parking=parking(store)))
        ]
        if endpoint.fifo:
            self._movers.append(DueRelay(self._queues, endpoint))
        if self._deletes:
            self._world.journal.remembering.add(self._party)

    def poll(self) -> int:
        """Receive a batch of each queue and process it; tells how many copies it was."""
        self.busy = True
        try:
            return sum(self._poll(mover) for mover in self._movers)
        except QueueUnavailable:
            return 0
        except Killed:
            self._world.journal.died.add(self._party)
            self._start()
            return 0
        finally:
            self.busy = False

    def _poll(self, mover: Relay) -> int:
        url = self._queues.url(mover.source)
        copies = self._queues.receive_batch(url, wait_seconds=0)
        if copies:
            self._work_takes_time()
            outcomes = mover.process(copies, delete=self._deletes)
            if not self._deletes:
                self._delete_settled(url, outcomes)
        return len(copies)

    def _work_takes_time(self) -> None:
        self._world.clock.advance(self._world.random.randint(0, 400) / 1000)

    def _delete_settled(self, url: str, outcomes: list[Outcome]) -> None:
        """As Lambda does with what the function did not report as failed."""
        self._queues.delete_batch(url, [o.copy for o in outcomes if o.settled])


class Releaser:
    """A dispatcher: it sends what the store holds, ahead of its due time, with a message timer."""

    def __init__(self, name: str, world: Run, store: InMemoryStore) -> None:
        queues = world.queues_of(name, mortal=False)
        outbox = SqsOutbox(queues, world.endpoint, concurrency=1)
        self._dispatcher = Dispatcher(store, outbox, clock=queues.broker_clock.local)
        self.busy = False

    def poll(self) -> int:
        """Release a batch; tells how many messages it was."""
        self.busy = True
        try:
            return len(self._dispatcher.dispatch().released)
        finally:
            self.busy = False


def parking(store: InMemoryStore | None) -> ParkingSettings | None:
    """What makes a sender or a relay park."""
    return None if store is None else ParkingSettings(store, HOUR_MS // 1000)


class Run:
    """One run of a plan: the same seed gives the same run, to the last call."""

    def __init__(self, plan: Plan, *, seed: int, messages: int) -> None:
        self.random = Random(f"world {seed}")
        self.clock = ManualClock()
        self.journal = Journal()
        self._plan = plan
        self._seed = seed
        self._messages = messages
        self._started_ms = self.clock.true_ms
        self._queues = WatchedQueues(self.clock)
        self.endpoint = self._queues.create_endpoint("orders.fifo" if plan.fifo else "orders")
        self._denied: set[str] = set()
        self._arrivals: list[Arrival] = []
        self._consumers: list[Consumer | Releaser] = []
        self.store = InMemoryStore(self.clock) if plan.parked else None

    def queues_of(self, party: str, *, mortal: bool) -> PartysQueues:
        """A party's own way to the queues, with a clock of its own."""
        error_ms = self.random.choice((-_CLOCK_ERROR_MS, -1, 0, _CLOCK_ERROR_MS))
        if self._plan.parked and party == "sender":
            error_ms = -_CLOCK_ERROR_MS  # What it parks would be released that much too early.
        deadly = (Trouble.KILLED_BEFORE, Trouble.KILLED_AFTER)
        chances = self._plan.chances.items()
        return PartysQueues(
            queues=self._queues,
            party=party,
            clock=PartyClock(self.clock, error_ms=error_ms if self._plan.wrong_clocks else 0),
            fate=Fate(
                random=Random(f"{party} {self._seed}"),
                chances={t: chance for t, chance in chances if mortal or t not in deadly},
                pause=self._pause,
                denied=self._denied,
            ),
            journal=self.journal,
        )

    def tally(self) -> Tally:
        """Send, relay to the end, count."""
        own = self.queues_of("sender", mortal=False)
        sender = QueueSender(
            own, SenderSettings(concurrency=1, idempotent=True, parking=parking(self.store))
        )
        wanted = self._parcels()
        sent: list[Parcel] = []
        self._consumers = [
            Consumer("worker-a", self, deletes=True),
            Consumer("worker-b", self, deletes=True),
            Consumer("function", self, deletes=False),
        ]
        if self.store is not None:
            self._consumers.append(Releaser("dispatcher", self, self.store))
        for start in range(0, len(wanted), 50):
            sent += send(
                sender, self.endpoint.name, wanted[start : start + 50], lambda: self.clock.true_ms
            )
            self._pass_time(self.random.randint(0, 60))
        give_up_ms = self._started_ms + 2 * LONGEST_DELAY_MS + _GIVE_UP_MS
        while self._something_waits() and self.clock.true_ms < give_up_ms:
            self._pass_time(self._seconds_until_something_happens())
        self._collect()
        return tally(
            sent,
            self._arrivals,
            self._held_by(self.endpoint.error_queue.name),
            self.journal,
            destination=self.endpoint.name,
            delay_queue=self.endpoint.delay_queue.name,
        )

    def _parcels(self) -> list[Parcel]:
        now_ms, quiet = self._started_ms, self._plan.quiet_ms
        if quiet is None:
            group = "a-group" if self.endpoint.fifo else None
            whole = (0, LONGEST_DELAY_MS)
            return parcels(
                self._messages, whole, seed=self._seed, now_ms=now_ms, message_group_id=group
            )
        half = self._messages // 2
        early = parcels(half, (0, quiet[0]), seed=2 * self._seed, now_ms=now_ms)
        late = (quiet[1], LONGEST_DELAY_MS)
        return early + parcels(half, late, seed=2 * self._seed + 1, now_ms=now_ms)

    def _waiting(self) -> list[Held]:
        """What the consumers have still to move."""
        served: list[QueueRef] = [self.endpoint.delay_queue]
        if self.endpoint.fifo:
            served.append(self.endpoint.due_queue)
        return [held for queue in served for held in self._queues.held(queue.name)]

    def _something_waits(self) -> bool:
        return bool(self._waiting() or (self.store and self.store.pending_count()))

    def _seconds_until_something_happens(self) -> float:
        times = [held.visible_ms for held in self._waiting()]
        for parked in self.store.pending(1) if self.store else ():
            times.append(max(parked.due_ms - _AHEAD_MS, self.clock.true_ms + 1000))
        next_ms = min(times)
        if self._within(self._plan.idle_ms) and self._plan.idle_ms is not None:
            next_ms = max(next_ms, self._started_ms + self._plan.idle_ms[1])
        return max(0.2, (next_ms - self.clock.true_ms) / 1000) + self.random.random()

    def _pass_time(self, seconds: float) -> None:
        """Let time pass; the consumers that are not stopped poll until the delay queue has no more."""
        self.clock.advance(seconds)
        self._events()
        if self._within(self._plan.idle_ms):
            return
        idle: set[int] = set()
        awake = [c for c in self._consumers if not c.busy]
        while len(idle) < len(awake):
            consumer = self.random.choice(awake)
            if consumer.poll():
                idle.clear()
            else:
                idle.add(id(consumer))

    def _pause(self, seconds: float) -> None:
        """A party is stopped: time passes for the others, in steps."""
        for _ in range(4):
            self._pass_time(seconds / 4)

    def _events(self) -> None:
        if self._within(self._plan.away_ms):
            if self.endpoint.name in self._queues.names:
                self._collect()
                assert all(a.visible_ms <= self.clock.true_ms for a in self._arrivals)
                self._queues.delete_queue(self.endpoint.name)
        elif self.endpoint.name not in self._queues.names:
            self._queues.create_queue(self.endpoint.name)
        self._denied.clear()
        if self._within(self._plan.denied_ms):
            self._denied.add(self.endpoint.delay_queue.name)

    def _within(self, window_ms: tuple[int, int] | None) -> bool:
        passed_ms = self.clock.true_ms - self._started_ms
        return window_ms is not None and window_ms[0] <= passed_ms < window_ms[1]

    def _collect(self) -> None:
        """What the destination holds, its timers still running or not, is on its way to a receiver."""
        self._arrivals += self._held_by(self.endpoint.name)

    def _held_by(self, queue: str) -> list[Arrival]:
        return [
            Arrival(
                body=held.message.body,
                attributes=held.message.attributes,
                sqs_id=held.sqs_message_id,
                visible_ms=held.visible_ms,
            )
            for held in self._queues.held(queue)
        ]
