"""What ``largeBodies=true`` adds to an endpoint, and what its grants are good for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template
from moto import mock_aws

from sqsdelay import DelaySender
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_MESSAGE_BYTES
from sqsdelay.s3 import BodyReader, Bucket
from sqsdelay.sqs import create_endpoint
from tests.infra.conftest import Templates, logical_id, only

LARGE = "x" * (MAX_MESSAGE_BYTES + 1)
ACTIONS = {
    "PutObject": "s3:PutObject",
    "GetObject": "s3:GetObject",
    "DeleteObject": "s3:DeleteObject",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
}
"""The IAM action of each call. Source: service authorization reference, list_amazons3.html."""


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


def test_bucket_is_private_encrypted_and_refuses_plain_http(template: Template) -> None:
    """Nobody outside the account, nothing in the clear."""
    properties = only(template, "AWS::S3::Bucket")["Properties"]
    assert properties["PublicAccessBlockConfiguration"] == dict.fromkeys(
        ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True
    )
    [rule] = properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule == {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    policy = only(template, "AWS::S3::BucketPolicy")["Properties"]["PolicyDocument"]
    [statement] = policy["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_nothing_deletes_a_body(template: Template) -> None:
    """No lifecycle rule, and no helper that empties the bucket when the stack goes."""
    assert "LifecycleConfiguration" not in only(template, "AWS::S3::Bucket")["Properties"]
    template.resource_count_is("Custom::S3AutoDeleteObjects", 0)


@pytest.mark.parametrize(
    ("policy", "expected"), [(RemovalPolicy.RETAIN, "Retain"), (RemovalPolicy.DESTROY, "Delete")]
)
def test_bucket_goes_with_the_queues(
    endpoint_template: Templates, policy: RemovalPolicy, expected: str
) -> None:
    """Bodies stay where their messages stay."""
    bucket = only(endpoint_template(large_bodies=True, removal_policy=policy), "AWS::S3::Bucket")
    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == expected


def test_output_names_the_bucket(template: Template) -> None:
    """Its name is made up by CloudFormation, and is what senders need."""
    bucket = logical_id(template, "AWS::S3::Bucket")
    assert template.find_outputs("BodyBucketName")["BodyBucketName"]["Value"] == {"Ref": bucket}


def granted(template: Template) -> dict[str, str]:
    """Every S3 action granted, and whether on the bucket or on what is in it."""
    found: dict[str, str] = {}
    for policy in template.find_resources("AWS::IAM::Policy").values():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            actions = statement["Action"]
            for action in [actions] if isinstance(actions, str) else actions:
                if action.startswith("s3:"):
                    inside = "/*" in str(statement["Resource"])
                    found[action] = "bodies" if inside else "bucket"
    return found


@pytest.fixture
def delay(stack: Stack) -> UnrestrictedDelay:
    """Unrestricted delays with a bucket, in somebody's app."""
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    return UnrestrictedDelay(stack, "Delay", queue=orders, large_bodies=True)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The IAM actions of every call on S3 in the test's own account."""
    actions: set[str] = set()

    def record(params: dict[str, Any], model: Any, **_: Any) -> None:
        actions.add(ACTIONS[model.name])

    with mock_aws():
        session = boto3.Session()
        session.events.register("provide-client-params.s3", record)
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)
        yield actions


def large_message() -> dict[str, Any]:
    """A message with a large body, sent and received."""
    # Not of the session that counts.
    boto3.Session().client("s3").create_bucket(Bucket="bodies")
    client = boto3.client("sqs")
    create_endpoint(client, Endpoint.parse("orders"))
    DelaySender(client, large_bodies=Bucket("bodies")).send("orders", LARGE)
    url = client.get_queue_url(QueueName="orders")["QueueUrl"]
    [message] = client.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    return dict(message)


def test_grant_send_covers_every_call_on_the_bucket(
    stack: Stack, delay: UnrestrictedDelay, called: set[str]
) -> None:
    """What sending a large body asks of S3 is what is granted."""
    delay.grant_send(iam.User(stack, "Producer"))
    large_message()
    grants = granted(Template.from_stack(stack))
    assert grants == {"s3:GetLifecycleConfiguration": "bucket", "s3:PutObject": "bodies"}
    assert called == set(grants)


def test_grant_fetch_covers_every_call_on_the_bucket(
    stack: Stack, delay: UnrestrictedDelay, called: set[str]
) -> None:
    """Reading and deleting a body; and to be told that one is gone, which S3 keeps from others."""
    assert delay.body_bucket is not None
    delay.body_bucket.grant_fetch(iam.User(stack, "Receiver"))
    message = large_message()
    called.clear()
    reader = BodyReader("bodies")
    assert reader.read(message["Body"], message["MessageAttributes"]) == LARGE
    reader.delete(message["Body"], message["MessageAttributes"])
    grants = granted(Template.from_stack(stack))
    assert grants == {
        "s3:DeleteObject": "bodies",
        "s3:GetObject": "bodies",
        "s3:ListBucket": "bucket",
    }
    assert called | {"s3:ListBucket"} == set(grants)


def test_no_bucket_unless_asked_for(stack: Stack) -> None:
    """Bodies up to 1 MiB need none, and sending is granted none."""
    delay = UnrestrictedDelay(stack, "Delay", queue=sqs.Queue(stack, "Orders"))
    delay.grant_send(iam.User(stack, "Producer"))
    template = Template.from_stack(stack)
    assert delay.body_bucket is None
    template.resource_count_is("AWS::S3::Bucket", 0)
    assert granted(template) == {}
