"""The ledger of one endpoint in S3: a Firehose stream, the bucket it fills by day, alarms."""

from __future__ import annotations

from typing import Final

from aws_cdk import RemovalPolicy
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kinesisfirehose as firehose
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from constructs import Construct

from sqsdelay.cdk import function_names, queues_and_buckets
from sqsdelay.cdk.monitoring import Alarms, own_metric

IN_S3: Final = "s3"
"""What ``ledger=`` calls it."""

FOLDER: Final = "ledger"
BUFFERED_SECONDS: Final = 15 * 60
BUFFERED_MIB: Final = 128
"""Firehose waits so long, or for so much, to write an object: its most, for the fewest objects. Source:
BufferingHints API reference."""

LATE_SECONDS: Final = 4 * BUFFERED_SECONDS
"""Something is wrong when a record has waited for so long. Firehose tries for 24 hours."""


class S3Ledger(Construct):
    """Events of one endpoint become objects of JSON lines, compressed: ``ledger/<endpoint>/day=2027-01-31/…``

    The functions put events into ``stream`` themselves: of what goes through a log, the log alone costs more
    than all the rest. The day (UTC) is the one on which the oldest event of an object came to the stream.
    Nothing deletes objects, and a bucket may be shared by endpoints: each has a folder of its own.
    ``endpoint``: its name, which may be a token. ``bucket``: to write to; made when left out.
    ``alarm_topic``: told of every alarm that starts. ``removal_policy``: what becomes of a bucket made here,
    and the ledger in it, when removed. ``encryption_key``: of stream and bucket; ones that AWS manages when
    None."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        bucket: s3.IBucket | None = None,
        alarm_topic: sns.ITopic | None = None,
        removal_policy: RemovalPolicy = RemovalPolicy.RETAIN,
        encryption_key: kms.IKey | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.bucket = bucket or queues_and_buckets.PrivateBucket(
            self, "Bucket", removal_policy=removal_policy, encryption_key=encryption_key
        )
        role = self._role(endpoint)
        keys = [key for key in (encryption_key, self.bucket.encryption_key) if key is not None]
        for key in {key.key_arn: key for key in keys}.values():
            queues_and_buckets.grant_key(role, key, ["s3", "firehose"], queues_and_buckets.USE_KEY)
        self.stream = firehose.CfnDeliveryStream(
            self,
            "Stream",
            delivery_stream_type="DirectPut",
            delivery_stream_encryption_configuration_input={
                "keyType": "AWS_OWNED_CMK" if encryption_key is None else "CUSTOMER_MANAGED_CMK",
                **({} if encryption_key is None else {"keyArn": encryption_key.key_arn}),
            },
            extended_s3_destination_configuration=firehose.CfnDeliveryStream.ExtendedS3DestinationConfigurationProperty(
                bucket_arn=self.bucket.bucket_arn,
                role_arn=role.role_arn,
                prefix=f"{FOLDER}/{endpoint}/day=!{{timestamp:yyyy-MM-dd}}/",
                # Beside the ledger, or a report would read it.
                error_output_prefix=f"{FOLDER}-errors/{endpoint}/!{{firehose:error-output-type}}/",
                compression_format="GZIP",
                buffering_hints=firehose.CfnDeliveryStream.BufferingHintsProperty(
                    interval_in_seconds=BUFFERED_SECONDS, size_in_m_bs=BUFFERED_MIB
                ),
            ),
        )
        self.stream_url = f"{function_names.LEDGER_STREAM_SCHEME}{self.stream.ref}"
        self.url = f"s3://{self.bucket.bucket_name}/{FOLDER}/{endpoint}/"
        """The endpoint's ledger, as a report reads it."""
        # All that the role may, which Firehose tries at once.
        self.stream.node.add_dependency(role)
        freshness = cloudwatch.Metric(
            namespace="AWS/Firehose",
            metric_name="DeliveryToS3.DataFreshness",
            dimensions_map={"DeliveryStreamName": self.stream.ref},
            statistic="max",
        )
        in_log = own_metric(f"{endpoint}-ledger", function_names.LEDGER_IN_LOG, "sum")
        watched = {"LedgerLate": (freshness, LATE_SECONDS), "LedgerInLog": (in_log, 0)}
        self.alarms = Alarms(self, watched, topic=alarm_topic)

    def statement(self) -> iam.PolicyStatement:
        """What whoever records is to be allowed."""
        return queues_and_buckets.allow("Record", ["firehose:PutRecord"], self.stream.attr_arn)

    def grant_record(self, grantee: iam.IGrantable) -> None:
        """Let ``grantee``, a sender or a receiver, put its events into the stream."""
        grantee.grant_principal.add_to_principal_policy(self.statement())

    def watch(self, log_group: logs.LogGroup) -> None:
        """Count events that a function had to leave in its log."""
        logs.MetricFilter(
            log_group,
            "LedgerInLog",
            log_group=log_group,
            filter_pattern=logs.FilterPattern.string_value(
                "$.message", "=", function_names.LEDGER_MESSAGE
            ),
            metric_namespace=function_names.METRIC_NAMESPACE,
            metric_name=function_names.LEDGER_IN_LOG,
            metric_value="1",
            dimensions={function_names.METRIC_DIMENSION: "$.service"},
        )

    def _role(self, endpoint: str) -> iam.Role:
        names = (FOLDER, f"{FOLDER}-errors")
        folders = [self.bucket.arn_for_objects(f"{name}/{endpoint}/*") for name in names]
        # Source: Firehose developer guide, "Grant Firehose access to an Amazon S3 destination".
        write = ("s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject")
        look = ("s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketMultipartUploads")
        statements = [
            queues_and_buckets.allow("Deliver", write, *folders),
            queues_and_buckets.allow("Find", look, self.bucket.bucket_arn),
        ]
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("firehose.amazonaws.com"),
            inline_policies={"Ledger": iam.PolicyDocument(statements=statements)},
        )
        why = "All objects of two folders, which hold nothing but this endpoint's ledger."
        queues_and_buckets.acknowledge_wildcards(role, *folders, reason=why)
        return role
