"""The endpoint's own queue, for endpoints that have none yet."""

from __future__ import annotations

from typing import Final

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.acknowledgement import NO_REDRIVE, acknowledge
from infra.queue_name import beside
from sqsdelay.errors import InvalidEndpoint
from sqsdelay.limits import (
    DEAD_LETTER_QUEUE_SUFFIX,
    FIFO_SUFFIX,
    MAX_QUEUE_NAME_CHARS,
    MAX_RETENTION_SECONDS,
)

RECEIVES_BEFORE_DEAD_LETTER: Final = 5
"""How often the endpoint's own consumers may fail a message."""


class DestinationQueue(Construct):
    """The queue, with a dead-letter queue for what the endpoint's own consumers cannot handle.

    Both are FIFO if the endpoint's name says so.

    Raises:
        InvalidEndpoint: no room in the name for the suffix of a FIFO dead-letter queue.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        removal_policy: RemovalPolicy,
    ) -> None:
        super().__init__(scope, construct_id)
        # SQS does not take FifoQueue=false: a standard queue says nothing.
        fifo = True if endpoint.endswith(FIFO_SUFFIX) else None
        self.dead_letter_queue = sqs.Queue(
            self,
            "DeadLetterQueue",
            queue_name=_dead_letter_queue_name(endpoint),
            fifo=fifo,
            retention_period=Duration.seconds(MAX_RETENTION_SECONDS),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            removal_policy=removal_policy,
        )
        acknowledge(self.dead_letter_queue, *NO_REDRIVE, reason="A dead-letter queue itself.")
        self.queue = sqs.Queue(
            self,
            "Queue",
            queue_name=endpoint,
            fifo=fifo,
            retention_period=Duration.seconds(MAX_RETENTION_SECONDS),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            dead_letter_queue=sqs.DeadLetterQueue(
                queue=self.dead_letter_queue, max_receive_count=RECEIVES_BEFORE_DEAD_LETTER
            ),
            removal_policy=removal_policy,
        )


def _dead_letter_queue_name(endpoint: str) -> str:
    """FIFO beside a FIFO queue: SQS takes no other."""
    if not endpoint.endswith(FIFO_SUFFIX):
        return endpoint + DEAD_LETTER_QUEUE_SUFFIX
    suffix = DEAD_LETTER_QUEUE_SUFFIX + FIFO_SUFFIX
    base = beside(endpoint, "")
    most = MAX_QUEUE_NAME_CHARS - len(suffix)
    if len(base) > most:
        raise InvalidEndpoint(
            f"endpoint {endpoint!r} has {len(base)} characters before {FIFO_SUFFIX!r}; the limit is "
            f"{most} (SQS takes {MAX_QUEUE_NAME_CHARS}, and {suffix!r} is added for its dead-letter "
            "queue); shorten it, or create the queue yourself and use -c queueArn=ARN"
        )
    return base + suffix
