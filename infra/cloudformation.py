"""``python -m infra.cloudformation``: an endpoint as CloudFormation templates with parameters.

They are synthesized from the construct, for those who deploy without the CDK. What a deployment may
decide is a parameter; an empty one leaves its property out.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from aws_cdk import App, CfnOutput, CfnParameter, DefaultStackSynthesizer, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs

from sqsdelay.cdk import UnrestrictedDelay
from sqsdelay.cdk.delay_consumer_function import DEFAULT_MAX_CONCURRENCY
from sqsdelay.limits import DELAY_CONSUMER_MEMORY_MB

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "cloudformation"
STORES: Final = {"sqsdelay": None, "sqsdelay-dynamodb": "dynamodb"}
"""The templates, and the store each deploys."""

_OPTIONAL: Final = {
    "AlarmTopicArn": "SNS topic that every alarm notifies",
    "KmsKeyArn": "KMS key for the queues and the table; the services' own when empty",
    "PermissionsBoundaryArn": "Permissions boundary of every role",
}


@cache
def template(name: str) -> dict[str, Any]:
    """The template of that name, as CloudFormation takes it; not to be changed."""
    context = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    stack = Stack(
        App(context=context, analytics_reporting=False),
        name,
        description="Unrestricted delays for one Amazon SQS queue (sqsdelay)",
        synthesizer=DefaultStackSynthesizer(generate_bootstrap_version_rule=False),
    )
    _build(stack, STORES[name])
    made: dict[str, Any] = stack.node.root.synth().get_stack_by_name(name).template  # type: ignore[attr-defined]
    return _with_choices(made)


def _build(stack: Stack, store: str | None) -> None:
    endpoint = CfnParameter(
        stack,
        "Endpoint",
        description="Name of the destination: a standard queue of this account and region",
        allowed_pattern="[A-Za-z0-9_-]{1,68}",
    ).value_as_string
    bucket = CfnParameter(
        stack, "CodeBucket", description="S3 bucket with the functions' archives"
    ).value_as_string
    prefix = CfnParameter(
        stack,
        "CodePrefix",
        description="What the archives' keys begin with; another one for each version",
    ).value_as_string
    optional = {
        name: CfnParameter(stack, name, description=text, default="").value_as_string
        for name, text in _OPTIONAL.items()
    }
    CfnParameter(
        stack,
        "MemoryMb",
        type="Number",
        default=DELAY_CONSUMER_MEMORY_MB,
        description="Memory of the delay consumer",
    )
    CfnParameter(
        stack,
        "MaxConcurrency",
        type="Number",
        default=DEFAULT_MAX_CONCURRENCY,
        min_value=2,
        max_value=1000,
        description="Batches of messages in hand at once",
    )
    CfnParameter(
        stack,
        "LogRetentionDays",
        type="Number",
        default=30,
        description="How long the functions' logs are kept",
    )
    code = s3.Bucket.from_bucket_name(stack, "Code", bucket)
    queue = sqs.Queue.from_queue_attributes(
        stack,
        "Destination",
        queue_name=endpoint,
        queue_arn=stack.format_arn(service="sqs", resource=endpoint),
        fifo=False,
    )
    delay = UnrestrictedDelay(
        stack,
        "Delay",
        queue=queue,
        store=store,
        code=lambda_.Code.from_bucket(code, f"{prefix}delay_consumer.zip"),
        dispatcher_code=lambda_.Code.from_bucket(code, f"{prefix}dispatcher.zip"),
        alarm_topic=sns.Topic.from_topic_arn(stack, "Topic", optional["AlarmTopicArn"]),
        encryption_key=kms.Key.from_key_arn(stack, "Key", optional["KmsKeyArn"]),
        permissions_boundary=iam.ManagedPolicy.from_managed_policy_arn(
            stack, "Boundary", optional["PermissionsBoundaryArn"]
        ),
    )
    CfnOutput(stack, "DelayQueueUrl", value=delay.delay_queue.queue_url)
    CfnOutput(stack, "ErrorQueueUrl", value=delay.error_queue.queue_url)
    CfnOutput(stack, "FunctionName", value=delay.function.function_name)
    if delay.store is not None:
        CfnOutput(stack, "StoreUrl", value=delay.store.url)
        CfnOutput(stack, "DispatcherName", value=delay.store.function.function_name)


def _with_choices(made: dict[str, Any]) -> dict[str, Any]:
    """What only holds where an optional parameter is given, and the numbers that are parameters."""
    made["Conditions"] = {
        f"Has{name}": {"Fn::Not": [{"Fn::Equals": [{"Ref": name}, ""]}]} for name in _OPTIONAL
    }
    for resource in made["Resources"].values():
        kind, given = resource["Type"], resource.get("Properties", {})
        if kind == "AWS::SQS::Queue":
            given["KmsMasterKeyId"] = _where("KmsKeyArn", given["KmsMasterKeyId"])
            given["SqsManagedSseEnabled"] = {"Fn::If": ["HasKmsKeyArn", _NO_VALUE, True]}
        elif kind == "AWS::DynamoDB::Table":
            specification = {"SSEEnabled": True}
            given["SSESpecification"] = {
                "Fn::If": ["HasKmsKeyArn", given["SSESpecification"], specification]
            }
        elif kind == "AWS::IAM::Policy":
            # Nothing but the key's use: all else is inline in the roles.
            resource["Condition"] = "HasKmsKeyArn"
        elif kind == "AWS::IAM::Role":
            boundary = given["PermissionsBoundary"]
            given["PermissionsBoundary"] = _where("PermissionsBoundaryArn", boundary)
        elif kind == "AWS::CloudWatch::Alarm":
            given["AlarmActions"] = _where("AlarmTopicArn", given["AlarmActions"])
        elif kind == "AWS::Logs::LogGroup":
            given["RetentionInDays"] = {"Ref": "LogRetentionDays"}
        elif kind == "AWS::Lambda::EventSourceMapping":
            given["ScalingConfig"]["MaximumConcurrency"] = {"Ref": "MaxConcurrency"}
        elif kind == "AWS::Lambda::Function":
            # A role is referred to, and its policy may not be there.
            waits_for = [each for each in resource.pop("DependsOn") if "Role" not in each]
            if waits_for:
                resource["DependsOn"] = waits_for
            if given.get("MemorySize") == DELAY_CONSUMER_MEMORY_MB:
                given["MemorySize"] = {"Ref": "MemoryMb"}
    return made


_NO_VALUE: Final = {"Ref": "AWS::NoValue"}


def _where(parameter: str, value: Any) -> dict[str, Any]:
    return {"Fn::If": [f"Has{parameter}", value, _NO_VALUE]}


def text(made: dict[str, Any]) -> str:
    """A template as it is committed."""
    return json.dumps(made, indent=2) + "\n"


def main() -> None:
    """Write every template into ``cloudformation/``."""
    for name in STORES:
        (FOLDER / f"{name}.template.json").write_text(text(template(name)), encoding="utf-8")


if __name__ == "__main__":
    main()
