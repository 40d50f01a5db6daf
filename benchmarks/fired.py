"""What schedules have fired, handed over by the function that empties the parking queue: on real sockets.

Thousands of messages that fall due in one window lie in the parking queue of a local AWS. Runs of the
deployed function's code, each in a process as Lambda has it, empty it, and the messages are received when
they are due. Some are refused by the destination, and belong in the error queue. Counted is what arrives.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import boto3

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.schedule_input import input_of
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.limits import GATHERING_SECONDS, MAX_BATCH_ENTRIES
from sqsdelay.sqs import create_endpoint
from sqsdelay.sqs.endpoints import create_queue, due_queue_attributes
from sqsdelay.stores import SchedulerStore
from sqsdelay.testing.local_aws import LocalAws
from tests.services.lambda_function import Context

ROLE = "arn:aws:iam::123456789012:role/orders"
TAKES_BYTES, TOO_LARGE = 1_024, "x" * 2_048
"""What the destination takes, and a body that it refuses."""


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """What became of the messages, by id."""

    seconds: float
    copies: Counter[str]
    early: list[str]
    refused: Counter[str]
    left: int
    fates: Counter[str]


def run(endpoint: str, event: dict[str, object], fates: Any) -> None:
    """One invocation of the function, in a process of its own; it starts others as Lambda does."""
    from lambdas.dispatcher import handler as module

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    real: Any = boto3.client

    class Functions:
        def invoke(self, *, Payload: str, **_: object) -> None:
            begin(endpoint, json.loads(Payload), fates)

    made: Any = boto3
    made.client = lambda name, **more: Functions() if name == "lambda" else real(name, **more)
    fates.put(module.handler(event, Context(remaining_ms=(GATHERING_SECONDS - 10) * 1000)))


def begin(endpoint: str, event: dict[str, object], fates: Any) -> None:
    started = multiprocessing.get_context("fork").Process(target=run, args=(endpoint, event, fates))
    started.start()
    if event["park"] is not True:
        return
    started.join()


def emptied(
    aws: LocalAws, name: str, messages: int, refused: int, window_seconds: float
) -> Arrived:
    """Put so many messages into a parking queue, due within a window; empty it; receive them."""
    sqs, endpoint = aws.client("sqs"), Endpoint.parse(name)
    create_endpoint(sqs, endpoint)
    create_queue(sqs, endpoint.parking_queue, due_queue_attributes())
    store = SchedulerStore(name, role_arn=ROLE, endpoint=name, client=aws.client("scheduler"))
    store.set_up()
    queues = (endpoint.queue, endpoint.parking_queue, endpoint.error_queue)
    url, parking, errors = (sqs.get_queue_url(QueueName=q.name)["QueueUrl"] for q in queues)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": str(TAKES_BYTES)})
    first_ms = time.time_ns() // 1_000_000 + 5_000 + messages * 4
    due = {f"m{n}": first_ms + int(n * window_seconds * 1000 / messages) for n in range(messages)}

    def fired(numbers: range) -> None:
        entries = []
        for n in numbers:
            body = TOO_LARGE if n < refused else f"body of m{n}"
            message = StoredMessage(
                message_id=f"m{n}", destination=name, due_ms=due[f"m{n}"], body=body.encode()
            )
            told = input_of(message, parking, fires_at=due[f"m{n}"] // 1000 - 900, kept_since_ms=1)
            request = json.loads(told)
            del request["QueueUrl"], request["DelaySeconds"]
            entries.append(request | {"Id": str(n)})
        assert not sqs.send_message_batch(QueueUrl=parking, Entries=entries).get("Failed")

    tens = [range(n, min(n + MAX_BATCH_ENTRIES, messages)) for n in range(0, messages, 10)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fired, tens))
    settings = {"SQSDELAY_ENDPOINT": name, "SQSDELAY_STORE": f"scheduler://{name}?role={ROLE}"}
    settings |= {"SQSDELAY_MAX_RECEIVES": "1", "AWS_LAMBDA_FUNCTION_NAME": name}
    before = dict(os.environ)
    os.environ.update(aws.environment() | settings)
    told = multiprocessing.get_context("fork").Queue()
    began = time.monotonic()
    try:
        begin(name, {"park": True}, told)
        fates: Counter[str] = Counter()
        while fates.total() < messages:
            fates += Counter(told.get(timeout=GATHERING_SECONDS))
    finally:
        os.environ.clear()
        os.environ.update(before)
    seconds = time.monotonic() - began
    copies: Counter[str] = Counter()
    early: list[str] = []
    until = max(max(due.values()) / 1000, time.time()) + 5  # emptying may have taken longer
    while time.time() < until:
        got = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, MessageAttributeNames=["All"]
        ).get("Messages", [])
        for each in got:
            name_of_it = each["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"]
            copies[name_of_it] += 1
            if time.time_ns() // 1_000_000 < due[name_of_it]:
                early.append(name_of_it)
        if got:
            until = max(until, time.time() + 5)  # to receive them may take longer, too
            handles = [{"Id": m["MessageId"], "ReceiptHandle": m["ReceiptHandle"]} for m in got]
            sqs.delete_message_batch(QueueUrl=url, Entries=handles)
    given_up: Counter[str] = Counter()
    while got := sqs.receive_message(
        QueueUrl=errors, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    ).get("Messages", []):
        given_up.update(m["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] for m in got)
    asked = sqs.get_queue_attributes(QueueUrl=parking, AttributeNames=["All"])["Attributes"]
    left = sum(int(n) for key, n in asked.items() if key.startswith("ApproximateNumber"))
    return Arrived(
        seconds=seconds, copies=copies, early=early, refused=given_up, left=left, fates=fates
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--refused", type=int, default=25)
    parser.add_argument("--window", type=float, default=float(GATHERING_SECONDS))
    asked = parser.parse_args()
    with LocalAws() as aws:
        found = emptied(aws, "orders", asked.messages, asked.refused, asked.window)
    expected = asked.messages - asked.refused
    twice = sum(n > 1 for n in found.copies.values())
    print(
        f"{asked.messages:,} messages due in {asked.window:g} s: {len(found.copies):,} of {expected:,} "
        f"arrived, {twice} twice, {len(found.early)} early; {len(found.refused)} of {asked.refused} "
        f"refused are in the error queue, {found.left} in the parking queue"
    )
    print(
        f"emptied in {found.seconds:.1f} s by ten runs on {os.cpu_count()} processors, the server's work "
        f"among them: {asked.messages / found.seconds:,.0f} a second"
    )
    whole = len(found.copies) == expected and len(found.refused) == asked.refused
    return 0 if whole and not (twice or found.early or found.left) else 1


if __name__ == "__main__":
    sys.exit(main())
