"""What a type checker with boto3-stubs sees; ``make lint`` runs mypy over this file."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

import boto3
from mypy_boto3_sqs import SQSClient
from mypy_boto3_sqs.service_resource import Queue, SQSServiceResource
from mypy_boto3_sqs.type_defs import SendMessageResultTypeDef

from sqsdelay import unrestricted

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"


def test_a_client_stays_a_client() -> None:
    """Its methods keep their argument and answer types."""
    sqs = unrestricted(boto3.client("sqs"))
    assert_type(sqs, SQSClient)
    assert sqs.meta.service_model.service_name == "sqs"
    if TYPE_CHECKING:
        answer = sqs.send_message(QueueUrl=URL, MessageBody="x", DelaySeconds=31_536_000)
        assert_type(answer, SendMessageResultTypeDef)
        sqs.send_message(QueueUrl=URL, MessageBody=1)  # type: ignore[arg-type]


def test_a_resource_stays_a_resource() -> None:
    """The service and its queues alike."""
    service = unrestricted(boto3.resource("sqs"))
    assert_type(service, SQSServiceResource)
    queue = unrestricted(service.Queue(URL))
    assert_type(queue, Queue)
    assert queue.url == URL
    if TYPE_CHECKING:
        unrestricted(boto3.client("s3"))  # type: ignore[type-var]
        unrestricted("sqs")  # type: ignore[type-var]
