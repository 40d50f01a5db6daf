"""sqsdelay against hand-written boto3 in 16 threads: the same work in full batches, on the same fast stub.

They take turns, round by round; the figures are medians. Only the number of requests can fail
the run (exit code 1): more than 3 per 10 messages and hop. Speed depends on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks.support.contest import Work, compared, measured
from benchmarks.support.sqs_stub import BODY, Stub, forget_proxies, running_stub
from sqsdelay import DelayConsumer, DelaySender, Message
from sqsdelay.core.limits import MAX_BATCH_ENTRIES, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.message import DELAY_SECONDS, DUE_AT, MESSAGE_ID
from sqsdelay.relaying import Outcome
from sqsdelay.sqs.client import client_config
from sqsdelay.sqs.curl import request_by_curl

ENDPOINT = "orders"
A_DAY = 24 * 3600
LAST_SECONDS = 60
"""Still to wait at the last hop: any value that a message timer takes."""
MAX_REQUESTS_PER_BATCH_AND_HOP = 3
THREADS = 16
"""Of the rival, and batches in flight of ours."""


class PlainBoto3:
    """What one writes by hand: full batches in threads, failures noticed, nothing more."""

    def __init__(self, stub: Stub, client: Any = None) -> None:
        self._client = client or stub.client(connections=THREADS)
        account = f"{stub.url}/000000000000"
        self._destination = f"{account}/{ENDPOINT}"
        self._delay_queue = f"{account}/{ENDPOINT}-delay.fifo"

    def send(self, messages: int) -> None:
        """Send to the delay queue, as `DelaySender.send_many` does."""
        entries = [entry(str(number % MAX_BATCH_ENTRIES)) for number in range(messages)]
        batches = [
            entries[start : start + MAX_BATCH_ENTRIES]
            for start in range(0, messages, MAX_BATCH_ENTRIES)
        ]
        with ThreadPoolExecutor(THREADS) as threads:
            for _ in threads.map(partial(self._send_batch, self._delay_queue), batches):
                pass

    def relay(self, messages: int) -> None:  # noqa: ARG002 - all that the stub was supplied with
        """Receive, requeue or hand over, delete, as `DelayConsumer.run` does."""
        with ThreadPoolExecutor(THREADS) as threads:
            for each in [threads.submit(self._relay_all) for _ in range(THREADS)]:
                each.result()

    def _relay_all(self) -> None:
        while received := self._client.receive_message(
            QueueUrl=self._delay_queue,
            MaxNumberOfMessages=MAX_BATCH_ENTRIES,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        ).get("Messages"):
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
            raise_failed(answer)

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
        raise_failed(self._client.send_message_batch(QueueUrl=queue_url, Entries=entries))


class CallsAlone(PlainBoto3):
    """The three calls of a hop, with nothing around them: nobody can be cheaper with this client."""

    def _moved(self, entry_id: str, message: Any, now_ms: int) -> tuple[str, Any]:  # noqa: ARG002
        return self._delay_queue, entry(entry_id)


def entry(entry_id: str) -> dict[str, Any]:
    """Of a batch by hand."""
    message_id = str(uuid.uuid4())
    return {
        "Id": entry_id,
        "MessageBody": BODY,
        "MessageGroupId": message_id,
        "MessageDeduplicationId": message_id,
        "MessageAttributes": {
            "kind": _string("reminder"),
            DELAY_SECONDS: _string(str(A_DAY)),
        },
    }


def _string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def raise_failed(answer: Any) -> None:
    """Where SQS did not take an entry."""
    if answer.get("Failed"):
        raise RuntimeError(f"the stub failed entries: {answer['Failed']}")


def send_many(stub: Stub) -> Work:
    """`DelaySender.send_many` with as many batches in flight, and a client as it makes itself."""
    sender = DelaySender(own_client(stub, connections=THREADS), concurrency=THREADS)

    def work(messages: int) -> None:
        results = sender.send_many(
            ENDPOINT,
            (Message(BODY, delay=A_DAY, attributes={"kind": "reminder"}) for _ in range(messages)),
        )
        for result in results:
            if result.error is not None:
                raise result.error

    return work


def own_client(stub: Stub, *, http: str = "botocore", connections: int = 64) -> Any:
    """A client as senders and workers make it for themselves."""
    client = stub.client(config=client_config(connections=connections, parameter_validation=False))
    if http == "curl" and (in_the_way := request_by_curl(client)):
        raise RuntimeError(in_the_way)
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


def run(client: Any) -> Work:
    """`DelayConsumer.run`, as a worker process runs it: with as many receivers as it takes."""

    def work(messages: int) -> None:
        stop, left = threading.Event(), [messages]
        lock = threading.Lock()

        def note(outcomes: Sequence[Outcome]) -> None:
            with lock:
                left[0] -= len(outcomes)
                if left[0] <= 0:
                    stop.set()

        DelayConsumer(ENDPOINT, client, wait_seconds=0, on_outcomes=note).run(stop)

    return work


def benchmark(stub: Stub, *, messages: int, rounds: int) -> float:
    """Run all comparisons at the stub's latency.

    Returns:
        The requests per 10 messages that all go the same way, of a consumer that receives them by tens.
    """
    plain = PlainBoto3(stub)
    rival = f"boto3, {THREADS} threads"
    clients = {http: own_client(stub, http=http) for http in ("botocore", "curl")}
    print("send, delay of a day")
    sends = {rival: plain.send, "send_many": send_many(stub)}
    compared(stub, sends, messages=messages, rounds=rounds)
    works = {
        rival: plain.relay,
        "DelayConsumer.run": run(clients["botocore"]),
        "the calls alone": CallsAlone(stub, clients["botocore"]).relay,
        "DelayConsumer.run, http=curl": run(clients["curl"]),
        "the calls alone, http=curl": CallsAlone(stub, clients["curl"]).relay,
    }
    worst = 0.0
    for what, seconds in (("requeued", A_DAY), ("handed over", LAST_SECONDS)):
        print(f"relay, all {what}")
        compared(stub, works, messages=messages, rounds=rounds, supply=seconds)
        # `run` also receives what there is no more: judged is what each batch took.
        polls, many = poll(stub.client()), 10 * MAX_BATCH_ENTRIES
        for messages_polled in (MAX_BATCH_ENTRIES, many):
            stub.supply(messages_polled, remaining_seconds=[seconds])
            polled = measured(stub, polls, messages_polled)
        worst = max(worst, polled.requests * MAX_BATCH_ENTRIES / many)
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
    worst, messages = 0.0, options.messages // MAX_BATCH_ENTRIES * MAX_BATCH_ENTRIES
    with running_stub(apart=True) as stub:
        for latency_ms in options.latency_ms:
            stub.set_latency(latency_ms)
            print(f"\n{latency_ms:g} ms latency, {options.rounds} rounds of {messages} messages")
            worst = max(worst, benchmark(stub, messages=messages, rounds=options.rounds))
    print(f"\nconsumer: {worst:.2f} requests per {MAX_BATCH_ENTRIES} messages and hop")
    if worst > MAX_REQUESTS_PER_BATCH_AND_HOP:
        print(f"FAILED: more than {MAX_REQUESTS_PER_BATCH_AND_HOP}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
