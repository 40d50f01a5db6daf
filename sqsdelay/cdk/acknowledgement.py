"""cdk-nag rules we do not follow, each with its reason, next to the construct it is about."""

from __future__ import annotations

from typing import Final

from aws_cdk import Acknowledgment, Validations
from constructs import Construct

NO_REDRIVE: Final = ("AwsSolutions-SQS3", "Serverless-SQSRedrivePolicy")
"""Both packs want a dead-letter queue on every queue."""


def acknowledge(construct: Construct, *rules: str, reason: str) -> None:
    """Keep ``rules`` quiet on ``construct`` and below; the report carries the reason."""
    Validations.of(construct).acknowledge(
        *(Acknowledgment(id=rule, reason=reason) for rule in rules)
    )
