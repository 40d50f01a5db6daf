"""The bucket in which large bodies wait while pointers to them travel."""

from __future__ import annotations

from typing import Any, Final

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from sqsdelay.cdk.acknowledgement import acknowledge

NO_ACCESS_LOG: Final = (
    "An access log would need a bucket of its own, kept for ever as well; whoever has to account for "
    "reads records S3 data events with CloudTrail."
)

ABANDONED_DAYS: Final = 7
"""After so many days parts of an upload that was never completed are deleted: they are no object."""


def private(encryption_key: kms.IKey | None) -> dict[str, Any]:
    """Settings of a bucket that nobody reads without a grant; under a key of the customer's if given."""
    return {
        "block_public_access": s3.BlockPublicAccess.BLOCK_ALL,
        "encryption": s3.BucketEncryption.S3_MANAGED
        if encryption_key is None
        else s3.BucketEncryption.KMS,
        "encryption_key": encryption_key,
        "bucket_key_enabled": None if encryption_key is None else True,
        "enforce_ssl": True,
        "object_ownership": s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
    }


def private_bucket(
    scope: Construct,
    construct_id: str,
    *,
    removal_policy: RemovalPolicy,
    encryption_key: kms.IKey | None,
) -> s3.Bucket:
    """A private bucket, whose objects no lifecycle rule deletes."""
    bucket = s3.Bucket(
        scope,
        construct_id,
        lifecycle_rules=[
            s3.LifecycleRule(
                id="abandoned-uploads",
                abort_incomplete_multipart_upload_after=Duration.days(ABANDONED_DAYS),
            )
        ],
        removal_policy=removal_policy,
        **private(encryption_key),
    )
    acknowledge(bucket, "AwsSolutions-S1", reason=NO_ACCESS_LOG)
    return bucket


class BodyBucket(s3.Bucket):
    """Private, encrypted, TLS only. No lifecycle rule: a body is needed until its message is received.

    CloudFormation makes up the name, for bucket names are shared by all accounts.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        removal_policy: RemovalPolicy,
        encryption_key: kms.IKey | None = None,
    ) -> None:
        super().__init__(
            scope, construct_id, removal_policy=removal_policy, **private(encryption_key)
        )
        acknowledge(self, "AwsSolutions-S1", reason=NO_ACCESS_LOG)

    def grant_offload(self, producer: iam.IGrantable) -> iam.Grant:
        """Let ``producer`` put bodies, and see that no lifecycle rule deletes them too early."""
        return self._grant(
            producer,
            on_bucket="s3:GetLifecycleConfiguration",
            on_bodies=["s3:PutObject"],
        )

    def grant_fetch(self, receiver: iam.IGrantable) -> iam.Grant:
        """Let ``receiver`` read bodies, and delete them after their messages."""
        # Without ListBucket S3 answers "denied" for an object that is gone.
        return self._grant(
            receiver,
            on_bucket="s3:ListBucket",
            on_bodies=["s3:DeleteObject", "s3:GetObject"],
        )

    def _grant(self, grantee: iam.IGrantable, *, on_bucket: str, on_bodies: list[str]) -> iam.Grant:
        if self.encryption_key is not None:
            # A large body goes up in parts, which S3 decrypts to put them together.
            self.encryption_key.grant(grantee, "kms:Decrypt", "kms:GenerateDataKey")
        bucket = iam.Grant.add_to_principal(
            grantee=grantee, actions=[on_bucket], resource_arns=[self.bucket_arn], scope=self
        )
        bodies = iam.Grant.add_to_principal(
            grantee=grantee,
            actions=on_bodies,
            resource_arns=[self.arn_for_objects("*")],
            scope=self,
        )
        return bucket.combine(bodies)
