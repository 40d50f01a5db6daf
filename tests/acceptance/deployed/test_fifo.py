"""``cdk deploy -c endpoint=ordered.fifo -c largeBodies=true`` on a local AWS, the function as deployed."""

from __future__ import annotations

from infra.endpoint_stack import stack_name
from sqsdelay import DelaySender
from sqsdelay.cdk import function_names
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_MESSAGE_BYTES
from sqsdelay.s3 import BodyReader, Bucket
from sqsdelay.sqs import check_endpoint
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployment import metric, proven, receive


def test_messages_reach_a_fifo_queue_in_order_and_whole(
    aws: LocalAws, deployed: dict[str, dict[str, str]]
) -> None:
    """One message by the due queue only, a large one by both queues: each on time, under its own
    deduplication id, in the order of their due times; and the queues are what the relay needs."""
    ordered = deployed[stack_name(Endpoint.parse("ordered.fifo"))]
    sqs, s3 = aws.client("sqs"), aws.client("s3")
    assert check_endpoint(sqs, Endpoint.parse("ordered.fifo"), hop_seconds=1) == []
    bodies = Bucket(ordered["BodyBucketName"], s3)
    sender = DelaySender(sqs, hop_seconds=1, large_bodies=bodies)
    large = "x" * (MAX_MESSAGE_BYTES + 1)
    sent = [
        sender.send("ordered.fifo", body, delay=delay, message_group_id="customer-7")
        for body, delay in ((large, 6), ("soon", 1))
    ]
    received = receive(aws, ordered["QueueUrl"], count=2)
    reader = BodyReader(ordered["BodyBucketName"], s3)
    read = [reader.read(m["Body"], m["MessageAttributes"]) for m in received]
    assert read == ["soon", large]
    for message, result in zip(received, reversed(sent), strict=True):
        assert result.due is not None
        assert message["ArrivedAt"] >= result.due.timestamp()
        carried = message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"]
        assert carried == result.message_id
    assert metric(aws, ordered["FunctionName"], function_names.DELIVERED) == 2
    # However few hops a busy machine made of its six seconds.
    assert metric(aws, ordered["FunctionName"], function_names.HANDED_OVER) >= 1
    proven(aws, "ordered.fifo", 40)
