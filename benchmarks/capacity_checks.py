"""Real runs that the simulation is compared with: when a worker was through with many messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from capacity_figures import CHECKED_MESSAGES, CHECKED_RELEASES, SQS_SECONDS, Check
from capacity_load import ENDPOINT, dispatching, environment
from fresh_process import in_process
from sqs_stub import Stub, running_stub

CHECKS: Final = 3
"""Runs of each, of which the fastest counts: other work on the machine only makes a run slower."""

LAST_SECONDS: Final = 60


def check() -> dict[str, Any]:
    """All checks; what `capacity_figures.Measured` loads."""
    from store import database

    with running_stub(latency_ms=SQS_SECONDS.value * 1000) as stub, database() as conninfo:
        plain = environment(stub)
        relayed = [in_process(plain, worker_drains, stub, CHECKED_MESSAGES) for _ in range(CHECKS)]
        released = [
            in_process(plain, dispatcher_drains, conninfo, CHECKED_RELEASES) for _ in range(CHECKS)
        ]
    return {
        "worker": _check(f"{CHECKED_MESSAGES:,} messages visible at once, a worker", relayed),
        "dispatcher worker": _check(
            f"{CHECKED_RELEASES:,} parked messages due at once, a worker on PostgreSQL", released
        ),
    }


def worker_drains(stub: Stub, messages: int) -> list[float]:
    """When each message was through, of many that a worker of default settings finds visible at once."""
    from sqsdelay import DelayConsumer

    stop = threading.Event()
    done: list[float] = []

    def note(outcomes: Sequence[object]) -> None:
        done.extend([time.perf_counter()] * len(outcomes))
        if len(done) >= messages:
            stop.set()

    consumer = DelayConsumer(ENDPOINT, on_outcomes=note)
    consumer.start()
    stub.supply(messages, remaining_seconds=[LAST_SECONDS])
    started = time.perf_counter()
    consumer.run(stop)
    return sorted(at - started for at in done)


def dispatcher_drains(conninfo: str, messages: int) -> list[float]:
    """When each message was released, of many that are due at once."""
    with dispatching(conninfo) as (release, fill):
        fill(messages, "checked")
        started = time.perf_counter()
        return sorted(at - started for at in release())


def _check(what: str, runs: Sequence[list[float]]) -> dict[str, Any]:
    times = min(runs, key=lambda run: run[-1])
    half = round(times[len(times) // 2], 3)
    return asdict(Check(what=what, real_half=half, real_all=round(times[-1], 3)))
