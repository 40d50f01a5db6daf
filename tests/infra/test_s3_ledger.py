"""What ``ledger=s3`` adds to an endpoint: a stream that its functions fill, and the stream's bucket."""

from __future__ import annotations

from typing import Any

import pytest
from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template

from sqsdelay.cdk import function_names
from sqsdelay.cdk.ledger import BUFFERED_SECONDS, LATE_SECONDS
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay
from sqsdelay.errors import ConfigurationError
from tests.infra.conftest import KEY, Templates, logical_id, only, working

STREAM = "AWS::KinesisFirehose::DeliveryStream"


def stream(template: Template) -> dict[str, Any]:
    return dict(only(template, STREAM)["Properties"])


def statement(template: Template, role: dict[str, Any], sid: str) -> dict[str, Any]:
    """The one with that name of a role's own policy."""
    roles = template.find_resources("AWS::IAM::Role")
    [policy] = roles[role["Fn::GetAtt"][0]]["Properties"]["Policies"]
    [found] = [s for s in policy["PolicyDocument"]["Statement"] if s.get("Sid") == sid]
    return dict(found)


@pytest.mark.parametrize("store", ["dynamodb", "s3"])
def test_both_functions_put_events_into_the_stream(
    endpoint_template: Templates, store: str
) -> None:
    """By the variable they read, allowed that and no other call; what they leave in their logs is counted."""
    template = endpoint_template(store=store, ledger="s3")
    made = logical_id(template, STREAM)
    functions = working(template, "AWS::Lambda::Function").values()
    told = {
        each["Properties"]["Handler"]: each["Properties"]["Environment"]["Variables"][
            function_names.LEDGER_VARIABLE
        ]
        for each in functions
    }
    setting = {"Fn::Join": ["", ["firehose://", {"Ref": made}]]}
    assert told == {
        function_names.CONSUMER_HANDLER: setting,
        function_names.DISPATCHER_HANDLER: setting,
    }
    for each in functions:
        record = statement(template, each["Properties"]["Role"], "Record")
        assert record["Action"] == "firehose:PutRecord"
        assert record["Resource"] == {"Fn::GetAtt": [made, "Arn"]}
    filters = working(template, "AWS::Logs::MetricFilter").values()
    logs = {each["Properties"]["LoggingConfig"]["LogGroup"]["Ref"] for each in functions}
    assert {each["Properties"]["LogGroupName"]["Ref"] for each in filters} == logs
    assert {each["Properties"]["FilterPattern"] for each in filters} == {'{ $.message = "ledger" }'}


def test_objects_are_lines_by_day_in_the_endpoints_folder(endpoint_template: Templates) -> None:
    """What could not be delivered as it is lies elsewhere, where no report reads it as a ledger."""
    template = endpoint_template(ledger="s3")
    made = stream(template)
    target = made["ExtendedS3DestinationConfiguration"]
    assert made["DeliveryStreamType"] == "DirectPut"
    assert made["DeliveryStreamEncryptionConfigurationInput"] == {"KeyType": "AWS_OWNED_CMK"}
    assert target["Prefix"] == "ledger/orders/day=!{timestamp:yyyy-MM-dd}/"
    assert target["ErrorOutputPrefix"].startswith("ledger-errors/orders/")
    assert target["CompressionFormat"] == "GZIP"
    assert target["BufferingHints"]["IntervalInSeconds"] == BUFFERED_SECONDS
    bucket = logical_id(template, "AWS::S3::Bucket")
    assert target["BucketARN"] == {"Fn::GetAtt": [bucket, "Arn"]}
    deliver = statement(template, target["RoleARN"], "Deliver")
    below = [resource["Fn::Join"][1][1] for resource in deliver["Resource"]]
    assert set(below) == {"/ledger/orders/*", "/ledger-errors/orders/*"}
    assert not [action for action in deliver["Action"] if "Delete" in action]


def test_the_bucket_is_kept(endpoint_template: Templates) -> None:
    """No rule deletes what a ledger of years is for."""
    template = endpoint_template(ledger="s3")
    bucket = only(template, "AWS::S3::Bucket")
    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"
    rules = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert not [rule for rule in rules if "ExpirationInDays" in rule]


def test_alarms_for_a_ledger_that_stays_behind(endpoint_template: Templates) -> None:
    """Not delivered, or only in the logs, where it is lost with them."""
    template = endpoint_template(ledger="s3")
    late = only(
        template, "AWS::CloudWatch::Alarm", MetricName="DeliveryToS3.DataFreshness"
    )["Properties"]  # fmt: skip
    assert late["Dimensions"][0]["Value"] == {"Ref": logical_id(template, STREAM)}
    assert late["Threshold"] == LATE_SECONDS
    left = only(template, "AWS::CloudWatch::Alarm", MetricName="LedgerInLog")["Properties"]
    assert left["Dimensions"] == [{"Name": "service", "Value": "orders-ledger"}]
    assert left["TreatMissingData"] == "notBreaching"


def test_endpoints_share_a_bucket_in_folders_of_their_own(endpoint_template: Templates) -> None:
    """The stack makes none; no stream may write into another endpoint's folder."""
    folders = []
    for name in ("orders", "orders-2", "orders.fifo"):
        template = endpoint_template(name, ledger="s3", ledger_bucket="ledgers")
        assert not working(template, "AWS::S3::Bucket")
        target = stream(template)["ExtendedS3DestinationConfiguration"]
        assert target["BucketARN"]["Fn::Join"][1][-1] == ":s3:::ledgers"
        folders.append(target["Prefix"])
        deliver = statement(template, target["RoleARN"], "Deliver")
        written = [resource["Fn::Join"][1][-1] for resource in deliver["Resource"]]
        assert f":s3:::ledgers/ledger/{name}/*" in written
        outputs = template.find_outputs("LedgerUrl")
        assert outputs["LedgerUrl"]["Value"] == f"s3://ledgers/ledger/{name}/"
    assert len(set(folders)) == 3


@pytest.mark.parametrize("bucket", [None, "ledgers"])
def test_stream_and_bucket_are_under_the_key(
    endpoint_template: Templates, bucket: str | None
) -> None:
    """Before the stream is made, its role may use the key; for a bucket that exists, too."""
    template = endpoint_template(ledger="s3", ledger_bucket=bucket, kms_key_arn=KEY)
    encryption = stream(template)["DeliveryStreamEncryptionConfigurationInput"]
    assert encryption == {"KeyType": "CUSTOMER_MANAGED_CMK", "KeyARN": KEY}
    role = stream(template)["ExtendedS3DestinationConfiguration"]["RoleARN"]["Fn::GetAtt"][0]
    policies = template.find_resources("AWS::IAM::Policy")
    [(name, policy)] = [
        (name, each["Properties"])
        for name, each in policies.items()
        if each["Properties"]["Roles"] == [{"Ref": role}]
    ]
    [used] = policy["PolicyDocument"]["Statement"]
    assert used["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
    assert name in only(template, STREAM)["DependsOn"]
    for each in working(template, "AWS::S3::Bucket").values():
        [rule] = each["Properties"]["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] == KEY


def test_a_receiver_may_be_granted_to_record(stack: Stack) -> None:
    """One call on one stream."""
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    delay = UnrestrictedDelay(stack, "Delay", queue=orders, ledger="s3")
    assert delay.ledger is not None
    delay.ledger.grant_record(iam.User(stack, "Receiver"))
    template = Template.from_stack(stack)
    [policy] = template.find_resources("AWS::IAM::Policy").values()
    [granted] = policy["Properties"]["PolicyDocument"]["Statement"]
    assert (granted["Action"], granted["Effect"]) == ("firehose:PutRecord", "Allow")
    assert granted["Resource"] == {"Fn::GetAtt": [logical_id(template, STREAM), "Arn"]}


def test_no_ledger_without_being_asked(endpoint_template: Templates, stack: Stack) -> None:
    """Nor elsewhere than asked: a wrong name, or a bucket for what is in no bucket."""
    assert not working(endpoint_template(ledger=True), STREAM)
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    with pytest.raises(ConfigurationError, match="ledger='S3'; use 's3' for a bucket"):
        UnrestrictedDelay(stack, "Typed", queue=orders, ledger="S3")
    ledgers = s3.Bucket(stack, "Ledgers")
    with pytest.raises(ConfigurationError, match="for ledger='s3'; add that"):
        UnrestrictedDelay(stack, "InLogs", queue=orders, ledger=True, ledger_bucket=ledgers)
