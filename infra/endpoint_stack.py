"""Everything one endpoint needs, as a stack of its own."""

from __future__ import annotations

import hashlib

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.context import Deployment
from sqsdelay.cdk.queues_and_buckets import DestinationQueue, acknowledge
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from sqsdelay.core.endpoint import Endpoint


def stack_name(endpoint: Endpoint) -> str:
    """``sqsdelay-<endpoint>``. CloudFormation takes no underscores and dots: such names get a hash, so
    that ``a_b``, ``a-b``, ``a.fifo`` and ``a-fifo`` stay four stacks."""
    name = endpoint.name.replace("_", "-").replace(".", "-")
    if name != endpoint.name:
        name += "-" + hashlib.sha256(endpoint.name.encode()).hexdigest()[:8]
    return f"sqsdelay-{name}"


class EndpointStack(Stack):
    """The destination queue, created or existing, and its unrestricted delay."""

    def __init__(
        self, scope: Construct, construct_id: str, *, endpoint: Endpoint, deployment: Deployment
    ) -> None:
        super().__init__(
            scope, construct_id, description=f"Unrestricted delays for {endpoint.name} (sqsdelay)"
        )
        encryption_key = deployment.hosting.key(self)
        if deployment.queue_arn is None:
            queue: sqs.IQueue = DestinationQueue(
                self,
                "Destination",
                endpoint=endpoint.name,
                removal_policy=deployment.removal_policy,
                encryption_key=encryption_key,
            ).queue
        else:
            queue = sqs.Queue.from_queue_arn(self, "Destination", deployment.queue_arn)
        topic_arn = deployment.alarm_topic_arn
        bucket = deployment.ledger_bucket
        delay = UnrestrictedDelay(
            self,
            "Delay",
            queue=queue,
            hop_seconds=deployment.hop_seconds,
            max_delay_seconds=deployment.max_delay_seconds,
            alarm_topic=None
            if topic_arn is None
            else sns.Topic.from_topic_arn(self, "AlarmTopic", topic_arn),
            removal_policy=deployment.removal_policy,
            store=deployment.store,
            store_shards=deployment.store_shards,
            store_class=deployment.store_class,
            large_bodies=deployment.large_bodies,
            ledger=deployment.ledger,
            ledger_bucket=None
            if bucket is None
            else s3.Bucket.from_bucket_attributes(
                self, "LedgerBucket", bucket_name=bucket, encryption_key=encryption_key
            ),
            encryption_key=encryption_key,
            functions=deployment.hosting.functions(self),
            permissions_boundary=deployment.hosting.boundary(self),
        )
        for output, value in _outputs(queue, delay).items():
            CfnOutput(self, output, value=value)


def _outputs(queue: sqs.IQueue, delay: UnrestrictedDelay) -> dict[str, str]:
    outputs = {
        "QueueName": queue.queue_name,
        "QueueUrl": queue.queue_url,
        "DelayQueueName": delay.delay_queue.queue_name,
        "DelayQueueUrl": delay.delay_queue.queue_url,
        "ErrorQueueName": delay.error_queue.queue_name,
        "ErrorQueueUrl": delay.error_queue.queue_url,
        "FunctionName": delay.function.function_name,
    }
    if delay.due_queue is not None:
        outputs |= {
            "DueQueueName": delay.due_queue.queue_name,
            "DueQueueUrl": delay.due_queue.queue_url,
        }
    if delay.store is not None:
        outputs |= {
            "StoreUrl": delay.store.url,
            "DispatcherName": delay.store.function.function_name,
        }
    if delay.s3_store is not None:
        outputs |= {
            "StoreUrl": delay.s3_store.url,
            "DispatcherName": delay.s3_store.function.function_name,
            "ParkingQueueName": delay.s3_store.parking_queue.queue_name,
            "ParkingQueueUrl": delay.s3_store.parking_queue.queue_url,
        }
    if delay.schedules is not None:
        outputs |= {
            "StoreUrl": delay.schedules.url,
            "DispatcherName": delay.schedules.function.function_name,
            "ParkingQueueName": delay.schedules.parking_queue.queue_name,
            "ParkingQueueUrl": delay.schedules.parking_queue.queue_url,
        }
    if delay.ledger is not None:
        outputs |= {"LedgerUrl": delay.ledger.url, "LedgerStreamName": delay.ledger.stream.ref}
    if delay.body_bucket is not None:
        outputs["BodyBucketName"] = delay.body_bucket.bucket_name
    return outputs


class NoEndpointStack(Stack):
    """An empty stack, which is never deployed: the CDK's command line refuses an app without stacks,
    and `cdk bootstrap`, `cdk ls` and `cdk synth` must work before there is an endpoint."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id, description="Nothing to deploy: use -c endpoint=NAME")
        acknowledge(self, "CloudFormation-Validate::F0001", reason="Empty by intent, not deployed.")
