"""Real runs that the simulation is compared with: when a worker was through with many messages."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from benchmarks.capacity.figures import (
    CHECKED_MESSAGES,
    CHECKED_RECEIVERS,
    CHECKED_RELEASES,
    SQS_SECONDS,
    Check,
)
from benchmarks.capacity.load import ENDPOINT, dispatching, environment
from benchmarks.support.fresh_process import in_process
from benchmarks.support.sqs_stub import Stub, running_stub

CHECKS: Final = 3
"""Runs of each, of which the median counts."""

LAST_SECONDS: Final = 60

Drain = tuple[list[float], float]
"""When each message was through, and how long SQS took to answer on average; seconds."""


def check() -> dict[str, Any]:
    """All checks; what `capacity_figures.Measured` loads."""
    from benchmarks.store import database

    with running_stub(latency_ms=SQS_SECONDS.value * 1000) as stub, database() as conninfo:
        plain = environment(stub)
        relayed = [in_process(plain, worker_drains, stub, CHECKED_MESSAGES) for _ in range(CHECKS)]
        released = [
            in_process(plain, dispatcher_drains, conninfo, CHECKED_RELEASES) for _ in range(CHECKS)
        ]
    return {
        "worker": _check(
            f"{CHECKED_MESSAGES:,} messages visible at once, a worker of {CHECKED_RECEIVERS} receivers",
            relayed,
        ),
        "dispatcher worker": _check(
            f"{CHECKED_RELEASES:,} parked messages due at once, a worker on PostgreSQL", released
        ),
    }


def worker_drains(stub: Stub, messages: int) -> Drain:
    """When each message was through, of many that a worker finds visible at once."""
    from sqsdelay import DelayConsumer

    took = _timed_calls()
    stop = threading.Event()
    done: list[float] = []

    def note(outcomes: Sequence[object]) -> None:
        done.extend([time.perf_counter()] * len(outcomes))
        if len(done) >= messages:
            stop.set()

    consumer = DelayConsumer(ENDPOINT, receivers=CHECKED_RECEIVERS, on_outcomes=note)
    consumer.start()
    stub.supply(messages, remaining_seconds=[LAST_SECONDS])
    started = time.perf_counter()
    consumer.run(stop)
    return sorted(at - started for at in done), statistics.mean(took)


def dispatcher_drains(conninfo: str, messages: int) -> Drain:
    """When each message was released, of many that are due at once."""
    took = _timed_calls()
    with dispatching(conninfo) as (release, fill):
        fill(messages, "checked")
        started = time.perf_counter()
        return sorted(at - started for at in release()), statistics.mean(took)


def _timed_calls() -> list[float]:
    """How long each call that clients of this process's default session make from now on took, seconds."""
    import boto3

    sent = threading.local()
    took: list[float] = []
    boto3.setup_default_session()
    session = boto3.DEFAULT_SESSION
    assert session is not None

    def note_sent(**_: object) -> None:
        sent.at = time.perf_counter()

    def note_answer(**_: object) -> None:
        took.append(time.perf_counter() - sent.at)

    # Around what libcurl does, too, which answers within the first.
    session.events.register("before-call.sqs", note_sent)
    session.events.register("after-call.sqs", note_answer)
    return took


def _check(what: str, runs: Sequence[Drain]) -> dict[str, Any]:
    times, answer_seconds = sorted(runs, key=lambda run: run[0][-1])[len(runs) // 2]
    half = round(times[len(times) // 2], 3)
    return asdict(
        Check(
            what=what,
            real_half=half,
            real_all=round(times[-1], 3),
            answer_seconds=round(answer_seconds, 4),
        )
    )
