"""What ``largeBodies=true`` adds to an endpoint, and what its grants are good for."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template

from sqsdelay import DelaySender
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from sqsdelay.core.limits import MAX_MESSAGE_BYTES
from sqsdelay.s3 import BodyReader, Bucket
from tests.infra.conftest import Calls, Templates, actions, logical_id, only, policies
from tests.services.endpoints import in_queue

LARGE = "x" * (MAX_MESSAGE_BYTES + 1)


def granted(template: Template) -> dict[str, str]:
    """Every S3 action granted, and whether on the bucket or on what is in it."""
    return {
        action: "bodies" if "/*" in str(statement["Resource"]) else "bucket"
        for statement in policies(template)
        for action in actions([statement], "s3")
    }


@pytest.fixture
def template(endpoint_template: Templates) -> Template:
    """Endpoint `orders` with a bucket."""
    return endpoint_template(large_bodies=True)


def test_bucket_adds_and_changes_nothing_else(
    endpoint_template: Templates, template: Template
) -> None:
    """The function only passes pointers on: its role and environment stay as they are."""
    without = endpoint_template(large_bodies=False).to_json()["Resources"]
    resources = template.to_json()["Resources"]
    assert {name: resources[name] for name in without} == without
    added = {resources[name]["Type"] for name in set(resources) - set(without)}
    assert added == {"AWS::S3::Bucket", "AWS::S3::BucketPolicy"}


def test_nothing_deletes_a_body(template: Template) -> None:
    """No lifecycle rule, and no helper that empties the bucket when the stack goes."""
    assert "LifecycleConfiguration" not in only(template, "AWS::S3::Bucket")["Properties"]
    template.resource_count_is("Custom::S3AutoDeleteObjects", 0)


def test_output_names_the_bucket(template: Template) -> None:
    """Its name is made up by CloudFormation, and is what senders need."""
    bucket = logical_id(template, "AWS::S3::Bucket")
    assert template.find_outputs("BodyBucketName")["BodyBucketName"]["Value"] == {"Ref": bucket}


@pytest.fixture
def delay(stack: Stack) -> UnrestrictedDelay:
    """Unrestricted delays with a bucket, in somebody's app."""
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    return UnrestrictedDelay(stack, "Delay", queue=orders, large_bodies=True)


def large_message() -> dict[str, Any]:
    """A message with a large body, sent and received."""
    # Not of the session that counts.
    boto3.Session().client("s3").create_bucket(Bucket="bodies")
    client = boto3.client("sqs")
    DelaySender(client, large_bodies=Bucket("bodies")).send("orders", LARGE)
    [message] = in_queue(client, "orders")
    return message


def test_grant_send_covers_every_call_on_the_bucket(
    stack: Stack, delay: UnrestrictedDelay, calls: Calls
) -> None:
    """What sending a large body asks of S3 is what is granted."""
    delay.grant_send(iam.User(stack, "Producer"))
    large_message()
    grants = granted(Template.from_stack(stack))
    assert grants == {"s3:GetLifecycleConfiguration": "bucket", "s3:PutObject": "bodies"}
    assert calls.of("s3") == set(grants)


def test_grant_fetch_covers_every_call_on_the_bucket(
    stack: Stack, delay: UnrestrictedDelay, calls: Calls
) -> None:
    """Reading and deleting a body; and to be told that one is gone, which S3 keeps from others."""
    assert delay.body_bucket is not None
    delay.body_bucket.grant_fetch(iam.User(stack, "Receiver"))
    message = large_message()
    calls.made.clear()
    reader = BodyReader("bodies")
    assert reader.read(message["Body"], message["MessageAttributes"]) == LARGE
    reader.delete(message["Body"], message["MessageAttributes"])
    grants = granted(Template.from_stack(stack))
    assert grants == {
        "s3:DeleteObject": "bodies",
        "s3:GetObject": "bodies",
        "s3:ListBucket": "bucket",
    }
    assert calls.of("s3") | {"s3:ListBucket"} == set(grants)
