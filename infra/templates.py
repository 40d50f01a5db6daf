"""``python -m infra.templates``: an endpoint's template with parameters, to deploy without the CDK.

It is what the CDK makes of the construct. No account has to be bootstrapped for it: the functions' archive
lies in a bucket that a parameter names. ``build/release/`` has both, for a release to carry.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs

from infra.local import ROOT
from sqsdelay.cdk import UnrestrictedDelay
from sqsdelay.cdk.function_code import functions_archive
from sqsdelay.cdk.queues_and_buckets import acknowledge

FOLDER: Final = ROOT / "build" / "release"
STORES: Final = {"sqsdelay": None, "sqsdelay-dynamodb": "dynamodb"}
"""The templates, and the store each deploys."""


def template(name: str) -> dict[str, Any]:
    """The template of that name, as CloudFormation takes it."""
    context = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    stack = cdk.Stack(
        cdk.App(context=context, analytics_reporting=False),
        name,
        description="Unrestricted delays for one Amazon SQS queue (sqsdelay)",
        synthesizer=cdk.DefaultStackSynthesizer(generate_bootstrap_version_rule=False),
    )

    def asked(parameter: str, description: str, **more: Any) -> str:
        return cdk.CfnParameter(stack, parameter, description=description, **more).value_as_string

    endpoint = asked(
        "Endpoint",
        "Name of the destination: a standard queue of this account and region",
        allowed_pattern="[A-Za-z0-9_-]{1,68}",
    )
    bucket = asked("CodeBucket", "S3 bucket with the functions' archive")
    key = asked(
        "CodeKey", "The archive's key; another one for each version", default="functions.zip"
    )
    topic = asked("AlarmTopicArn", "SNS topic that every alarm notifies; may be empty", default="")
    given = cdk.CfnCondition(
        stack, "HasAlarmTopic", expression=cdk.Fn.condition_not(cdk.Fn.condition_equals(topic, ""))
    )
    delay = UnrestrictedDelay(
        stack,
        "Delay",
        queue=sqs.Queue.from_queue_attributes(
            stack,
            "Destination",
            queue_name=endpoint,
            queue_arn=stack.format_arn(service="sqs", resource=endpoint),
            fifo=False,
        ),
        store=STORES[name],
        code=lambda_.Code.from_bucket(s3.Bucket.from_bucket_name(stack, "Code", bucket), key),
    )
    acknowledge(
        stack,
        "CloudFormation-Validate::F3033",
        reason="Without a topic the alarms have no actions: the property is left out, not empty.",
    )
    for each in delay.node.find_all():
        if isinstance(each, cloudwatch.CfnAlarm):
            actions = cdk.Fn.condition_if(given.logical_id, [topic], cdk.Aws.NO_VALUE)
            each.add_property_override("AlarmActions", actions)
    outputs = {
        "DelayQueueUrl": delay.delay_queue.queue_url,
        "ErrorQueueUrl": delay.error_queue.queue_url,
        "FunctionName": delay.function.function_name,
    }
    if delay.store is not None:
        outputs |= {
            "StoreUrl": delay.store.url,
            "DispatcherName": delay.store.function.function_name,
        }
    for output, value in outputs.items():
        cdk.CfnOutput(stack, output, value=value)
    made: dict[str, Any] = stack.node.root.synth().get_stack_by_name(name).template  # type: ignore[attr-defined]
    return made


def main(folder: Path = FOLDER) -> None:
    """Write the templates and the archive."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(functions_archive(), folder / "functions.zip")
    for name in STORES:
        # Without spaces it can be given to CloudFormation as it is, which takes 51,200 bytes.
        text = json.dumps(template(name), separators=(",", ":"))
        (folder / f"{name}.template.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
