"""Everything one endpoint needs, as a stack of its own."""

from __future__ import annotations

import hashlib
from typing import Any

from aws_cdk import CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.context import Deployment
from sqsdelay.cdk import FunctionSettings
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
        given = dict(deployment.settings)
        if (arn := given.pop("kms_key_arn", None)) is not None:
            given["encryption_key"] = kms.Key.from_key_arn(self, "Key", arn)
        if (arn := deployment.queue_arn) is not None:
            queue: sqs.IQueue = sqs.Queue.from_queue_arn(self, "Destination", arn)
        else:
            queue = DestinationQueue(
                self,
                "Destination",
                endpoint=endpoint.name,
                removal_policy=given.get("removal_policy", RemovalPolicy.RETAIN),
                encryption_key=given.get("encryption_key"),
            ).queue
        if (arn := given.pop("alarm_topic_arn", None)) is not None:
            given["alarm_topic"] = sns.Topic.from_topic_arn(self, "AlarmTopic", arn)
        if (arn := given.pop("permissions_boundary_arn", None)) is not None:
            given["permissions_boundary"] = iam.ManagedPolicy.from_managed_policy_arn(
                self, "PermissionsBoundary", arn
            )
        if (name := given.get("ledger_bucket")) is not None:
            given["ledger_bucket"] = s3.Bucket.from_bucket_attributes(
                self, "LedgerBucket", bucket_name=name, encryption_key=given.get("encryption_key")
            )
        functions = _functions(self, given)
        delay = UnrestrictedDelay(self, "Delay", queue=queue, functions=functions, **given)
        for output, value in _outputs(queue, delay).items():
            CfnOutput(self, output, value=value)


_NOT_USED = "given-by-the-subnets"
"""The CDK wants a subnet's zone and routes, for uses that are not ours."""


def _functions(scope: Construct, given: dict[str, Any]) -> FunctionSettings:
    """Takes what it makes use of out of the settings given."""
    names = {"memory_mb": "memory_mb", "log_retention_days": "log_retention", "tracing": "tracing"}
    common = {names[name]: given.pop(name) for name in names if name in given}
    if "vpc_id" not in given:
        return FunctionSettings(**common)
    subnets = [
        ec2.Subnet.from_subnet_attributes(
            scope, f"Subnet{number}", subnet_id=subnet_id, route_table_id=_NOT_USED
        )
        for number, subnet_id in enumerate(given.pop("subnet_ids"))
    ]
    groups = [
        ec2.SecurityGroup.from_security_group_id(scope, f"SecurityGroup{number}", group_id)
        for number, group_id in enumerate(given.pop("security_group_ids"))
    ]
    vpc = ec2.Vpc.from_vpc_attributes(
        scope, "Network", vpc_id=given.pop("vpc_id"), availability_zones=[_NOT_USED]
    )
    chosen = ec2.SubnetSelection(subnets=subnets)
    return FunctionSettings(vpc=vpc, subnets=chosen, security_groups=groups, **common)


def _outputs(queue: sqs.IQueue, delay: UnrestrictedDelay) -> dict[str, str]:
    gathers = delay.s3_store or delay.schedules
    named = {
        "": queue,
        "Delay": delay.delay_queue,
        "Error": delay.error_queue,
        "Due": delay.due_queue,
        "Parking": gathers.parking_queue if gathers else None,
    }
    outputs = {"FunctionName": delay.function.function_name}
    for name, each in named.items():
        if each is not None:
            outputs |= {f"{name}QueueName": each.queue_name, f"{name}QueueUrl": each.queue_url}
    place = delay.store or gathers
    if place is not None:
        outputs |= {"StoreUrl": place.url, "DispatcherName": place.function.function_name}
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
