"""What holds an endpoint's messages: its queues and buckets, who may use their keys, and which of cdk-nag's
rules we do not follow, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import aws_cdk
from aws_cdk import Aws, Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.core import limits
from sqsdelay.errors import InvalidEndpoint

NO_REDRIVE: Final = ("AwsSolutions-SQS3", "Serverless-SQSRedrivePolicy")
"""Both packs want a dead-letter queue on every queue."""

RECEIVES_BEFORE_DEAD_LETTER: Final = 5
"""How often the endpoint's own consumers may fail a message."""

_ONLY_WAITING: Final = (
    "A redrive policy would move away messages that are only waiting; what cannot be "
    "delivered the function sends to the error queue."
)

USE_KEY: Final = ("kms:Decrypt", "kms:GenerateDataKey")
"""What sending to a queue under a key takes, for SQS reuses data keys; receiving takes the first.
Source: SQS developer guide, key management, "Configure KMS permissions for producers"; the same for a
bucket: Firehose developer guide, "Grant Firehose access to an Amazon S3 destination"."""

ABANDONED_DAYS: Final = 7
"""After so many days parts of an upload that was never completed are deleted: they are no object."""


def acknowledge(construct: Construct, *rules: str, reason: str) -> None:
    """Keep ``rules`` quiet on ``construct`` and below; the report carries the reason. cdk-nag 3 brings the
    CDK's validations along, aws-cdk-lib before 2.256 has none."""
    if hasattr(aws_cdk, "Validations"):
        aws_cdk.Validations.of(construct).acknowledge(
            *(aws_cdk.Acknowledgment(id=rule, reason=reason) for rule in rules)
        )


def acknowledge_wildcards(role: iam.Role, *arns: str, reason: str) -> None:
    """Keep the rule against wildcards quiet on a role, for these resources alone."""

    def named(value: Any) -> str:
        """An ARN as a finding names it: references in angle brackets."""
        match value:
            case {"Fn::Join": [separator, parts]}:
                return str(separator).join(map(named, parts))
            case {"Fn::GetAtt": parts}:
                return f"<{'.'.join(parts)}>"
            case {"Ref": name}:
                return f"<{name}>"
        return str(value)

    rules = [f"AwsSolutions-IAM5[Resource::{named(Stack.of(role).resolve(arn))}]" for arn in arns]
    acknowledge(role, *rules, reason=reason)


def allow(sid: str, actions: Iterable[str], *resources: str, **more: Any) -> iam.PolicyStatement:
    """A statement of a role's policy."""
    return iam.PolicyStatement(sid=sid, actions=[*actions], resources=[*resources], **more)


def grant_key(
    grantee: iam.IGrantable, key: kms.IKey | None, services: Sequence[str], actions: Sequence[str]
) -> None:
    """Let ``grantee`` use a key by way of these services alone; a key of AWS's own needs no grant."""
    if key is not None:
        via = [f"{service}.{Aws.REGION}.amazonaws.com" for service in services]
        iam.Grant.add_to_principal(
            grantee=grantee,
            actions=list(actions),
            resource_arns=[key.key_arn],
            conditions={"StringEquals": {"kms:ViaService": via}},
        )


def grant_queues(grantee: iam.IGrantable, queues: Iterable[sqs.IQueue]) -> None:
    """Let ``grantee`` send to and receive from those of the queues that are under keys."""
    keys = [queue.encryption_master_key for queue in queues]
    for key in {key.key_arn: key for key in keys if key is not None}.values():
        grant_key(grantee, key, ["sqs"], USE_KEY)


def beside(endpoint: str, suffix: str) -> str:
    """As `Endpoint` names them, also where ``endpoint`` is a token, which only standard ones are."""
    return endpoint.removesuffix(limits.FIFO_SUFFIX) + suffix


class EndpointQueue(sqs.Queue):
    """14 days of retention, encrypted, over TLS only. ``no_redrive``: why it has no redrive policy; None
    where it has one. ``encryption_key``: SQS encrypts under it; under a key of its own when None.
    ``settings``: more of those of `aws_sqs.Queue`, its name and removal policy among them."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        no_redrive: str | None,
        encryption_key: kms.IKey | None = None,
        **settings: Any,
    ) -> None:
        managed, kms_key = sqs.QueueEncryption.SQS_MANAGED, sqs.QueueEncryption.KMS
        super().__init__(
            scope,
            construct_id,
            retention_period=Duration.seconds(limits.MAX_RETENTION_SECONDS),
            encryption=managed if encryption_key is None else kms_key,
            encryption_master_key=encryption_key,
            enforce_ssl=True,
            **settings,
        )
        if no_redrive is not None:
            acknowledge(self, *NO_REDRIVE, reason=no_redrive)


_SUFFIXES: Final = {
    "DelayQueue": limits.DELAY_QUEUE_SUFFIX,
    "DueQueue": limits.DUE_QUEUE_SUFFIX,
    "ParkingQueue": limits.PARKING_QUEUE_SUFFIX,
}


def waiting_queue(scope: Construct, which: str, endpoint: str, **settings: Any) -> EndpointQueue:
    """Where messages wait for a function: the ``DelayQueue``, hop by hop; the ``DueQueue``, where the message
    timers of a FIFO endpoint run; the ``ParkingQueue``, where what is to be parked gathers."""
    settings["queue_name"] = beside(endpoint, _SUFFIXES[which])
    settings["visibility_timeout"] = Duration.seconds(limits.DELAY_QUEUE_VISIBILITY_SECONDS)
    return EndpointQueue(scope, which, no_redrive=_ONLY_WAITING, **settings)


class DestinationQueue(Construct):
    """The queue, with a dead-letter queue for what the endpoint's own consumers cannot handle. Both are FIFO
    if the endpoint's name says so. ``settings`` are of both, as `EndpointQueue` takes them. Raises
    InvalidEndpoint: no room in the name for the suffix of a FIFO dead-letter queue."""

    def __init__(
        self, scope: Construct, construct_id: str, *, endpoint: str, **settings: Any
    ) -> None:
        super().__init__(scope, construct_id)
        # SQS does not take FifoQueue=false: a standard queue says nothing.
        settings["fifo"] = True if endpoint.endswith(limits.FIFO_SUFFIX) else None
        name, why = _dead_letter_queue_name(endpoint), "A dead-letter queue itself."
        self.dead_letter_queue = EndpointQueue(
            self, "DeadLetterQueue", no_redrive=why, queue_name=name, **settings
        )
        settings["dead_letter_queue"] = sqs.DeadLetterQueue(
            queue=self.dead_letter_queue, max_receive_count=RECEIVES_BEFORE_DEAD_LETTER
        )
        self.queue = EndpointQueue(self, "Queue", no_redrive=None, queue_name=endpoint, **settings)


def _dead_letter_queue_name(endpoint: str) -> str:
    """FIFO beside a FIFO queue: SQS takes no other."""
    if not endpoint.endswith(limits.FIFO_SUFFIX):
        return endpoint + limits.DEAD_LETTER_QUEUE_SUFFIX
    suffix = limits.DEAD_LETTER_QUEUE_SUFFIX + limits.FIFO_SUFFIX
    base = beside(endpoint, "")
    most = limits.MAX_QUEUE_NAME_CHARS - len(suffix)
    if len(base) > most:
        raise InvalidEndpoint(
            f"endpoint {endpoint!r} has {len(base)} characters before {limits.FIFO_SUFFIX!r}; the limit is "
            f"{most} (SQS takes {limits.MAX_QUEUE_NAME_CHARS}, and {suffix!r} is added for its dead-letter "
            "queue); shorten it, or create the queue yourself and use -c queueArn=ARN"
        )
    return base + suffix


class PrivateBucket(s3.Bucket):
    """Encrypted, TLS only, read by nobody without a grant. No lifecycle rule deletes its objects: the only
    one forgets parts of uploads that were never completed. CloudFormation makes up the name, for bucket names
    are shared by all accounts. ``encryption_key``: a key of the customer's; S3's own when None.
    ``lifecycle``: whether it has that rule."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        removal_policy: RemovalPolicy,
        encryption_key: kms.IKey | None = None,
        lifecycle: bool = True,
    ) -> None:
        rule = s3.LifecycleRule(
            id="abandoned-uploads",
            abort_incomplete_multipart_upload_after=Duration.days(ABANDONED_DAYS),
        )
        managed, kms_key = s3.BucketEncryption.S3_MANAGED, s3.BucketEncryption.KMS
        super().__init__(
            scope,
            construct_id,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=managed if encryption_key is None else kms_key,
            encryption_key=encryption_key,
            bucket_key_enabled=None if encryption_key is None else True,
            enforce_ssl=True,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            removal_policy=removal_policy,
            lifecycle_rules=[rule] if lifecycle else None,
        )
        acknowledge(
            self,
            "AwsSolutions-S1",
            reason="An access log would need a bucket of its own, kept for ever as well; whoever has to "
            "account for reads records S3 data events with CloudTrail.",
        )


class BodyBucket(PrivateBucket):
    """Large bodies. It has no lifecycle rule at all: a body is needed until its message is received."""

    def __init__(self, scope: Construct, construct_id: str, **settings: Any) -> None:
        super().__init__(scope, construct_id, lifecycle=False, **settings)

    def grant_offload(self, producer: iam.IGrantable) -> iam.Grant:
        """Let ``producer`` put bodies, and see that no lifecycle rule deletes them too early."""
        return self._grant(producer, "s3:GetLifecycleConfiguration", ["s3:PutObject"])

    def grant_fetch(self, receiver: iam.IGrantable) -> iam.Grant:
        """Let ``receiver`` read bodies, and delete them after their messages."""
        # Without ListBucket S3 answers "denied" for an object that is gone.
        return self._grant(receiver, "s3:ListBucket", ["s3:DeleteObject", "s3:GetObject"])

    def _grant(self, grantee: iam.IGrantable, on_bucket: str, on_bodies: list[str]) -> iam.Grant:
        # A large body goes up in parts, which S3 decrypts to put them together.
        grant_key(grantee, self.encryption_key, ["s3"], USE_KEY)
        may = (([on_bucket], self.bucket_arn), (on_bodies, self.arn_for_objects("*")))
        bucket, bodies = (
            iam.Grant.add_to_principal(
                grantee=grantee, actions=actions, resource_arns=[arn], scope=self
            )
            for actions, arn in may
        )
        return bucket.combine(bodies)
