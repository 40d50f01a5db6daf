"""Measures what a message costs the parts that move it, and makes the real runs that docs/capacity.md shows.

Stores both in ``capacity.json``, for `benchmarks.capacity`; with ``--check`` the real runs alone. Each part
runs in a process of its own: its requests, CPU time and memory count. SQS is the stub, DynamoDB and S3 are
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

import psutil

from benchmarks.capacity import (
    CHECKED_MESSAGES,
    CHECKED_RECEIVERS,
    CHECKED_RELEASES,
    DEPLOYED,
    MEASURED,
    SQS_SECONDS,
    Check,
    Cost,
)
from benchmarks.support.fresh_process import in_process, stdout_away
from benchmarks.support.sqs_stub import BODY, REGION, Stub, running_stub
from sqsdelay.testing import LocalAws

ENDPOINT: Final = "orders"
GROUP: Final = 5_000
"""Messages that are parked together: an object on S3."""

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


def worker_cost(stub: Stub, messages: int) -> Cost:
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


def measure(messages: int, *, today: str) -> dict[str, Any]:
    """What 1,000 messages cost each part, as it is stored, without the checks."""
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
        costs["worker"] = in_process(plain, worker_cost, stub, messages)
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


def environment(stub: Stub, **more: str) -> dict[str, str]:
    """Points clients at the stub."""
    return {
        "AWS_ENDPOINT_URL_SQS": stub.url,
        "AWS_ACCESS_KEY_ID": "stub",
        "AWS_SECRET_ACCESS_KEY": "stub",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "POWERTOOLS_SERVICE_NAME": ENDPOINT,
        "SQSDELAY_ENDPOINT": ENDPOINT,
        **more,
    }


def events(stub: Stub, messages: int, remaining: int) -> list[dict[str, Any]]:
    """Events as Lambda makes them of what the delay queue holds."""
    stub.supply(messages, remaining_seconds=[remaining])
    client, url = stub.client(), f"{stub.url}/000000000000/{ENDPOINT}-delay.fifo"
    return [
        {
            "Records": [
                _record(message)
                for message in client.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=DEPLOYED.batch,
                    MessageSystemAttributeNames=["All"],
                    MessageAttributeNames=["All"],
                )["Messages"]
            ]
        }
        for _ in range(messages // DEPLOYED.batch)
    ]


def _record(message: Any) -> dict[str, Any]:
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {
            name: {"stringValue": value["StringValue"], "dataType": value["DataType"]}
            for name, value in message["MessageAttributes"].items()
        },
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:000000000000:{ENDPOINT}-delay.fifo",
    }


def fill_due(store: Any, count: int, prefix: str) -> None:
    """Messages that have been due for a second."""
    from sqsdelay.core.stored_message import StoredMessage

    now_ms = time.time_ns() // 1_000_000
    messages = [
        StoredMessage(
            message_id=f"{prefix}-{number}",
            destination=ENDPOINT,
            due_ms=now_ms - 1000,
            body=BODY.encode(),
        )
        for number in range(count)
    ]
    for start in range(0, count, 1000):
        store.store(messages[start : start + 1000])


def fill_parked(url: str, count: int, *, due_in_seconds: int) -> None:
    """Messages that were parked two hours ago, as most are: far away then, due now.

    Args:
        url: of a DynamoDB or an S3 store.
    """
    from sqsdelay.core.checked_message import new_message_id
    from sqsdelay.core.stored_message import StoredMessage
    from sqsdelay.stores import DynamoDbStore, S3Store
    from sqsdelay.testing import ManualClock

    now_ms = time.time_ns() // 1_000_000
    due_ms = now_ms + 1000 * due_in_seconds
    kind, _, place = url.partition("://")
    store_of = {"dynamodb": DynamoDbStore, "s3": S3Store}[kind]
    store = store_of(place, endpoint=ENDPOINT, clock=ManualClock(now_ms - 7_200_000))
    messages = [
        StoredMessage(
            message_id=new_message_id(due_ms),
            destination=ENDPOINT,
            due_ms=due_ms,
            body=BODY.encode(),
        )
        for _ in range(count)
    ]
    for start in range(0, count, GROUP):
        store.store(messages[start : start + GROUP])
    store.close()


@contextmanager
def dispatching(
    conninfo: str,
) -> Iterator[tuple[Callable[[], list[float]], Callable[[int, str], None]]]:
    """Release all that is due, with when each was; and fill the store."""
    from sqsdelay.core.endpoint import Endpoint
    from sqsdelay.dispatching.dispatcher import Dispatcher
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.outbox import SqsOutbox
    from sqsdelay.sqs.queues import SqsQueues
    from sqsdelay.stores.postgres.postgres_store import PostgresStore

    store = PostgresStore(conninfo, endpoint=ENDPOINT)
    store.set_up()
    client = default_client(connections=DEPLOYED.outbox_batches)
    outbox = SqsOutbox(SqsQueues(client), Endpoint.parse(ENDPOINT))
    dispatcher = Dispatcher(store, outbox)
    dispatcher.start()

    def release() -> list[float]:
        done: list[float] = []
        while (turn := dispatcher.dispatch()).claimed:
            done += [time.perf_counter()] * len(turn.released)
        return done

    yield release, lambda count, prefix: fill_due(store, count, prefix)
    outbox.close()
    store.close()


CHECKS: Final = 3
"""Runs of each, of which the median counts."""

Drain = tuple[float, float]
"""When all messages were through, and how long SQS took to answer on average; seconds."""


def check() -> dict[str, Any]:
    """All checks, as they are stored."""
    from benchmarks.store import database

    with running_stub(latency_ms=SQS_SECONDS * 1000) as stub, database() as conninfo:
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
    """When all are through, of many that a worker finds visible at once."""
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
    return max(done) - started, statistics.mean(took)


def dispatcher_drains(conninfo: str, messages: int) -> Drain:
    """When all are released, of many that are due at once."""
    took = _timed_calls()
    with dispatching(conninfo) as (release, fill):
        fill(messages, "checked")
        started = time.perf_counter()
        return max(release()) - started, statistics.mean(took)


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
    real_all, answer_seconds = sorted(runs)[len(runs) // 2]
    return asdict(
        Check(what=what, real_all=round(real_all, 3), answer_seconds=round(answer_seconds, 4))
    )


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
        stored = measure(options.messages, today=datetime.now(UTC).date().isoformat())
    stored["checks"] = check()
    MEASURED.write_text(json.dumps(stored, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
