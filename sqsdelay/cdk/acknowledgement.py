"""cdk-nag rules we do not follow, each with its reason, next to the construct it is about."""

from __future__ import annotations

from typing import Any, Final

from aws_cdk import Acknowledgment, Stack, Validations
from constructs import Construct

NO_REDRIVE: Final = ("AwsSolutions-SQS3", "Serverless-SQSRedrivePolicy")
"""Both packs want a dead-letter queue on every queue."""


def acknowledge(construct: Construct, *rules: str, reason: str) -> None:
    """Keep ``rules`` quiet on ``construct`` and below; the report carries the reason."""
    Validations.of(construct).acknowledge(
        *(Acknowledgment(id=rule, reason=reason) for rule in rules)
    )


def as_nag_writes(scope: Construct, arn: str) -> str:
    """An ARN as a finding names it: references in angle brackets."""
    return _written(Stack.of(scope).resolve(arn))


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    if "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return str(separator).join(map(_written, parts))
    if "Fn::GetAtt" in value:
        return f"<{'.'.join(value['Fn::GetAtt'])}>"
    return f"<{value['Ref']}>"
