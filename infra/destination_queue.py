"""The endpoint's own queue, for endpoints that have none yet."""

from __future__ import annotations

from typing import Final

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.acknowledgement import NO_REDRIVE, acknowledge
from sqsdelay.limits import DEAD_LETTER_QUEUE_SUFFIX, MAX_RETENTION_SECONDS

RECEIVES_BEFORE_DEAD_LETTER: Final = 5
"""How often the endpoint's own consumers may fail a message."""


class DestinationQueue(Construct):
    """A standard queue with a dead-letter queue for what the endpoint's own consumers cannot handle."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        removal_policy: RemovalPolicy,
    ) -> None:
        super().__init__(scope, construct_id)
        self.dead_letter_queue = sqs.Queue(
            self,
            "DeadLetterQueue",
            queue_name=endpoint + DEAD_LETTER_QUEUE_SUFFIX,
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
            retention_period=Duration.seconds(MAX_RETENTION_SECONDS),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            dead_letter_queue=sqs.DeadLetterQueue(
                queue=self.dead_letter_queue, max_receive_count=RECEIVES_BEFORE_DEAD_LETTER
            ),
            removal_policy=removal_policy,
        )
