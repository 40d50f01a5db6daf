"""Measures what a message costs the parts that move it, and makes the real runs that docs/capacity.md shows.

Stores both in ``capacity.json``, for `benchmarks.capacity`; with ``--check`` the real runs alone. Each part
runs in a process of its own: its CPU time and memory count. SQS is the stub, DynamoDB and S3 are
ministack's, PostgreSQL is real; what these servers use is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing import get_context
from typing import Any, Final, TypeVar

import psutil

from benchmarks.capacity import (
    CHECKED_MESSAGES,
    CHECKED_RECEIVERS,
    CHECKED_RELEASES,
    DISPATCHER_TIMEOUT_SECONDS,
    MEASURED,
    SQS_SECONDS,
)
from benchmarks.support.sqs_stub import BODY, Stub, running_stub
from sqsdelay.core.limits import MAX_BATCH_ENTRIES, SCHEDULE_SECONDS
from sqsdelay.testing import LocalAws

ENDPOINT: Final = "orders"
GROUP: Final = 5_000
"""Messages that are stored together: an object on S3."""

STORES: Final = {"": "dynamodb://orders.parked", " on S3": "s3://orders-parked"}
"""The dispatcher function's, by what its name ends with."""

FAR_SECONDS: Final = 10 * 24 * 3600
NEAR_SECONDS: Final = 5 * 3600
"""Not far enough to be parked."""

LAST_SECONDS: Final = 60
WARM_UP: Final = 200
CHECKS: Final = 3
"""Runs of each, of which the median counts."""

T = TypeVar("T")
Cost = dict[str, float]
"""``cpu_seconds`` of 1,000 messages, and the ``mib`` that the process has at the end."""


def in_process(environment: Mapping[str, str], do: Callable[..., T], *arguments: Any) -> T:
    """``do`` in a fresh process with these environment variables and no other of AWS's; what it prints, as a
    function does its log, goes nowhere."""
    with ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=_begin, initargs=(environment,)
    ) as pool:
        return pool.submit(do, *arguments).result()


def _begin(variables: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "SQSDELAY_"))]:
        del os.environ[name]
    os.environ.update(variables)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def environment(stub: Stub, **more: str) -> dict[str, str]:
    """That of the endpoint's worker or functions, to which the stub is SQS."""
    endpoint = {"POWERTOOLS_SERVICE_NAME": ENDPOINT, "SQSDELAY_ENDPOINT": ENDPOINT}
    return stub.environment(**endpoint, **more)


def _cost(messages: int, prepare: Callable[[int], Any], move: Callable[[Any], object]) -> Cost:
    """What moving so many costs, after a few that warm up; what prepares them is not counted."""
    move(prepare(WARM_UP))
    prepared = prepare(messages)
    before = time.process_time()
    move(prepared)
    cpu_seconds = (time.process_time() - before) * 1000 / messages
    mib = psutil.Process().memory_info().rss / 2**20
    return {"cpu_seconds": round(cpu_seconds, 4), "mib": round(mib, 1)}


def worker_cost(stub: Stub, messages: int) -> Cost:
    """The delay consumer as a worker, one receiver: half of the messages requeued, half handed over."""
    from sqsdelay import DelayConsumer

    consumer = DelayConsumer(ENDPOINT)

    def relay(half: int) -> None:
        for seconds in (NEAR_SECONDS, LAST_SECONDS):
            stub.supply(half, remaining_seconds=[seconds])
            left = half
            while left:
                left -= len(consumer.poll(wait_seconds=0))

    return _cost(messages, lambda count: count // 2, relay)


def function(stub: Stub, messages: int, remaining: Sequence[int]) -> Cost:
    """The delay consumer's handler; Lambda's own receives and deletes are not its own."""
    from lambdas.delay_consumer.handler import handler
    from tests.services.lambda_function import Context, record

    client, url = stub.client(), f"{stub.url}/000000000000/{ENDPOINT}-delay.fifo"

    def events(count: int) -> Iterator[dict[str, Any]]:
        for seconds in remaining:
            stub.supply(count // len(remaining), remaining_seconds=[seconds])
            while received := client.receive_message(
                QueueUrl=url, MaxNumberOfMessages=MAX_BATCH_ENTRIES
            ).get("Messages"):
                yield {"Records": [record(message) for message in received]}

    def invoke(made: Sequence[dict[str, Any]]) -> None:
        for event in made:
            assert handler(event, Context(30_000)) == {"batchItemFailures": []}

    return _cost(messages, lambda count: list(events(count)), invoke)


def dispatcher_function(url: str, messages: int) -> Cost:
    """The dispatcher's handler on a DynamoDB or S3 store, with messages that were parked two hours ago."""
    from lambdas.dispatcher.handler import handler
    from sqsdelay.stores import DynamoDbStore, S3Store
    from sqsdelay.testing import ManualClock
    from tests.services.lambda_function import Context

    kind, _, place = url.partition("://")
    store_of = {"dynamodb": DynamoDbStore, "s3": S3Store}[kind]
    # What is parked two hours ago must be due after what was released, or no cursor comes to it; and so soon
    # that a store in S3 gathers no more.
    due_in_ms = iter((-3_600_000, 240_000))

    def park(count: int) -> int:
        now_ms = time.time_ns() // 1_000_000
        store = store_of(place, endpoint=ENDPOINT, clock=ManualClock(now_ms - 7_200_000))
        fill(store, count, due_ms=now_ms + next(due_in_ms))
        store.close()
        return count

    def release(count: int) -> None:
        context, released = Context(DISPATCHER_TIMEOUT_SECONDS * 1000), 0
        # A run may move cursors only.
        for _ in range(3):
            released += handler({}, context)["released"]
            if released == count:
                return
            time.sleep(SCHEDULE_SECONDS)
        raise AssertionError(f"{released} of {count} released")

    return _cost(messages, park, release)


def dispatcher_worker(conninfo: str, messages: int) -> Cost:
    """`Dispatcher` as ``sqsdelay dispatch`` runs it, on PostgreSQL."""
    with dispatching(conninfo) as (release, fill):
        return _cost(messages, fill, lambda _: release())


def fill(store: Any, count: int, *, due_ms: int) -> None:
    """So many messages with ids of their own."""
    from sqsdelay.core.message import new_message_id
    from sqsdelay.core.stored_message import StoredMessage

    body = BODY.encode()
    messages = [
        StoredMessage(
            message_id=new_message_id(due_ms), destination=ENDPOINT, due_ms=due_ms, body=body
        )
        for _ in range(count)
    ]
    for start in range(0, count, GROUP):
        store.store(messages[start : start + GROUP])


@contextmanager
def dispatching(conninfo: str) -> Iterator[tuple[Callable[[], object], Callable[[int], object]]]:
    """Release all that is due in a PostgreSQL store; and put so many into it that are."""
    from sqsdelay.core.endpoint import Endpoint
    from sqsdelay.dispatching.dispatcher import Dispatcher
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.outbox import DEFAULT_CONCURRENCY, SqsOutbox
    from sqsdelay.sqs.queues import SqsQueues
    from sqsdelay.stores.postgres.postgres_store import PostgresStore

    store = PostgresStore(conninfo, endpoint=ENDPOINT)
    store.set_up()
    client = default_client(connections=DEFAULT_CONCURRENCY)
    outbox = SqsOutbox(SqsQueues(client), Endpoint.parse(ENDPOINT))
    dispatcher = Dispatcher(store, outbox)
    dispatcher.start()

    def release() -> None:
        while dispatcher.dispatch().claimed:
            pass

    yield release, lambda count: fill(store, count, due_ms=time.time_ns() // 1_000_000 - 1000)
    outbox.close()
    store.close()


def measure(messages: int) -> dict[str, Cost]:
    """What 1,000 messages cost each part."""
    from benchmarks.store import database

    costs: dict[str, Cost] = {}
    with running_stub() as stub, LocalAws() as aws, database() as conninfo:
        plain = environment(stub)
        kept = {f"AWS_ENDPOINT_URL_{name}": aws.endpoint_url for name in ("DYNAMODB", "S3")}
        parked = {
            kind: environment(stub, SQSDELAY_STORE=url, **kept) for kind, url in STORES.items()
        }
        costs["worker"] = in_process(plain, worker_cost, stub, messages)
        near_and_last = [NEAR_SECONDS, LAST_SECONDS]
        costs["function"] = in_process(plain, function, stub, messages, near_and_last)
        for kind, url in STORES.items():
            in_process(parked[kind], _create, url)
        costs["function, parking"] = in_process(parked[""], function, stub, messages, [FAR_SECONDS])
        for kind, url in STORES.items():
            name = f"dispatcher function{kind}"
            costs[name] = in_process(parked[kind], dispatcher_function, url, messages)
        costs["dispatcher worker"] = in_process(plain, dispatcher_worker, conninfo, messages)
    return costs


def _create(url: str) -> None:
    from sqsdelay.stores import open_store

    open_store(url, endpoint=ENDPOINT).set_up()


def check() -> dict[str, float]:
    """Seconds of real runs until all messages are through, with answers as the arithmetic assumes them."""
    from benchmarks.store import database

    with running_stub(latency_ms=SQS_SECONDS * 1000) as stub, database() as conninfo:
        plain = environment(stub)
        runs = {
            "worker": [in_process(plain, worker_drains, stub) for _ in range(CHECKS)],
            "dispatcher worker": [
                in_process(plain, dispatcher_drains, conninfo) for _ in range(CHECKS)
            ],
        }
    return {name: round(statistics.median(of), 3) for name, of in runs.items()}


def worker_drains(stub: Stub) -> float:
    """Of many that a worker finds visible at once."""
    from sqsdelay import DelayConsumer

    stop = threading.Event()
    done: list[float] = []

    def note(outcomes: Sequence[object]) -> None:
        done.extend([time.perf_counter()] * len(outcomes))
        if len(done) >= CHECKED_MESSAGES:
            stop.set()

    consumer = DelayConsumer(ENDPOINT, receivers=CHECKED_RECEIVERS, on_outcomes=note)
    consumer.start()
    stub.supply(CHECKED_MESSAGES, remaining_seconds=[LAST_SECONDS])
    started = time.perf_counter()
    consumer.run(stop)
    return max(done) - started


def dispatcher_drains(conninfo: str) -> float:
    """Of many that are due at once."""
    with dispatching(conninfo) as (release, fill):
        fill(CHECKED_RELEASES)
        started = time.perf_counter()
        release()
        return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capacity_measured", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="only the real runs to compare with")
    parser.add_argument("--messages", type=int, default=2000, help="messages to measure with")
    options = parser.parse_args()
    if options.messages < 400 or options.messages % 40:
        parser.error("use a multiple of 40, at least 400: whole batches of each kind")
    stored = json.loads(MEASURED.read_text())
    if not options.check:
        stored["machine"] = (
            f"{psutil.cpu_count()} cores, {platform.system()} {platform.machine()}, "
            f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}"
        )
        stored["measured_on"] = datetime.now(UTC).date().isoformat()
        stored["costs"] = measure(options.messages)
    stored["checks"] = check()
    MEASURED.write_text(json.dumps(stored, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
