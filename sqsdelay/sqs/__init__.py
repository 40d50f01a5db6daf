"""sqsdelay over Amazon SQS (boto3)."""

from typing import TYPE_CHECKING

from sqsdelay.core import on_first_use

if TYPE_CHECKING:
    from sqsdelay.core.endpoint import Endpoint
    from sqsdelay.core.readable import Problem
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

# Load on first use: who sends does without what relays.
__getattr__ = on_first_use(
    __name__,
    {
        "sqsdelay.sqs.consumer": "DelayConsumer",
        "sqsdelay.sqs.sender": "DelaySender",
        "sqsdelay.core.endpoint": "Endpoint",
        "sqsdelay.core.readable": "Problem",
        "sqsdelay.sqs.outbox": "SqsOutbox",
        "sqsdelay.sqs.queues": "SqsQueues",
        "sqsdelay.sqs.timeouts": "SqsTimeouts",
        "sqsdelay.sqs.endpoints": "check_endpoint create_endpoint",
    },
)
