"""A job that SQS throttles, in virtual time: few refusals, and hardly longer than it must take."""

from __future__ import annotations

import heapq
import random
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from sqsdelay.spark.sink.pace import CallPace

THREADS = 32
LATENCY_SECONDS = 0.02
FASTEST = 450.0
"""Calls a second that one process makes where nothing holds it up."""


@dataclass
class Now:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


class Job:
    """Processes that share a quota of calls a second, of which one second's is saved, as in
    `benchmarks.support.sqs_stub`."""

    def __init__(self, processes: int, quota: float, calls_each: int) -> None:
        self.clock: Any = Now()
        self.paces = [CallPace(clock=self.clock) for _ in range(processes)]
        self.quota = self.tokens = quota
        self.taken, self.filled_at = 0, 0.0
        self._left = [calls_each] * processes
        self._idle = [THREADS] * processes
        self._again: list[list[int]] = [[] for _ in range(processes)]
        self._free_at, self._waits = [0.0] * processes, [False] * processes
        self._events: list[tuple[float, int, int, int]] = []
        self._random, self._number = random.Random(1), 0

    def run(self) -> Job:
        for process in range(len(self.paces)):
            self._at(self._random.random() * 0.05, process, self.ASKS)
        while self._events:
            self.clock.now, _, process, what = heapq.heappop(self._events)
            if what == self.CALLS:
                self._call(process)
            elif what == self.ANSWERED:
                self._idle[process] += 1
            elif what != self.ASKS:
                self._again[process].append(what)
            if not self._waits[process] and (
                self._again[process] or (self._idle[process] and self._left[process])
            ):
                self._waits[process] = True
                free_at = max(self.paces[process].free_at, self._free_at[process], self.clock.now)
                self._at(free_at, process, self.CALLS)
        return self

    ASKS, CALLS, ANSWERED = -1, -2, -3

    def _at(self, when: float, process: int, what: int) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, process, what))

    def _call(self, process: int) -> None:
        now, self._waits[process], refusals = self.clock.now, False, 0
        if self._again[process]:
            refusals = self._again[process].pop()
        else:
            self._left[process] -= 1
            self._idle[process] -= 1
        self.paces[process].passed(now)
        self._free_at[process] = now + 1 / FASTEST
        self.tokens = min(self.quota, self.tokens + (now - self.filled_at) * self.quota)
        self.filled_at = now
        if self.tokens >= 1:
            self.tokens -= 1
            self.taken += 1
            self._at(now + LATENCY_SECONDS, process, self.ANSWERED)
        else:
            self.paces[process].refused("RequestThrottled")
            pause = LATENCY_SECONDS + self._random.random() * min(2**refusals, 20)  # botocore's
            self._at(now + pause, process, refusals + 1)

    @property
    def refused(self) -> float:
        refusals = sum(pace.refusals for pace in self.paces)
        return refusals / (refusals + self.taken)

    @property
    def times_the_ideal(self) -> float:
        ideal = (self.taken - self.quota) / self.quota
        return float(self.clock.now) / max(ideal, self.taken / len(self.paces) / FASTEST)


@pytest.mark.parametrize(
    ("processes", "quota", "calls_each", "longer"),
    [(2, 30, 1_000, 1.15), (8, 30, 1_000, 1.15), (8, 30, 250, 1.2), (8, 300, 2_000, 1.2)],
)
def test_few_calls_are_refused_and_the_quota_is_used(
    processes: int, quota: float, calls_each: int, longer: float
) -> None:
    """Whatever the processes' shares of the quota are. In a job of a minute one that got a small share ends
    a little later than the others."""
    job = Job(processes, quota, calls_each).run()
    assert job.taken == processes * calls_each
    assert job.refused <= 0.03
    assert job.times_the_ideal <= longer


def test_what_nobody_refuses_is_not_held_up() -> None:
    """A second more than as fast as it can, once in a process."""
    job = Job(2, 10_000, 2_000).run()
    assert job.refused == 0
    assert job.clock.now < 2_000 / FASTEST + 0.5


def test_threads_take_turns_and_other_errors_are_no_refusals() -> None:
    """A thread that waits keeps the others in line, so that a cut holds them up, too."""
    clock, slept = Now(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    pace = CallPace(clock=clock, sleep=sleep)  # type: ignore[arg-type]
    threads = [threading.Thread(target=pace.wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(slept) == 7
    assert slept == sorted(slept, reverse=True)
    pace.answered(response=(None, {"Error": {"Code": "AccessDenied"}}))
    pace.answered(response=None)
    assert pace.refusals == 0
    pace.answered(response=(None, {"Error": {"Code": "RequestThrottled"}}))
    pace.wait()
    assert pace.refusals == 1
    assert slept[-1] > 5 * slept[-2] / 6 / 0.8
