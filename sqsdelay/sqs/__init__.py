"""sqsdelay over Amazon SQS (boto3)."""

from sqsdelay.sqs.consumer import DelayConsumer
from sqsdelay.sqs.endpoints import Problem, check_endpoint, create_endpoint
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.sqs.sender import DelaySender

__all__ = [
    "DelayConsumer",
    "DelaySender",
    "Problem",
    "SqsQueues",
    "check_endpoint",
    "create_endpoint",
]
