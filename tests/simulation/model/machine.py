"""The state machine: any order of sends, changes, hops, releases and faults that Hypothesis can find."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sqsdelay.core.delay import utc
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.testing import ManualClock
from tests.simulation.model.faults import Fault
from tests.simulation.model.world import WORKERS, World

WORKER = st.integers(0, WORKERS - 1)
EDGES = (0, 0.001, 1, 899.999, 900, 900.001, 901, 1000, 1001, 1800, 8100, 8101, 86_400)
SECONDS = st.one_of(
    st.sampled_from(EDGES),
    st.integers(900_000, 26_000_000).map(lambda ms: ms / 1000),
    st.integers(0, 200_000_000).map(lambda ms: ms / 1000),
)
PASSING = st.one_of(
    st.sampled_from((0.001, 1, 5, 61, 180, 181, 299, 300, 301, 900, 901, 3600)),
    st.floats(0.001, 200_000).map(lambda seconds: round(seconds, 3)),
)


class DeliveryMachine(RuleBasedStateMachine):
    """Drives a `World`; a subclass says over which store and to what kind of endpoint."""

    endpoint: ClassVar[str]
    world: World

    def make_store(self, clock: ManualClock) -> DelayedMessageStore:
        """A store on the clock."""
        raise NotImplementedError

    @initialize(
        park_after=st.sampled_from((0, 1000, 8100)),
        error_ms=st.sampled_from((0, 600_000, -600_000, 1)),
        start_ms=st.integers(0, 999),
    )
    def deploy(self, park_after: int, error_ms: int, start_ms: int) -> None:
        self.world = World(
            self.endpoint, self.make_store, park_after_seconds=park_after, error_ms=error_ms
        )
        self.world.clock.true_ms += start_ms
        self.count = 0

    @rule(
        seconds=SECONDS,
        absolute=st.booleans(),
        group=st.sampled_from((None, "a", "b")),
        body=st.sampled_from(("x", "ü€𐍈", "\t\r\n", '{"a": [1]}')),
        parks=st.booleans(),
    )
    def send(
        self, seconds: float, absolute: bool, group: str | None, body: str, parks: bool
    ) -> None:
        self.count += 1
        self.world.send(
            f"m-{self.count}",
            body,
            (group or "a") if self.world.endpoint.fifo else group,
            self.in_(seconds) if absolute else seconds,
            parks=parks,
        )

    @precondition(lambda self: self.unconfirmed())
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """As an application does whose send was not confirmed."""
        message_id = data.draw(st.sampled_from(self.unconfirmed()))
        promise = self.world.promises[message_id]
        due_at = utc(max(promise.dues))
        self.world.send(message_id, promise.body, promise.group_id, due_at, parks=promise.parks)

    def unconfirmed(self) -> list[str]:
        return [p.message_id for p in self.world.promises.values() if not (p.required or p.changed)]

    @precondition(lambda self: self.world.promises)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(self.one(data))

    @precondition(lambda self: self.world.promises)
    @rule(data=st.data(), seconds=SECONDS)
    def reschedule(self, data: st.DataObject, seconds: float) -> None:
        self.world.reschedule(self.one(data), self.in_(seconds))

    @precondition(lambda self: self.world.waiting_ids())
    @rule(data=st.data(), calls=st.integers(0, 6), seconds=st.none() | SECONDS, worker=WORKER)
    def somebody_changes_their_mind_meanwhile(
        self, data: st.DataObject, calls: int, seconds: float | None, worker: int
    ) -> None:
        """Cancel or move a message between two calls of whoever works on it."""
        message_id = data.draw(st.sampled_from(self.world.waiting_ids()))
        self.time_passes_until_something_happens()
        due_at = None if seconds is None else self.in_(seconds)
        for work in (self.world.relay, self.world.dispatch):
            self.world.meanwhile(message_id, due_at, after_calls=calls)
            work(worker)

    @rule(worker=WORKER, as_function=st.booleans())
    def relay(self, worker: int, as_function: bool) -> None:
        self.world.relay(worker, as_function=as_function)

    @rule(worker=WORKER)
    def dispatch(self, worker: int) -> None:
        self.world.dispatch(worker)

    @precondition(lambda self: self.world.endpoint.fifo)
    @rule(worker=WORKER)
    def due_relay(self, worker: int) -> None:
        self.world.due_relay(worker)

    @rule(fault=st.sampled_from(Fault))
    def something_breaks(self, fault: Fault) -> None:
        self.world.breaker.fault = fault

    @rule(fault=st.sampled_from(Fault), worker=WORKER, seconds=st.sampled_from((1, 181, 301)))
    def somebody_breaks_at_work(self, fault: Fault, worker: int, seconds: float) -> None:
        """As above, at the moment when there is something to do; then comes the other worker."""
        self.time_passes_until_something_happens()
        self.world.breaker.fault = fault
        for turn in (worker, WORKERS - 1 - worker):
            self.world.relay(turn)
            self.world.dispatch(turn)
            if self.world.endpoint.fifo:
                self.world.due_relay(turn)
            self.world.clock.advance(seconds)

    @rule()
    def the_store_goes_away_or_comes_back(self) -> None:
        self.world.store.away = not self.world.store.away

    @rule(error_ms=st.integers(-1_000_000, 1_000_000))
    def the_clock_jumps(self, error_ms: int) -> None:
        self.world.clock.error_ms = error_ms

    @rule(seconds=PASSING)
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule()
    def time_passes_until_something_happens(self) -> None:
        self.world.clock.advance(min(max(self.world.seconds_to_next(), 0.0), 43_200.0))

    @invariant()
    def no_promise_is_broken(self) -> None:
        assert not self.world.wrong, "; ".join(self.world.wrong)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.drain()
            self.world.judge_end()
            assert not self.world.wrong, "; ".join(self.world.wrong)
        finally:
            self.world.close()

    def one(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.world.promises)))

    def in_(self, seconds: float) -> datetime:
        return utc(self.world.clock.true_ms) + timedelta(seconds=seconds)
