"""sqsdelay over Amazon SQS (boto3)."""

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.problem import Problem
from sqsdelay.sqs.consumer import DelayConsumer
from sqsdelay.sqs.endpoints import check_endpoint, create_endpoint
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.sqs.sender import DelaySender
from sqsdelay.sqs.timeouts import SqsTimeouts

__all__ = [
    "DelayConsumer",
    "DelaySender",
    "Endpoint",
    "Problem",
    "SqsOutbox",
    "SqsQueues",
    "SqsTimeouts",
    "check_endpoint",
    "create_endpoint",
]
