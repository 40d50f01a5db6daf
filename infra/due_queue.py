"""The due queue of a FIFO endpoint: where its message timers run."""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.acknowledgement import NO_REDRIVE, acknowledge
from infra.queue_name import beside
from sqsdelay.limits import (
    DELAY_QUEUE_VISIBILITY_SECONDS,
    DUE_QUEUE_SUFFIX,
    MAX_RETENTION_SECONDS,
)


class DueQueue(sqs.Queue):
    """Standard, 14 days of retention, no redrive policy.

    Args:
        endpoint: the FIFO destination queue's name.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        removal_policy: RemovalPolicy,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            queue_name=beside(endpoint, DUE_QUEUE_SUFFIX),
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
