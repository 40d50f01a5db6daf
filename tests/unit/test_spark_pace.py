"""A job that SQS throttles, in virtual time: few refusals, and hardly longer than it must take."""

from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass

import pytest

from sqsdelay.spark.sink.pace import CallPace

LATENCY_SECONDS = 0.02
FASTEST = 450
"""Calls a second that one process makes where nothing holds it up."""


@dataclass
class Now:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


def job(processes: int, quota: float, calls_each: int) -> tuple[float, float]:
    """Of processes that share a quota of calls a second, of which one second's is saved: the share of their
    calls that is refused, and the seconds until all are taken."""
    clock, tokens, filled_at = Now(), quota, 0.0
    paces = [CallPace(clock=clock) for _ in range(processes)]  # type: ignore[arg-type]
    left, waits = [calls_each] * processes, [True] * processes
    events = [(process / 100, process, "call") for process in range(processes)]
    while events:
        clock.now, process, what = heapq.heappop(events)
        pace = paces[process]
        if what == "call":
            waits[process] = False
            left[process] -= 1
            pace.passed(clock.now)
            tokens, filled_at = min(quota, tokens + (clock.now - filled_at) * quota), clock.now
            if tokens < 1:
                heapq.heappush(events, (clock.now + LATENCY_SECONDS, process, "refused"))
            else:
                tokens -= 1
        else:
            pace.refused("RequestThrottled")
            left[process] += 1
        if left[process] and not waits[process]:
            waits[process] = True
            soonest = max(clock.now, pace.free_at)
            if what == "call":
                soonest = max(soonest, clock.now + 1 / FASTEST)
            heapq.heappush(events, (soonest, process, "call"))
    refusals = sum(pace.refusals for pace in paces)
    return refusals / (refusals + processes * calls_each), clock.now


@pytest.mark.parametrize(
    ("processes", "quota", "calls_each"), [(2, 30, 1_000), (8, 30, 1_000), (8, 300, 2_000)]
)
def test_few_calls_are_refused_and_the_quota_is_used(
    processes: int, quota: float, calls_each: int
) -> None:
    """Whatever the processes' shares of the quota are."""
    refused, seconds = job(processes, quota, calls_each)
    assert refused <= 0.03
    assert seconds <= 1.15 * (processes * calls_each - quota) / quota


def test_what_nobody_refuses_is_not_held_up() -> None:
    """It takes half a second more than as fast as it can, once in a process."""
    refused, seconds = job(2, 10_000, 2_000)
    assert refused == 0
    assert seconds < 2_000 / FASTEST + 0.5


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
