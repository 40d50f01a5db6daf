"""The delay queue: where a message waits, hop by hop."""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.acknowledgement import NO_REDRIVE, acknowledge
from infra.queue_name import beside
from sqsdelay.limits import (
    DELAY_QUEUE_SUFFIX,
    DELAY_QUEUE_VISIBILITY_SECONDS,
    MAX_RETENTION_SECONDS,
)


class DelayQueue(sqs.Queue):
    """High-throughput FIFO, delivery delay of one hop, 14 days of retention, no redrive policy.

    Args:
        endpoint: the destination queue's name, which may be a token.
        hop_seconds: the delivery delay, 1 to 900.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        hop_seconds: int,
        removal_policy: RemovalPolicy,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            queue_name=beside(endpoint, DELAY_QUEUE_SUFFIX),
            fifo=True,
            deduplication_scope=sqs.DeduplicationScope.MESSAGE_GROUP,
            fifo_throughput_limit=sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID,
            delivery_delay=Duration.seconds(hop_seconds),
            retention_period=Duration.seconds(MAX_RETENTION_SECONDS),
            visibility_timeout=Duration.seconds(DELAY_QUEUE_VISIBILITY_SECONDS),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            removal_policy=removal_policy,
        )
        acknowledge(
            self,
            *NO_REDRIVE,
            reason="A redrive policy would move away messages that are only waiting; what cannot be "
            "delivered the function sends to the error queue.",
        )
