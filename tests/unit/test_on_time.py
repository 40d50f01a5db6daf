"""The promise itself, for any delay and any weather: never early, late by less than a second and a hop."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DELAY_SECONDS
from sqsdelay.relaying import Relay, Status
from sqsdelay.sending.sender import QueueSender, Route
from sqsdelay.testing import InMemoryQueues, ManualClock

DELAY = "orders-delay.fifo"


@dataclass(frozen=True)
class Hop:
    """What happens to one hop: how late the copy is received, how often a worker dies with it."""

    receive_ms: int
    deaths: int
    work_ms: int

    @property
    def latency_ms(self) -> int:
        """All that the hop adds: each death costs a visibility timeout and another receive.

        Of a redelivered copy the broker's time may be known to the second only.
        """
        redelivery = 1000 if self.deaths else 0
        return (
            self.receive_ms * (1 + self.deaths) + self.deaths * 180_000 + self.work_ms + redelivery
        )


hops = st.builds(
    Hop,
    receive_ms=st.integers(0, 30_000),
    deaths=st.sampled_from([0, 0, 0, 1, 2]),
    work_ms=st.integers(0, 5_000),
)


@given(
    delay_ms=st.integers(0, 40 * 900_000),
    absolute=st.booleans(),
    weather=st.lists(hops, min_size=60, max_size=60),
    clock_error_ms=st.sampled_from([-600_000, -1, 0, 999, 600_000]),
)
def test_never_early_and_late_by_less_than_a_second_plus_the_last_hop(
    delay_ms: int, absolute: bool, weather: list[Hop], clock_error_ms: int
) -> None:
    """Latencies, redeliveries and a wrong clock do not add up: only the last hop's can show."""
    clock = ManualClock()
    queues = InMemoryQueues(clock, local=_Wrong(clock, clock_error_ms))
    queues.create_endpoint("orders")
    started = clock.true_ms
    due_ms = started + delay_ms
    if absolute:
        from sqsdelay.core.delay import utc

        result = QueueSender(queues).send("orders", "x", due_at=utc(due_ms))
    else:
        result = QueueSender(queues).send("orders", "x", delay=delay_ms / 1000)
    last = Hop(0, 0, 0)
    if result.route is Route.DELAY_QUEUE:
        last = _relay(queues, clock, iter(weather))
    (shown_ms,) = [m.visible_ms for m in queues._queues["orders"].messages.values()]
    assert shown_ms >= due_ms
    told_to_the_second = 1000 if absolute and result.route is Route.DIRECT else 0
    assert shown_ms - due_ms < 1000 + last.latency_ms + told_to_the_second


@pytest.mark.parametrize("days", [60, pytest.param(365, marks=pytest.mark.nightly)])
def test_hops_received_late(days: int) -> None:
    """96 a day, less those that the lateness of 0.4 s each saves; it does not add up to hours. A year by day
    is in tests/guides/test_testing_guide.py."""
    clock = ManualClock()
    queues = InMemoryQueues(clock)
    queues.create_endpoint("orders")
    due_ms = clock.true_ms + days * 86_400_000
    QueueSender(queues).send("orders", "x", delay=days * 86_400)
    relay, hops = Relay(queues, Endpoint.parse("orders")), 0
    status = Status.REQUEUED
    while status is Status.REQUEUED:
        clock.advance(900.4)
        (outcome,) = relay.process(queues.receive_batch(DELAY, wait_seconds=0))
        status, hops = outcome.status, hops + 1
    assert status is Status.HANDED_OVER
    assert 95.89 * days <= hops <= 96 * days
    (shown_ms,) = [m.visible_ms for m in queues._queues["orders"].messages.values()]
    assert 0 <= shown_ms - due_ms < 1400


class _Wrong(ManualClock):
    """The same passing of time, another wall time."""

    def __init__(self, clock: ManualClock, error_ms: int) -> None:
        self._clock = clock
        self.error_ms = error_ms

    @property
    def true_ms(self) -> int:  # type: ignore[override]
        return self._clock.true_ms


def _relay(queues: InMemoryQueues, clock: ManualClock, weather: object) -> Hop:
    relay = Relay(queues, Endpoint.parse("orders"))
    while True:
        hop = next(weather)  # type: ignore[call-overload]
        clock.advance(900)
        for _ in range(hop.deaths):
            clock.advance(hop.receive_ms / 1000)
            assert len(queues.receive_batch(DELAY, wait_seconds=0)) == 1
            clock.advance(180)
        clock.advance(hop.receive_ms / 1000)
        copies = queues.receive_batch(DELAY, wait_seconds=0)
        clock.advance(hop.work_ms / 1000)
        (outcome,) = relay.process(copies)
        if outcome.status is Status.HANDED_OVER:
            assert DELAY_SECONDS in copies[0].attributes
            return hop  # type: ignore[no-any-return]
        assert outcome.status is Status.REQUEUED
