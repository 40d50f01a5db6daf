"""A customer-managed KMS key: what whoever reads or writes under it is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs

USE_QUEUE: Final = ("kms:Decrypt", "kms:GenerateDataKey")
"""What sending to a queue under a key takes, for SQS reuses data keys; receiving takes the first.
Source: SQS developer guide, key management, "Configure KMS permissions for producers"."""

USE_TABLE: Final = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
"""What using a table under a key takes. Source: DynamoDB developer guide, encryption at rest, "Usage
notes", as aws-cdk-lib's ``Table`` grants it."""


def grant_queues(grantee: iam.IGrantable, queues: Iterable[sqs.IQueue | None]) -> None:
    """Let ``grantee`` send to and receive from those of the queues that are under keys."""
    keys = {
        queue.encryption_master_key.key_arn: queue.encryption_master_key
        for queue in queues
        if queue is not None and queue.encryption_master_key is not None
    }
    for key in keys.values():
        key.grant(grantee, *USE_QUEUE)


def grant_table(grantee: iam.IGrantable, key: kms.IKey | None) -> None:
    """Let ``grantee`` use a table under ``key``, where it has one."""
    if key is not None:
        key.grant(grantee, *USE_TABLE)
