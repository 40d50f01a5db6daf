"""What the measured parts are fed with: an environment, the delay queue's events, messages in a store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.capacity.figures import DEPLOYED
from benchmarks.support.sqs_stub import BODY, REGION, Stub

ENDPOINT: Final = "orders"
GROUP: Final = 5_000
"""Messages that are parked together: an object on S3."""


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
    from sqsdelay.stores.dynamodb import DynamoDbStore
    from sqsdelay.stores.s3 import S3Store
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
