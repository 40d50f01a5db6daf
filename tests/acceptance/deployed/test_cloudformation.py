"""The committed template, deployed by CloudFormation alone: no CDK, no checkout, archives in a bucket."""

from __future__ import annotations

from pathlib import Path

from infra.cloudformation import FOLDER
from sqsdelay import DelaySender
from sqsdelay.lambdas.function_code import write_archives
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployed.test_with_store import dispatch, sqsdelay
from tests.acceptance.deployment import receive
from tests.patience import PATIENCE_SECONDS


def test_a_stack_with_a_store_delivers(aws: LocalAws, tmp_path: Path) -> None:
    """A message hops and arrives; one that is parked is released by the stack's dispatcher."""
    sqs, s3, formation = aws.client("sqs"), aws.client("s3"), aws.client("cloudformation")
    queue_url = sqs.create_queue(QueueName="plain")["QueueUrl"]
    s3.create_bucket(Bucket="codes")
    for archive in write_archives(tmp_path):
        s3.upload_file(str(archive), "codes", f"sqsdelay-0.1.0/{archive.name}")
    given = {"Endpoint": "plain", "CodeBucket": "codes", "CodePrefix": "sqsdelay-0.1.0/"}
    formation.create_stack(
        StackName="plain-delay",
        TemplateBody=(FOLDER / "sqsdelay-dynamodb.template.json").read_text(),
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()],
        Capabilities=["CAPABILITY_IAM"],
    )
    formation.get_waiter("stack_create_complete").wait(
        StackName="plain-delay", WaiterConfig={"Delay": 1, "MaxAttempts": int(PATIENCE_SECONDS)}
    )
    [stack] = formation.describe_stacks(StackName="plain-delay")["Stacks"]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    # The template's hop is 900 s: too long to watch.
    sqs.set_queue_attributes(QueueUrl=outputs["DelayQueueUrl"], Attributes={"DelaySeconds": "1"})
    DelaySender(sqs, hop_seconds=1).send("plain", "hopped", delay=4)
    past = ("--due-at", "2020-01-01T00:00:00Z")
    to_store = ("store", "send", "plain", "--store", outputs["StoreUrl"])
    sqsdelay(aws, *to_store, "--body", "stored", *past)
    dispatch(aws, outputs)
    arrived = [message["Body"] for message in receive(aws, queue_url, count=2)]
    assert sorted(arrived) == ["hopped", "stored"]
