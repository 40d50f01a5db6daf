"""Discrete-event simulation of the relay: a delay queue, and what serves it.

Messages travel in cohorts of equal size, a multiple of a batch, so that a billion of them are a few
hundred things to simulate. Where a cohort is larger than what is in hand at once, all lanes work on it
together. What becomes of a cohort at a hop is decided by `sqsdelay.core.delay.decide` itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import simpy

from benchmarks.capacity.figures import DEPLOYED, FIFO_IN_FLIGHT
from sqsdelay.core.delay import HandOver, decide

Steps = Generator[simpy.Event, Any, None]

COHORTS: Final = 600
"""So many travel: one and a half seconds of a hop each."""


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """What serves the delay queue.

    Args:
        lanes: batches in hand at once.
        batch_seconds: one batch, from the receive to the delete, without waiting for a quota.
        shared_cpu_seconds: of a batch, on a processor that all lanes share; 0 where each has its own
            (it is then part of ``batch_seconds``).
        calls_per_second: the queue's quota for each action.
    """

    name: str
    lanes: int
    batch_seconds: float
    calls_per_second: float
    shared_cpu_seconds: float = 0.0


@dataclass(slots=True)
class Cohort:
    """Messages that travel together: when they were last sent, and when they are due, seconds."""

    sent: float
    due: float


@dataclass(frozen=True, kw_only=True)
class Relayed:
    """How a run went, in seconds and messages."""

    sent: int
    handed_over: int
    waiting: int
    late: list[float]
    throughput: float
    utilisation: dict[str, float]
    longest_stay: float

    def late_share(self, share: float) -> float:
        """Lateness of the message at ``share`` of all, the punctual first; 0 if none came due."""
        ordered = sorted(self.late)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class _Counts:
    receives: int = 0
    hand_overs: int = 0
    sends: int = 0
    cohorts: int = 0
    late: list[float] = field(default_factory=list)
    began: float = 0.0
    began_at_receive: int = 0
    began_at_send: int = 0
    longest_stay: float = 0.0


class _Paced:
    """A quota: so many seconds between one call and the next, in the order asked for."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._free_at = 0.0

    def turn(self, seconds: float) -> simpy.Event:
        """An event at the end of what takes so long."""
        self._free_at = max(self._free_at, self._env.now) + seconds
        return self._env.timeout(self._free_at - self._env.now)


class Simulation:
    """One delay queue.

    Args:
        consumer: who serves it.
        cohorts: what is on its way at the start.
        messages: of a cohort; rounded up to whole batches.
        renewed_delay: a handed-over cohort is replaced by one of up to this delay, so that the number
            of pending messages stays the same; nothing replaces it where None.
        seed: of the new delays.
    """

    def __init__(
        self,
        consumer: Consumer,
        cohorts: Sequence[Cohort],
        *,
        messages: int,
        renewed_delay: float | None = None,
        seed: int = 1,
    ) -> None:
        self._env = simpy.Environment()
        self._consumer = consumer
        self._batches = math.ceil(messages / DEPLOYED.batch)
        # No more can be in hand than may be in flight.
        self._lanes = min(consumer.lanes, int(FIFO_IN_FLIGHT.value) // DEPLOYED.batch)
        at_once = max(1, self._lanes // self._batches)
        self._service_seconds = consumer.batch_seconds * self._batches * at_once / self._lanes
        self._hands = simpy.Resource(self._env, at_once)
        self._receiving, self._sending, self._processor = (_Paced(self._env) for _ in range(3))
        self._renewed_delay = renewed_delay
        self._random = random.Random(seed)
        self._counts = _Counts(cohorts=len(cohorts))
        self._end = self._env.event()
        self._stop_after: int | None = None
        for cohort in cohorts:
            self._env.process(self._travel(cohort))

    def run_until_empty(self) -> Relayed:
        """Until all are handed over."""
        self._env.run(until=self._end)
        return self._result()

    def run_rounds(self, rounds: int) -> Relayed:
        """Until each cohort was received so often, on average; counted in the second half."""
        self._stop_after = rounds * self._counts.cohorts
        self._env.run(until=self._end)
        return self._result()

    def _travel(self, cohort: Cohort) -> Steps:
        """Hop after hop; a cohort that was sent before the start is on its way."""
        consumer, env = self._consumer, self._env
        call_seconds = self._batches / consumer.calls_per_second
        while True:
            yield env.timeout(max(0.0, cohort.sent + DEPLOYED.hop_seconds - env.now))
            yield self._receiving.turn(call_seconds)
            with self._hands.request() as taken:
                yield taken
                yield env.timeout(self._service_seconds)
            if consumer.shared_cpu_seconds:
                yield self._processor.turn(consumer.shared_cpu_seconds * self._batches)
            self._count_receive(cohort)
            next_due = self._due_after_hop(cohort)
            if next_due is None:
                return
            self._counts.sends += 1
            yield self._sending.turn(call_seconds)
            cohort.sent, cohort.due = env.now, next_due

    def _due_after_hop(self, cohort: Cohort) -> float | None:
        """Its own due time for another hop; when handed over its successor's, or None."""
        now = self._env.now
        decision = decide(
            round(cohort.due * 1000), round(now * 1000), hop_seconds=DEPLOYED.hop_seconds
        )
        if not isinstance(decision, HandOver):
            return cohort.due
        self._counts.hand_overs += 1
        self._counts.late.append(max(0.0, now + decision.delay_seconds - cohort.due))
        if self._renewed_delay is not None:
            return now + self._random.uniform(DEPLOYED.hop_seconds, self._renewed_delay)
        if self._counts.hand_overs == self._counts.cohorts:
            self._end.succeed()
        return None

    def _count_receive(self, cohort: Cohort) -> None:
        counts = self._counts
        counts.receives += 1
        counts.longest_stay = max(counts.longest_stay, self._env.now - cohort.sent)
        if self._stop_after is not None and counts.receives == self._stop_after // 2:
            counts.began, counts.began_at_receive = self._env.now, counts.receives
            counts.began_at_send = counts.sends
            counts.late.clear()
        if counts.receives == self._stop_after:
            self._end.succeed()

    def _result(self) -> Relayed:
        counts, consumer = self._counts, self._consumer
        messages = self._batches * DEPLOYED.batch
        seconds = self._env.now - counts.began
        received = (counts.receives - counts.began_at_receive) * self._batches / seconds
        sent = (counts.sends - counts.began_at_send) * self._batches / seconds
        renewed = 0 if self._renewed_delay is None else counts.hand_overs
        return Relayed(
            sent=(counts.cohorts + renewed) * messages,
            handed_over=counts.hand_overs * messages,
            waiting=(counts.cohorts + renewed - counts.hand_overs) * messages,
            late=list(counts.late),
            throughput=received * DEPLOYED.batch,
            utilisation={
                "batches in hand": received * consumer.batch_seconds / self._lanes,
                "processor": received * consumer.shared_cpu_seconds,
                "receive calls": received / consumer.calls_per_second,
                "send calls": sent / consumer.calls_per_second,
                "messages in flight": received
                * consumer.batch_seconds
                * DEPLOYED.batch
                / FIFO_IN_FLIGHT.value,
            },
            longest_stay=counts.longest_stay,
        )


def steady(consumer: Consumer, pending: int, *, cohorts: int = COHORTS, rounds: int = 4) -> Relayed:
    """``pending`` messages, sent at any time, delays of up to six hours, as many always on their way."""
    chance = random.Random(pending)
    hop = DEPLOYED.hop_seconds
    number = min(cohorts, max(1, pending // DEPLOYED.batch))
    return Simulation(
        consumer,
        [Cohort(hop * (i / number - 1), chance.uniform(hop, 24 * hop)) for i in range(number)],
        messages=math.ceil(pending / number),
        renewed_delay=24 * hop,
    ).run_rounds(rounds)


def due_in_a_minute(
    consumer: Consumer, due: int, *, together: bool, cohorts: int = COHORTS
) -> Relayed:
    """``due`` messages that are due within the same minute, and nothing else.

    Args:
        together: sent within one minute too, with a delay of one hop and a second: the worst there is,
            for the first hop is the last and leaves a second. (What waits at an earlier hop is spread
            by it over the next ones.) Otherwise sent at any time within a hop.
    """
    chance = random.Random(due)
    hop, number = DEPLOYED.hop_seconds, min(cohorts, max(1, due // DEPLOYED.batch))
    waiting = []
    for i in range(number):
        if together:
            sent = i * 60 / number
            waiting.append(Cohort(sent, sent + hop + 1))
        else:
            waiting.append(Cohort(i * hop / number, 4 * hop + chance.uniform(0, 60)))
    return Simulation(consumer, waiting, messages=math.ceil(due / number)).run_until_empty()


def drained(consumer: Consumer, messages: int) -> list[float]:
    """When each batch was through, of messages that all became visible at once."""
    hop, number = DEPLOYED.hop_seconds, messages // DEPLOYED.batch
    at_once = [Cohort(-hop, 0.0) for _ in range(number)]
    return sorted(Simulation(consumer, at_once, messages=DEPLOYED.batch).run_until_empty().late)
