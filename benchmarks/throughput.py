"""sqsdelay against hand-written batched boto3 doing the same work, on the same fast stub.

The two take turns, round by round; the figures are medians. Only the number of requests can fail
the run (exit code 1): more than 3 per 10 messages and hop. Speed depends on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.config import Config

from benchmarks.support.sqs_stub import BODY, Stub, forget_proxies, running_stub
from sqsdelay import DelayConsumer, DelaySender, Message
from sqsdelay.core.message import DELAY_SECONDS, DUE_AT, MESSAGE_ID
from sqsdelay.limits import MAX_BATCH_ENTRIES, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.relaying import Outcome
from sqsdelay.sending.settings import DEFAULT_CONCURRENCY
from sqsdelay.sqs.client import client_config
from sqsdelay.sqs.curl import request_by_curl

ENDPOINT = "orders"
A_DAY = 24 * 3600
LAST_SECONDS = 60
"""Still to wait at the last hop: any value that a message timer takes."""
MAX_REQUESTS_PER_BATCH_AND_HOP = 3
SLOW_SHARE = 10
"""With latency a round has this part of the messages: it measures waiting, which needs fewer."""

Work = Callable[[int], None]
"""Does the work for so many messages."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One timed round."""

    messages: int
    seconds: float
    cpu_seconds: float
    requests: int


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Something to measure, and what a round needs beforehand."""

    name: str
    work: Work
    supply: Sequence[int] = ()
    times: int = 1
    """It gets so many times the messages: a worker starts with two receivers, and finds out."""


class PlainBoto3:
    """What one writes by hand: full batches, failures noticed, nothing more."""

    def __init__(self, stub: Stub, *, parameter_validation: bool = True) -> None:
        self._client = stub.client(config=Config(parameter_validation=parameter_validation))
        account = f"{stub.url}/000000000000"
        self._destination = f"{account}/{ENDPOINT}"
        self._delay_queue = f"{account}/{ENDPOINT}-delay.fifo"

    def send(self, messages: int) -> None:
        """Send to the delay queue, as `DelaySender.send_many` does."""
        entries: list[Any] = []
        for number in range(messages):
            message_id = str(uuid.uuid4())
            entries.append(
                {
                    "Id": str(number % MAX_BATCH_ENTRIES),
                    "MessageBody": BODY,
                    "MessageGroupId": message_id,
                    "MessageDeduplicationId": message_id,
                    "MessageAttributes": {
                        "kind": _string("reminder"),
                        DELAY_SECONDS: _string(str(A_DAY)),
                    },
                }
            )
        for start in range(0, messages, MAX_BATCH_ENTRIES):
            self._send_batch(self._delay_queue, entries[start : start + MAX_BATCH_ENTRIES])

    def relay(self, messages: int) -> None:
        """Receive, requeue or hand over, delete, as `DelayConsumer.poll` does."""
        while messages > 0:
            received = self._client.receive_message(
                QueueUrl=self._delay_queue,
                MaxNumberOfMessages=MAX_BATCH_ENTRIES,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )["Messages"]
            now_ms = time.time_ns() // 1_000_000
            batches: dict[str, list[Any]] = {}
            for number, message in enumerate(received):
                target, entry = self._moved(str(number), message, now_ms)
                batches.setdefault(target, []).append(entry)
            for target, entries in batches.items():
                self._send_batch(target, entries)
            answer = self._client.delete_message_batch(
                QueueUrl=self._delay_queue,
                Entries=[
                    {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                    for number, message in enumerate(received)
                ],
            )
            _raise_failed(answer)
            messages -= len(received)

    def _moved(self, entry_id: str, message: Any, now_ms: int) -> tuple[str, Any]:
        attributes = dict(message["MessageAttributes"])
        due_ms = int(attributes[DUE_AT]["StringValue"])
        remaining = max(0, -((now_ms - due_ms) // 1000))
        group_id = message["Attributes"]["MessageGroupId"]
        entry = {"Id": entry_id, "MessageBody": message["Body"], "MessageAttributes": attributes}
        if remaining <= MAX_MESSAGE_TIMER_SECONDS:
            del attributes[DUE_AT], attributes[DELAY_SECONDS]
            attributes[MESSAGE_ID] = _string(group_id)
            return self._destination, entry | {"DelaySeconds": remaining}
        attributes[DELAY_SECONDS] = _string(str(remaining))
        copy_id = f"{group_id}:{message['Attributes']['SentTimestamp']}"
        return self._delay_queue, entry | {
            "MessageGroupId": group_id,
            "MessageDeduplicationId": hashlib.sha256(copy_id.encode()).hexdigest(),
        }

    def _send_batch(self, queue_url: str, entries: list[Any]) -> None:
        _raise_failed(self._client.send_message_batch(QueueUrl=queue_url, Entries=entries))


def _string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def _raise_failed(answer: Any) -> None:
    if answer.get("Failed"):
        raise RuntimeError(f"the stub failed entries: {answer['Failed']}")


def send_many(stub: Stub, *, concurrency: int, given_client: bool = False) -> Work:
    """`DelaySender.send_many` with so many batches in flight.

    Args:
        given_client: a client of botocore's defaults, instead of one as the sender makes itself.
    """
    own = client_config(connections=concurrency, parameter_validation=False)
    sender = DelaySender(stub.client(config=None if given_client else own), concurrency=concurrency)

    def work(messages: int) -> None:
        results = sender.send_many(
            ENDPOINT,
            (Message(BODY, delay=A_DAY, attributes={"kind": "reminder"}) for _ in range(messages)),
        )
        for result in results:
            if result.error is not None:
                raise result.error

    return work


def own_client(stub: Stub) -> Any:
    """A client as a worker makes it for itself."""
    client = stub.client(config=client_config(connections=64, parameter_validation=False))
    request_by_curl(client)
    return client


def poll(client: Any) -> Work:
    """`DelayConsumer.poll` until all messages are relayed."""
    consumer = DelayConsumer(ENDPOINT, client)

    def work(messages: int) -> None:
        while messages > 0:
            outcomes = consumer.poll(wait_seconds=0)
            if not outcomes or not all(outcome.settled for outcome in outcomes):
                raise RuntimeError(f"not relayed: {outcomes}")
            messages -= len(outcomes)

    return work


def run(stub: Stub, *, receivers: int | None = None) -> Work:
    """`DelayConsumer.run` with the clients it makes itself, as a worker process runs it.

    Args:
        receivers: as many; None for as many as it takes.
    """
    client = own_client(stub)

    def work(messages: int) -> None:
        stop, left = threading.Event(), [messages]
        lock = threading.Lock()

        def note(outcomes: Sequence[Outcome]) -> None:
            with lock:
                left[0] -= len(outcomes)
                if left[0] <= 0:
                    stop.set()

        DelayConsumer(ENDPOINT, client, receivers=receivers, wait_seconds=0, on_outcomes=note).run(
            stop
        )

    return work


def measure(stub: Stub, contestant: Contestant, messages: int) -> Round:
    """One round, timed, its requests counted."""
    messages *= contestant.times
    if contestant.supply:
        stub.supply(messages, remaining_seconds=contestant.supply)
    requests = stub.requests().total()
    cpu, wall = time.process_time(), time.perf_counter()
    contestant.work(messages)
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    requests = stub.requests().total() - requests
    return Round(messages=messages, seconds=seconds, cpu_seconds=cpu_seconds, requests=requests)


def alternate(
    stub: Stub, contestants: Sequence[Contestant], *, messages: int, rounds: int
) -> list[list[Round]]:
    """Rounds of each contestant, after one that warms up, taking turns."""
    for contestant in contestants:
        measure(stub, contestant, MAX_BATCH_ENTRIES)
    turns = [
        [measure(stub, contestant, messages) for contestant in contestants] for _ in range(rounds)
    ]
    return [list(column) for column in zip(*turns, strict=True)]


def requests_per_batch(rounds: Sequence[Round]) -> float:
    """Requests per 10 messages; the same in every round, or the worst of them."""
    return max(round_.requests * MAX_BATCH_ENTRIES / round_.messages for round_ in rounds)


def line(contestant: Contestant, rounds: Sequence[Round], plain: Sequence[Round]) -> str:
    """A contestant's medians, and its ratios to plain boto3 in the same turn."""
    speed = statistics.median(r.messages / r.seconds for r in rounds)
    cpu = statistics.median(r.cpu_seconds / r.messages for r in rounds)
    pairs = list(zip(rounds, plain, strict=True))
    faster = statistics.median(p.seconds / p.messages / (r.seconds / r.messages) for r, p in pairs)
    dearer = statistics.median(
        r.cpu_seconds / r.messages / (p.cpu_seconds / p.messages) for r, p in pairs
    )
    return (
        f"{contestant.name:<40}{speed:>9,.0f} msg/s{cpu * 1e6:>9.1f} µs CPU/msg"
        f"{faster:>8.2f} x speed{dearer:>7.2f} x CPU{requests_per_batch(rounds):>7.2f} requests/10"
    )


def compare(
    stub: Stub, title: str, contestants: Sequence[Contestant], *, messages: int, rounds: int
) -> list[list[Round]]:
    """Measure and print; the first contestant is what the others are compared with."""
    measured = alternate(stub, contestants, messages=messages, rounds=rounds)
    print(title)
    for contestant, column in zip(contestants, measured, strict=True):
        print("  " + line(contestant, column, measured[0]), flush=True)
    return measured


def senders(stub: Stub, plain: PlainBoto3) -> list[Contestant]:
    """Sending to the delay queue."""
    return [
        Contestant(name="plain boto3, one thread", work=plain.send),
        Contestant(
            name="plain boto3, parameter_validation=False",
            work=PlainBoto3(stub, parameter_validation=False).send,
        ),
        Contestant(
            name="send_many, concurrency=1, given client",
            work=send_many(stub, concurrency=1, given_client=True),
        ),
        Contestant(name="send_many, concurrency=1", work=send_many(stub, concurrency=1)),
        Contestant(
            name=f"send_many, default concurrency ({DEFAULT_CONCURRENCY})",
            work=send_many(stub, concurrency=DEFAULT_CONCURRENCY),
        ),
    ]


def relays(
    stub: Stub, plain: PlainBoto3, remaining_seconds: Sequence[int], *, times: int
) -> list[Contestant]:
    """Relaying messages that have so much still to wait."""
    works = {
        "plain boto3, one thread": (plain.relay, 1),
        "DelayConsumer.poll, given client": (poll(stub.client()), 1),
        "DelayConsumer.poll, own client": (poll(own_client(stub)), 1),
        "DelayConsumer.run, two receivers": (run(stub, receivers=2), 1),
        "DelayConsumer.run": (run(stub), times),
    }
    return [
        Contestant(name=name, work=work, supply=remaining_seconds, times=more)
        for name, (work, more) in works.items()
    ]


def benchmark(stub: Stub, *, messages: int, rounds: int, times: int) -> float:
    """Run all comparisons at the stub's latency.

    Args:
        times: a worker's messages, to one of the others'.

    Returns:
        The consumer's requests per 10 messages that all go the same way.
    """
    plain = PlainBoto3(stub)
    compare(stub, "send, delay of a day", senders(stub, plain), messages=messages, rounds=rounds)
    worst = 0.0
    for title, remaining_seconds in (
        ("relay, all requeued", [A_DAY]),
        ("relay, all handed over", [LAST_SECONDS]),
    ):
        contestants = relays(stub, plain, remaining_seconds, times=times)
        _, ours, *_ = compare(stub, title, contestants, messages=messages, rounds=rounds)
        worst = max(worst, requests_per_batch(ours))
    # Two queues to send to take two sends, by hand too: shown, not judged.
    contestants = relays(stub, plain, [A_DAY, LAST_SECONDS], times=times)
    compare(stub, "relay, half of each", contestants, messages=messages, rounds=rounds)
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5000, help="messages a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each, taking turns")
    parser.add_argument(
        "--latency-ms",
        type=float,
        nargs="+",
        default=[0, 20],
        help="the stub's answering latencies",
    )
    options = parser.parse_args()
    if options.messages < MAX_BATCH_ENTRIES or options.rounds < 1:
        parser.error(f"use at least {MAX_BATCH_ENTRIES} messages and 1 round")
    forget_proxies()
    worst = 0.0
    with running_stub(apart=True) as stub:
        for latency_ms in options.latency_ms:
            stub.set_latency(latency_ms)
            share = SLOW_SHARE if latency_ms else 1
            messages = options.messages // share
            # Whole batches, so that the requests per batch are exact.
            messages = max(1, messages // MAX_BATCH_ENTRIES) * MAX_BATCH_ENTRIES
            print(f"\n{latency_ms:g} ms latency, {options.rounds} rounds of {messages} messages")
            found = benchmark(stub, messages=messages, rounds=options.rounds, times=share)
            worst = max(worst, found)
    print(f"\nconsumer: {worst:.2f} requests per {MAX_BATCH_ENTRIES} messages and hop")
    if worst > MAX_REQUESTS_PER_BATCH_AND_HOP:
        print(f"FAILED: more than {MAX_REQUESTS_PER_BATCH_AND_HOP}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
