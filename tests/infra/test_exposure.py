"""Who can reach a deployed endpoint, and with what: the statements of SECURITY.md about a stack."""

from __future__ import annotations

from typing import Any

import pytest
from aws_cdk.assertions import Template

from sqsdelay.cdk import function_names
from tests.acceptance.iam.grants import granted, listed
from tests.infra.conftest import Templates

VARIABLES = {
    function_names.ENDPOINT_VARIABLE,
    function_names.HOP_SECONDS_VARIABLE,
    function_names.STORE_VARIABLE,
    function_names.LEDGER_VARIABLE,
}


@pytest.fixture(params=["orders", "orders.fifo"])
def template(endpoint_template: Templates, request: pytest.FixtureRequest) -> Template:
    """Endpoints of both kinds, with all that can be deployed."""
    return endpoint_template(request.param, store="dynamodb", large_bodies=True, ledger=True)


def properties(template: Template, kind: str) -> dict[str, dict[str, Any]]:
    found = template.find_resources(kind)
    assert found, kind
    return {name: resource.get("Properties", {}) for name, resource in found.items()}


def test_queues_are_encrypted_and_their_policies_only_deny(template: Template) -> None:
    """Each queue has SSE-SQS and one policy, which refuses plain HTTP and lets nobody in."""
    queues = properties(template, "AWS::SQS::Queue")
    assert all(queue["SqsManagedSseEnabled"] for queue in queues.values())
    covered = []
    for policy in properties(template, "AWS::SQS::QueuePolicy").values():
        [statement] = policy["PolicyDocument"]["Statement"]
        assert (statement["Effect"], statement["Action"]) == ("Deny", "sqs:*")
        assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        covered += [queue["Ref"] for queue in policy["Queues"]]
    assert sorted(covered) == sorted(queues)


def test_only_the_schedule_may_invoke_a_function(template: Template) -> None:
    """The dispatcher by its own rule; the delay consumer by nobody, for event sources poll."""
    [permission] = properties(template, "AWS::Lambda::Permission").values()
    [rule] = properties(template, "AWS::Events::Rule")
    assert permission["Principal"] == "events.amazonaws.com"
    assert permission["SourceArn"] == {"Fn::GetAtt": [rule, "Arn"]}
    assert "Dispatcher" in str(permission["FunctionName"])


def test_roles_are_lambdas_and_name_what_they_may(template: Template) -> None:
    """No wildcard action, no wildcard resource, no managed policy, no other principal."""
    roles = properties(template, "AWS::IAM::Role")
    assert len(roles) == 3
    for role in roles.values():
        [trust] = role["AssumeRolePolicyDocument"]["Statement"]
        assert trust["Principal"] == {"Service": "lambda.amazonaws.com"}
        assert "ManagedPolicyArns" not in role
        [policy] = role["Policies"]
        document = policy["PolicyDocument"]
        for statement in document["Statement"]:
            statement["Resource"] = [str(arn) for arn in listed(statement["Resource"])]
        assert granted(document)
    assert not template.find_resources("AWS::IAM::Policy")


def test_functions_are_told_no_secret(template: Template) -> None:
    """Names and numbers are all that their environment holds."""
    for function in properties(template, "AWS::Lambda::Function").values():
        assert set(function.get("Environment", {}).get("Variables", {})) <= VARIABLES


def test_logs_end(template: Template) -> None:
    """Message ids in them are not kept for ever."""
    groups = properties(template, "AWS::Logs::LogGroup").values()
    assert [group["RetentionInDays"] for group in groups] == [30, 30, 30]


def test_tables_are_encrypted(template: Template) -> None:
    """With the AWS-managed key."""
    [table] = properties(template, "AWS::DynamoDB::Table").values()
    assert table["SSESpecification"] == {"SSEEnabled": True}


@pytest.mark.parametrize("part", [{"large_bodies": True}, {"store": "s3"}, {"ledger": "s3"}])
def test_buckets_are_private_and_encrypted_and_refuse_plain_http(
    endpoint_template: Templates, part: dict[str, Any]
) -> None:
    """Nobody outside the account, nothing in the clear."""
    template = endpoint_template(**part)
    [bucket] = properties(template, "AWS::S3::Bucket").values()
    assert bucket["PublicAccessBlockConfiguration"] == dict.fromkeys(
        ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True
    )
    [policy] = properties(template, "AWS::S3::BucketPolicy").values()
    [statement] = policy["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    [rule] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
