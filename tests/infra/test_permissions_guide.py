"""docs/permissions.md: its policies are those that are deployed and tried."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template

from infra.local import ROOT
from sqsdelay.cdk.unrestricted_delay import UnrestrictedDelay

GUIDE = (ROOT / "docs" / "permissions.md").read_text()
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ACCOUNT = "REGION:ACCOUNT"

WORDS = {"AWS::Partition": "aws", "AWS::Region": "REGION", "AWS::AccountId": "ACCOUNT"}
"""What the guide calls them."""

Grants = set[tuple[str, str]]


def documented(section: str) -> Grants:
    """Action and resource of every grant in a section's policy."""
    text = dict(SECTION.findall(GUIDE))[section]
    [policy] = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    return set(grants(json.loads(policy), {}))


def grants(policy: dict[str, Any], arns: dict[str, str]) -> Iterator[tuple[str, str]]:
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        for action in listed(statement["Action"]):
            for resource in listed(statement["Resource"]):
                yield action, resource if isinstance(resource, str) else written(resource, arns)


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def written(resource: dict[str, Any], arns: dict[str, str]) -> str:
    """A template's expression of an ARN as text."""
    if "Ref" in resource:
        return WORDS.get(resource["Ref"], str(resource["Ref"]))
    if "Fn::GetAtt" in resource:
        return arns[resource["Fn::GetAtt"][0]]
    _, parts = resource["Fn::Join"]
    return "".join(part if isinstance(part, str) else written(part, arns) for part in parts)


def deployed_with(store: str, stack: Stack) -> dict[str, Grants]:
    """The same with messages parked there."""
    orders = sqs.Queue(stack, "Orders", queue_name="orders")
    delay = UnrestrictedDelay(stack, "Delay", queue=orders, store=store)
    place = delay.s3_store or delay.schedules
    assert place is not None
    place.grant_store(iam.User(stack, "Keeper"))
    return synthesised(stack)


def deployed(stack: Stack, endpoint: str) -> dict[str, Grants]:
    """The grants of the roles, less their logs, and of users with one helper's grants each."""
    fifo = True if endpoint.endswith(".fifo") else None
    orders = sqs.Queue(stack, "Orders", queue_name=endpoint, fifo=fifo)
    delay = UnrestrictedDelay(stack, "Delay", queue=orders, store="dynamodb", large_bodies=True)
    assert delay.store is not None
    assert delay.body_bucket is not None
    delay.grant_send(iam.User(stack, "Producer"))
    delay.store.grant_store(iam.User(stack, "Keeper"))
    delay.body_bucket.grant_fetch(iam.User(stack, "Receiver"))
    return synthesised(stack)


def synthesised(stack: Stack) -> dict[str, Grants]:
    resources = Template.from_stack(stack).to_json()["Resources"]
    arns = dict(all_arns(resources))
    found: dict[str, Grants] = {}
    for name, resource in resources.items():
        properties = resource.get("Properties", {})
        for policy in properties.get("Policies", ()):
            found[name[:-8]] = set(grants(policy["PolicyDocument"], arns))
        if resource["Type"] == "AWS::IAM::Policy" and "Users" in properties:
            [user] = properties["Users"]
            found[user["Ref"][:-8]] = set(grants(properties["PolicyDocument"], arns))
    return {
        name: {grant for grant in each if not grant[0].startswith("logs:")}
        for name, each in found.items()
    }


def all_arns(resources: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, resource in resources.items():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::SQS::Queue":
            yield name, f"arn:aws:sqs:{ACCOUNT}:{properties['QueueName']}"
        elif resource["Type"] == "AWS::DynamoDB::Table":
            yield name, f"arn:aws:dynamodb:{ACCOUNT}:table/{properties['TableName']}"
        elif resource["Type"] == "AWS::S3::Bucket":
            yield name, "arn:aws:s3:::BUCKET"
        elif resource["Type"] == "AWS::Logs::LogGroup":
            yield name, "log"
        elif resource["Type"] == "AWS::Scheduler::ScheduleGroup":
            yield name, f"arn:aws:scheduler:{ACCOUNT}:schedule-group/{properties['Name']}"
        elif resource["Type"] == "AWS::IAM::Role":
            yield name, "arn:aws:iam::ACCOUNT:role/SCHEDULER-ROLE"


def test_the_guides_policies_are_those_deployed(stack: Stack) -> None:
    """Word for word what the stack and its helpers grant, so what is tried with IAM enforced."""
    assert deployed(stack, "orders") == {
        "DelayDelayConsumerRole": documented("Consume"),
        "DelayStoreDispatcherRole": documented("Dispatch"),
        "Producer": documented("Send"),
        "Keeper": documented("Store, list, cancel, reschedule"),
        "Receiver": documented("Fetch large bodies"),
        "DelayRemovalGuardRole": {
            ("cloudformation:DescribeStacks", "AWS::StackId"),
            ("cloudformation:ListStackResources", "AWS::StackId"),
        },
    }


def test_the_guides_policies_with_an_s3_store_are_those_deployed(stack: Stack) -> None:
    """As the others."""
    granted = deployed_with("s3", stack)
    del granted["DelayRemovalGuardRole"]
    with_s3 = "With an S3 store: "
    assert granted == {
        "DelayDelayConsumerRole": documented(f"{with_s3}the delay consumer function"),
        "DelayS3StoreDispatcherRole": documented(f"{with_s3}the dispatcher function"),
        "Keeper": documented(f"{with_s3}store, list, cancel, reschedule"),
    }


def test_the_guides_policies_for_schedules_are_those_deployed(stack: Stack) -> None:
    """In place of the table's, for the function and for those who store; and the schedules' own role."""
    granted = deployed_with("scheduler", stack)
    schedules = documented("Schedules instead of a table")
    on_queues = {grant for grant in documented("Consume") if "dynamodb" not in grant[0]}
    assert granted["DelayDelayConsumerRole"] == on_queues | schedules
    assert granted["Keeper"] == schedules | {("scheduler:ListSchedules", "*")}
    assert granted["DelaySchedulesRole"] == documented("The role of the schedules")


def test_a_fifo_endpoints_policies_differ_as_the_guide_says(stack: Stack) -> None:
    """Its names, and its due queue: sent to in place of the destination, or consumed beside the delay
    queue; nothing else."""
    granted = deployed(stack, "orders.fifo")
    due = f"arn:aws:sqs:{ACCOUNT}:orders-due"
    send = {("sqs:GetQueueUrl", due), ("sqs:SendMessage", due)}
    consume = documented("Consume")
    waiting = {action for action, arn in consume if arn.endswith(":orders-delay.fifo")}
    assert granted["DelayDelayConsumerRole"] == fifo(consume) | {(each, due) for each in waiting}
    dispatch = {grant for grant in documented("Dispatch") if not grant[1].endswith(":orders")}
    assert granted["DelayStoreDispatcherRole"] == fifo(dispatch) | send
    ask = {("sqs:GetQueueAttributes", due)}
    assert granted["Producer"] == fifo(documented("Send")) | send | ask
    assert granted["Keeper"] == fifo(documented("Store, list, cancel, reschedule"))
    assert granted["Receiver"] == documented("Fetch large bodies")


def fifo(grants: Grants) -> Grants:
    """The same grants under the names of `orders.fifo`."""
    return {
        (action, re.sub(r"([:/])orders(?=$|\.parked)", r"\1orders.fifo", arn))
        for action, arn in grants
    }
