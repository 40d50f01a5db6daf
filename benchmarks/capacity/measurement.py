"""Measures what a message costs the parts that move it: requests, CPU time, memory of their process.

Each part runs in a process of its own. SQS is the stub, DynamoDB and S3 are ministack's, PostgreSQL is
real; what these servers use is not counted.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, Final

import psutil

from benchmarks.capacity.figures import DEPLOYED, Cost
from benchmarks.capacity.load import ENDPOINT, dispatching, environment, events, fill_parked
from benchmarks.support.fresh_process import in_process, stdout_away
from benchmarks.support.sqs_stub import Stub, running_stub
from sqsdelay.testing import LocalAws

STORES: Final = {"": "dynamodb://orders.parked", " on S3": "s3://orders-parked"}
"""The dispatcher function's, by what its name ends with."""

FAR_SECONDS: Final = 10 * 24 * 3600
NEAR_SECONDS: Final = 5 * 3600
"""Not far enough to be parked."""

LAST_SECONDS: Final = 60
WARM_UP: Final = 200

Work = Callable[[], int]
"""Moves messages; returns how many."""


def _count_requests() -> Counter[str]:
    """The calls that clients of this process's default session make from now on."""
    import boto3

    calls: Counter[str] = Counter()

    def count(model: Any, **_: object) -> None:
        calls[model.name] += 1

    boto3.setup_default_session()
    session = boto3.DEFAULT_SESSION
    assert session is not None
    session.events.register("before-call.*", count)
    return calls


def _cost(warm_up: Work, work: Work, calls: Counter[str]) -> Cost:
    """What ``work`` costs, for 1,000 messages."""
    warm_up()
    calls.clear()
    process = psutil.Process()
    start, before = process.memory_info().rss, time.process_time()
    moved = work()
    cpu = time.process_time() - before
    return Cost(
        requests={name: round(n * 1000 / moved, 1) for name, n in sorted(calls.items())},
        cpu_seconds=round(cpu * 1000 / moved, 4),
        start_mib=round(start / 2**20, 1),
        grown_mib=round((process.memory_info().rss - start) / 2**20 * 1000 / moved, 3),
    )


def worker(stub: Stub, messages: int) -> Cost:
    """The delay consumer as a worker, one receiver: half of the messages requeued, half handed over."""
    from sqsdelay import DelayConsumer

    calls = _count_requests()
    consumer = DelayConsumer(ENDPOINT)

    def relay(count: int) -> int:
        for remaining in (NEAR_SECONDS, LAST_SECONDS):
            stub.supply(count // 2, remaining_seconds=[remaining])
            left = count // 2
            while left:
                left -= len(consumer.poll(wait_seconds=0))
        return count

    return _cost(lambda: relay(WARM_UP), lambda: relay(messages), calls)


def function(stub: Stub, messages: int, remaining: Sequence[int]) -> Cost:
    """The delay consumer's handler; Lambda's own receives and deletes are not among its requests."""
    calls = _count_requests()
    with stdout_away():
        from lambdas.delay_consumer.handler import handler

        context = SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000)

        def invoke(events: Sequence[Mapping[str, Any]]) -> int:
            for event in events:
                assert handler(event, context) == {"batchItemFailures": []}
            return len(events) * DEPLOYED.batch

        def made(count: int) -> list[Mapping[str, Any]]:
            each = count // len(remaining)
            return [event for left in remaining for event in events(stub, each, left)]

        first, rest = made(WARM_UP), made(messages)
        return _cost(lambda: invoke(first), lambda: invoke(rest), calls)


class _Context:
    """Lambda's, with all the time there is."""

    def get_remaining_time_in_millis(self) -> int:
        return DEPLOYED.dispatcher_timeout_seconds * 1000


def dispatcher_function(_: Stub, url: str, messages: int) -> Cost:
    """The dispatcher's handler on a DynamoDB or S3 store, with messages that were parked long ago."""
    calls = _count_requests()
    with stdout_away():
        from lambdas.dispatcher.handler import handler

        def run() -> int:
            return handler({}, _Context())["released"]

        fill_parked(url, WARM_UP, due_in_seconds=-3600)
        assert run() == WARM_UP
        fill_parked(url, messages, due_in_seconds=DEPLOYED.ahead_seconds - 30)

        def release() -> int:
            released = run()
            assert released == messages, f"{released} of {messages} released"
            return released

        return _cost(lambda: 0, release, calls)


def dispatcher_worker(conninfo: str, messages: int) -> Cost:
    """`Dispatcher` as ``sqsdelay dispatch`` runs it, on a PostgreSQL table that is filled already."""
    calls = _count_requests()
    with dispatching(conninfo) as (release, fill):
        fill(WARM_UP, "warm-up")
        return _cost(
            lambda: len(release()), lambda: (fill(messages, "due"), len(release()))[1], calls
        )


def measure(messages: int) -> dict[str, Cost]:
    """What 1,000 messages cost each part."""
    from benchmarks.store import database

    costs: dict[str, Cost] = {}
    with running_stub() as stub, LocalAws() as aws, database() as conninfo:
        plain = environment(stub)
        parked = {
            kind: environment(
                stub,
                SQSDELAY_STORE=url,
                AWS_ENDPOINT_URL_DYNAMODB=aws.endpoint_url,
                AWS_ENDPOINT_URL_S3=aws.endpoint_url,
            )
            for kind, url in STORES.items()
        }
        costs["worker"] = in_process(plain, worker, stub, messages)
        near_and_last = [NEAR_SECONDS, LAST_SECONDS]
        costs["function"] = in_process(plain, function, stub, messages, near_and_last)
        for kind, url in STORES.items():
            in_process(parked[kind], _create, url)
        costs["function, parking"] = in_process(parked[""], function, stub, messages, [FAR_SECONDS])
        for kind, url in STORES.items():
            costs[f"dispatcher function{kind}"] = in_process(
                parked[kind], dispatcher_function, stub, url, messages
            )
        costs["dispatcher worker"] = in_process(plain, dispatcher_worker, conninfo, messages)
    return costs


def stored(costs: Mapping[str, Cost], *, today: str) -> dict[str, Any]:
    """The measurements as `capacity_figures.Measured` loads them, checks still missing."""
    return {
        "machine": _machine(),
        "measured_on": today,
        "costs": {name: asdict(cost) for name, cost in costs.items()},
    }


def _create(url: str) -> None:
    from sqsdelay.stores import open_store

    open_store(url, endpoint=ENDPOINT).set_up()


def _machine() -> str:
    return (
        f"{psutil.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}"
    )
