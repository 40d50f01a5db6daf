"""Keys, network, memory, logs, traces and roles as an account wants them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template

from infra.context import KEYS, RETENTION, Deployment
from infra.endpoint_stack import stack_name
from sqsdelay.cdk import FunctionSettings, UnrestrictedDelay
from sqsdelay.cdk.functions import IN_A_VPC
from sqsdelay.cdk.queues_and_buckets import USE_KEY
from sqsdelay.cdk.stores import USE_TABLE
from sqsdelay.cdk.unrestricted_delay import STORES
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError
from tests.infra.conftest import BOUNDARY, GROUP, KEY, SUBNET, WANTED, Templates


def properties(template: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Of each resource of a kind."""
    found = template["Resources"].items()
    return {name: each["Properties"] for name, each in found if each["Type"] == kind}


def uses_of_the_key(template: Mapping[str, Any]) -> dict[str, set[str]]:
    """What each role may do with it."""
    found: dict[str, set[str]] = {}
    for policy in properties(template, "AWS::IAM::Policy").values():
        for statement in policy["PolicyDocument"]["Statement"]:
            if statement["Resource"] == KEY:
                [role] = policy["Roles"]
                found.setdefault(role["Ref"], set()).update(statement["Action"])
    return found


def test_everything_as_the_account_wants_it(all_there_is: Path) -> None:
    """Nothing of the endpoint is under another key, role or network."""
    stack = stack_name(Endpoint.parse(WANTED["endpoint"]))
    template = json.loads((all_there_is / f"{stack}.template.json").read_text())
    queues = properties(template, "AWS::SQS::Queue").values()
    assert len(queues) == 5
    assert {queue["KmsMasterKeyId"] for queue in queues} == {KEY}
    [table] = properties(template, "AWS::DynamoDB::Table").values()
    assert table["SSESpecification"] == {
        "KMSMasterKeyId": KEY,
        "SSEEnabled": True,
        "SSEType": "KMS",
    }
    [bucket] = properties(template, "AWS::S3::Bucket").values()
    [rule] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] == KEY
    roles = properties(template, "AWS::IAM::Role")
    assert {role["PermissionsBoundary"] for role in roles.values()} == {BOUNDARY}
    logs = properties(template, "AWS::Logs::LogGroup").values()
    assert {log["RetentionInDays"] for log in logs} == {365}
    uses = uses_of_the_key(template)
    assert len(uses) == 2, "the consumer and the dispatcher; the removal guard sees no message"
    assert all(set(USE_KEY) | set(USE_TABLE) == allowed for allowed in uses.values())
    functions = properties(template, "AWS::Lambda::Function")
    memory = []
    for name, function in functions.items():
        if "RemovalGuard" in name:
            assert "VpcConfig" not in function
            continue
        memory.append(function["MemorySize"])
        assert function["TracingConfig"] == {"Mode": "Active"}
        assert function["VpcConfig"] == {
            "SecurityGroupIds": [GROUP],
            "SubnetIds": [f"{SUBNET}1", f"{SUBNET}2"],
        }
        role = roles[function["Role"]["Fn::GetAtt"][0]]
        statements = role["Policies"][0]["PolicyDocument"]["Statement"]
        [network] = [each for each in statements if each["Sid"] == "Network"]
        assert set(network["Action"]) == set(IN_A_VPC)
    assert min(memory) == 512


def test_schedules_send_under_the_key(endpoint_template: Templates) -> None:
    """EventBridge Scheduler's role may use the key of the queues it sends to, as both functions may."""
    template = endpoint_template(store="scheduler", kms_key_arn=KEY).to_json()
    uses = uses_of_the_key(template)
    assert len(uses) == 3
    assert all(allowed == set(USE_KEY) for allowed in uses.values())


def test_an_s3_store_is_under_the_key(endpoint_template: Templates) -> None:
    """Its bucket and the parking queue; the consumer and the dispatcher may use it for both."""
    template = endpoint_template(store="s3", kms_key_arn=KEY).to_json()
    queues = properties(template, "AWS::SQS::Queue").values()
    assert {queue["KmsMasterKeyId"] for queue in queues} == {KEY}
    assert any("parking" in json.dumps(queue["QueueName"]) for queue in queues)
    [bucket] = properties(template, "AWS::S3::Bucket").values()
    [rule] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] == KEY
    uses = uses_of_the_key(template)
    assert len(uses) == 2
    assert all(allowed == set(USE_KEY) for allowed in uses.values())


@pytest.mark.parametrize("store", ["dynamodb", "s3", "scheduler"])
def test_the_key_is_used_by_way_of_services_alone(endpoint_template: Templates, store: str) -> None:
    """Whoever takes a role's credentials cannot call KMS with them, and decrypt what lies elsewhere."""
    template = endpoint_template(store=store, large_bodies=True, ledger="s3", kms_key_arn=KEY)
    used: dict[str, set[str]] = {}
    for name, policy in properties(template.to_json(), "AWS::IAM::Policy").items():
        if "SendForHelp" in name:
            continue
        [role] = policy["Roles"]
        for statement in policy["PolicyDocument"]["Statement"]:
            assert statement["Resource"] == KEY
            via = statement["Condition"]["StringEquals"]["kms:ViaService"]
            for service in [via] if isinstance(via, dict) else via:
                name, region, domain = service["Fn::Join"][1]
                assert (region, domain) == ({"Ref": "AWS::Region"}, ".amazonaws.com")
                used.setdefault(role["Ref"].rpartition("Role")[0], set()).add(name.rstrip("."))
    functions = {"sqs"} if store == "scheduler" else {"sqs", store}
    roles = {"DelayDelayConsumer": functions, "DelayLedger": {"s3", "firehose"}}
    places = {"dynamodb": "StoreDispatcher", "s3": "S3StoreDispatcher", "scheduler": "Schedules"}
    roles[f"Delay{places[store]}"] = functions
    if store == "scheduler":
        roles["DelaySchedulesDispatcher"] = functions
    assert used == roles
    inline = properties(template.to_json(), "AWS::IAM::Role").values()
    assert "kms:" not in json.dumps([role.get("Policies") for role in inline])


@pytest.mark.parametrize("store", STORES)
def test_others_are_granted_the_key_by_way_of_services_alone(stack: Stack, store: str) -> None:
    """Senders, receivers and keepers, where the key is made beside the endpoint."""
    key, role = kms.Key(stack, "Key"), iam.Role(stack, "Them", assumed_by=iam.AnyPrincipal())
    queue = sqs.Queue(stack, "Queue", queue_name="orders", encryption_master_key=key)
    delay = UnrestrictedDelay(
        stack, "Delay", queue=queue, store=store, large_bodies=True, ledger="s3", encryption_key=key
    )
    place = delay.store or delay.s3_store or delay.schedules
    assert place is not None
    assert delay.body_bucket is not None
    delay.grant_send(role)
    place.grant_store(role)
    delay.body_bucket.grant_offload(role)
    delay.body_bucket.grant_fetch(role)
    policies = properties(Template.from_stack(stack).to_json(), "AWS::IAM::Policy")
    assert any("Them" in name for name in policies)
    statements = [s for p in policies.values() for s in p["PolicyDocument"]["Statement"]]
    on_the_key = [each for each in statements if "kms:" in str(each["Action"])]
    assert len(on_the_key) > 3
    assert all("kms:ViaService" in str(each.get("Condition")) for each in on_the_key)


def test_nothing_given_changes_nothing(endpoint_template: Templates) -> None:
    """No network, no traces, a month of logs, the services' own keys, and no policy beside the roles'."""
    template = endpoint_template(store="dynamodb", large_bodies=True).to_json()
    assert not properties(template, "AWS::IAM::Policy")
    for function in properties(template, "AWS::Lambda::Function").values():
        assert not {"VpcConfig", "TracingConfig"} & set(function)
    assert "KmsMasterKeyId" not in json.dumps(template)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kmsKeyArn": "alias/mine"}, r"kmsKeyArn='alias/mine'; write arn:aws:kms:REGION"),
        ({"permissionsBoundaryArn": "B"}, r"permissionsBoundaryArn='B'; write arn:aws:iam::"),
        (
            {"vpcId": "vpc-01234567"},
            r"vpcId alone; a network takes vpcId, subnetIds and securityGroupIds",
        ),
        ({"subnetIds": "subnet-1;subnet-2"}, r"write subnet-ID,subnet-ID"),
        ({"memoryMb": "64"}, r"memoryMb='64'; use whole MB, 128 to 10240"),
        ({"memoryMb": "1e3"}, r"memoryMb='1e3'; use whole MB"),
        ({"logRetentionDays": "31"}, r"logRetentionDays='31'; use one of 1, 3, 7"),
        ({"tracing": "on"}, r"tracing='on'; use true"),
    ],
)
def test_what_cannot_be_used_is_told(given: dict[str, str], words: str) -> None:
    """The value, and what to write."""
    with pytest.raises(ConfigurationError, match=words):
        Deployment.read(given.get)


def test_the_construct_checks_too(stack: Stack) -> None:
    """Memory out of range; subnets of no network."""
    with pytest.raises(ConfigurationError, match="memory_mb=1; use 128 to 10240"):
        FunctionSettings(memory_mb=1)
    subnet = ec2.Subnet.from_subnet_id(stack, "Subnet", "subnet-1")
    with pytest.raises(ConfigurationError, match="give vpc too"):
        FunctionSettings(subnets=ec2.SubnetSelection(subnets=[subnet]))


def test_each_key_of_the_guide() -> None:
    """docs/deploy.md names every key; the retentions are days that CloudWatch Logs takes."""
    guide = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    assert [key for key in KEYS if f"`{key}=" not in guide] == []
    assert all(int(days) > 0 for days in RETENTION)
