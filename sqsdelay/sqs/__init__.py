"""sqsdelay over Amazon SQS (boto3)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "DelayConsumer": "sqsdelay.sqs.consumer",
    "DelaySender": "sqsdelay.sqs.sender",
    "Endpoint": "sqsdelay.core.endpoint",
    "Problem": "sqsdelay.core.readable",
    "SqsOutbox": "sqsdelay.sqs.outbox",
    "SqsQueues": "sqsdelay.sqs.queues",
    "SqsTimeouts": "sqsdelay.sqs.timeouts",
    "check_endpoint": "sqsdelay.sqs.endpoints",
    "create_endpoint": "sqsdelay.sqs.endpoints",
}


def __getattr__(name: str) -> Any:
    """Load on first use: who sends does without what relays."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
