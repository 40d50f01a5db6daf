"""Discrete-event simulation of parked messages: a store, and the dispatcher that empties it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from benchmarks.capacity.figures import DEPLOYED

Steps = Generator[simpy.Event, Any, None]
_PARTS_OF_A_RUN = 50
"""A run with more claims than this is simulated in so many parts."""


@dataclass(frozen=True, kw_only=True)
class Dispatcher:
    """What empties the store.

    Args:
        claim: messages claimed at once.
        parts: what finding, claiming, sending and removing them takes, seconds, by what is waited for.
        every_seconds: how often it is started; None where it always runs.
        run_seconds: how long a run begins claims.
        releases_per_second: what the store's quotas allow.
    """

    name: str
    claim: int
    parts: Mapping[str, float]
    every_seconds: float | None = None
    run_seconds: float = math.inf
    releases_per_second: float = math.inf

    @property
    def throughput(self) -> float:
        """Releases a second with a backlog, over many runs."""
        if self.every_seconds is None:
            return 1 / self.message_seconds
        claims = math.ceil(self.run_seconds / (self.message_seconds * self.claim))
        return claims * self.claim / self.every_seconds

    @property
    def saturates(self) -> str:
        """What most of a claim's time goes to."""
        if 1 / self.releases_per_second > sum(self.parts.values()) / self.claim:
            return "the store's quotas"
        return max(self.parts, key=self.parts.__getitem__)

    @property
    def message_seconds(self) -> float:
        """What one message of a full claim takes."""
        return max(sum(self.parts.values()) / self.claim, 1 / self.releases_per_second)


@dataclass(frozen=True, kw_only=True)
class Emptied:
    """How a run went, in seconds and messages; ``late`` per cohort, which are equally large."""

    parked: int
    released: int
    waiting: int
    overdue: int
    late: list[float]

    def late_share(self, share: float) -> float:
        """Lateness of the message at ``share`` of all, the punctual first; 0 if none came due."""
        ordered = sorted(self.late)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Simulation:
    """One store with messages of these due times (sorted, seconds), each standing for ``messages``."""

    def __init__(self, dispatcher: Dispatcher, due: Sequence[float], *, messages: int) -> None:
        self._env = simpy.Environment()
        self._dispatcher = dispatcher
        self._due = deque(due)
        self._messages = messages
        self._cohorts = len(due)
        self._late: list[float] = []

    def run(self, until: float) -> Emptied:
        """Dispatch until then, or until the store is empty."""
        ended = self._env.process(self._dispatch())
        self._env.run(until=self._env.any_of([ended, self._env.timeout(until)]))
        return Emptied(
            parked=self._cohorts * self._messages,
            released=len(self._late) * self._messages,
            waiting=len(self._due) * self._messages,
            overdue=sum(due <= self._env.now for due in self._due) * self._messages,
            late=list(self._late),
        )

    def _dispatch(self) -> Steps:
        every = self._dispatcher.every_seconds
        while self._due:
            if every is None:
                yield from self._run(math.inf)
                if self._due:
                    # Sleeps until the next is in reach, as a worker does.
                    soon = self._due[0] - DEPLOYED.ahead_seconds - self._env.now
                    yield self._env.timeout(max(0.0, soon))
            else:
                started = self._env.now
                yield from self._run(started + self._dispatcher.run_seconds)
                rest = math.fmod(self._env.now - started, every)
                yield self._env.timeout(every - rest)

    def _run(self, no_claim_after: float) -> Steps:
        """Release what is in reach, cohort by cohort, until time is up."""
        seconds = self._dispatcher.message_seconds * self._messages
        while self._due and self._env.now < no_claim_after:
            if self._due[0] > self._env.now + DEPLOYED.ahead_seconds:
                return
            yield self._env.timeout(seconds)
            due = self._due.popleft()
            timer = max(0, math.ceil(due - self._env.now))
            self._late.append(max(0.0, self._env.now + timer - due))


def due_in_a_minute(
    dispatcher: Dispatcher, due: int, *, cohorts: int = 2000, seconds: float = 60.0
) -> Emptied:
    """``due`` messages due within one minute (or so many seconds), an hour ahead, and nothing else."""
    number = _cohorts(dispatcher, due, seconds, cohorts)
    first = 3600.0
    times = [first + seconds * i / number for i in range(number)]
    return Simulation(dispatcher, times, messages=math.ceil(due / number)).run(math.inf)


def minute_late(dispatcher: Dispatcher, due: int) -> float:
    """How late the last of ``due`` messages is that are due within one minute, in seconds."""
    return due_in_a_minute(dispatcher, due).late_share(1)


def steady(dispatcher: Dispatcher, rate: float, *, hours: float = 24) -> Emptied:
    """``rate`` messages due each second, for so long."""
    seconds = hours * 3600
    total = max(1, round(rate * seconds))
    number = _cohorts(dispatcher, total, seconds, 4000)
    times = [DEPLOYED.ahead_seconds + seconds * i / number for i in range(number)]
    return Simulation(dispatcher, times, messages=math.ceil(total / number)).run(seconds)


def drained(dispatcher: Dispatcher, messages: int) -> list[float]:
    """When each claim was released, of messages that are all due at once."""
    due = [0.0] * (messages // dispatcher.claim)
    return sorted(Simulation(dispatcher, due, messages=dispatcher.claim).run(math.inf).late)


def _cohorts(dispatcher: Dispatcher, total: int, seconds: float, most: int) -> int:
    """As many as simulate well: none may take longer than a small part of a run."""
    if dispatcher.every_seconds is None:
        return max(1, min(total, most))
    runs = max(seconds, total / dispatcher.throughput) / dispatcher.every_seconds
    return max(1, min(total, max(most, math.ceil(runs * _PARTS_OF_A_RUN))))
