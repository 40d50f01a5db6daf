"""An unrestricted boto3 client against a local AWS: sent with boto3's call, relayed, received on time."""

from __future__ import annotations

import uuid
from typing import Any

from sqsdelay import DelayConsumer, unrestricted
from sqsdelay.testing.local_aws import LocalAws
from tests.services.endpoints import create_endpoint, in_queue

HOP = 1
ATTRIBUTES = {
    "kind": {"DataType": "String", "StringValue": "reminder"},
    "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}


def test_a_mixed_batch_arrives_and_each_on_its_time(local_aws: LocalAws) -> None:
    """The direct entry at once, the delayed one after its hops, with the id that was answered."""
    client = local_aws.client("sqs")
    name = f"orders-{uuid.uuid4().hex[:8]}"
    create_endpoint(client, name, hop_seconds=HOP)
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    late = {"Id": "late", "MessageBody": "grüße", "MessageAttributes": ATTRIBUTES}
    answer = unrestricted(client, hop_seconds=HOP).send_message_batch(
        QueueUrl=url, Entries=[late | {"DelaySeconds": 4}, late | {"Id": "now"}]
    )
    told = {done.pop("Id"): done for done in answer["Successful"]}
    assert {k: v for k, v in told["late"].items() if k.startswith("MD5")} == {
        k: v for k, v in told["now"].items() if k.startswith("MD5")
    }
    consumer = DelayConsumer(name, client, hop_seconds=HOP)
    arrived: list[Any] = []
    while len(arrived) < 2:
        consumer.poll(wait_seconds=1)
        arrived += in_queue(client, url)
    now, later = arrived
    assert now["MessageId"] == told["now"]["MessageId"]
    assert now["MessageAttributes"] == ATTRIBUTES
    ours = {
        name: later["MessageAttributes"].pop(name)["StringValue"]
        for name in ("sqsdelay.MessageId", "sqsdelay.WasDueAt")
    }
    assert later["MessageAttributes"] == ATTRIBUTES
    assert ours["sqsdelay.MessageId"] == told["late"]["sqsdelay.MessageId"]
    received_ms = int(later["Attributes"]["ApproximateFirstReceiveTimestamp"])
    assert int(ours["sqsdelay.WasDueAt"]) <= received_ms
    assert received_ms - int(now["Attributes"]["SentTimestamp"]) >= 4000
