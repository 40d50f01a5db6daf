"""The error queue: what could not be delivered, with the reason."""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.acknowledgement import NO_REDRIVE, acknowledge
from infra.queue_name import beside
from sqsdelay.limits import ERROR_QUEUE_SUFFIX, MAX_RETENTION_SECONDS


class ErrorQueue(sqs.Queue):
    """Standard, kept 14 days, for a person to read.

    Args:
        endpoint: the destination queue's name, which may be a token.
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
            queue_name=beside(endpoint, ERROR_QUEUE_SUFFIX),
            retention_period=Duration.seconds(MAX_RETENTION_SECONDS),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            removal_policy=removal_policy,
        )
        acknowledge(self, *NO_REDRIVE, reason="The last stop: nothing but a person reads it.")
