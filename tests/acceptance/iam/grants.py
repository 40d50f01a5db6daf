"""Every grant of a deployed stack, read from its template, and how to take one away."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqsdelay.testing.local_aws import LocalAws

Policy = dict[str, Any]

BATCH_NAMES = {
    "sqs:SendMessage": "sqs:SendMessageBatch",
    "sqs:DeleteMessage": "sqs:DeleteMessageBatch",
    "sqs:ChangeMessageVisibility": "sqs:ChangeMessageVisibilityBatch",
}
"""IAM has one action for the single call and its batch; the local AWS wants a name for each."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One action on one resource; ``statement`` is its place in the policy."""

    statement: int
    action: str
    resource: str

    def taken_from(self, policy: Policy) -> Policy:
        """The policy without this grant, and with every other."""
        left = copy.deepcopy(policy)
        statement = left["Statement"].pop(self.statement)
        for kept in _grants_of({"Statement": [statement]}):
            if (kept.action, kept.resource) != (self.action, self.resource):
                allow = {"Effect": "Allow", "Action": kept.action, "Resource": kept.resource}
                left["Statement"].append(allow)
        return left


def granted(policy: Policy) -> list[Grant]:
    """Every action on every resource.

    Raises:
        AssertionError: a statement that says it otherwise, which no test would try.
    """
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        assert set(statement) <= {"Sid", "Effect", "Action", "Resource"}
    found = list(_grants_of(policy))
    assert not [grant for grant in found if "*" in grant.action or grant.resource == "*"]
    assert len({(g.action, g.resource) for g in found}) == len(found), "granted twice"
    return found


def _grants_of(policy: Policy) -> Iterator[Grant]:
    for position, statement in enumerate(policy["Statement"]):
        for action in listed(statement["Action"]):
            for resource in listed(statement["Resource"]):
                yield Grant(position, action, resource)


def listed(value: Any) -> list[Any]:
    """A policy writes a list of one as the one."""
    return value if isinstance(value, list) else [value]


def in_local_words(policy: Policy) -> str:
    """The same grants, as the local AWS reads them: it asks about a log group without AWS's ``:*``."""
    policy = copy.deepcopy(policy)
    for statement in policy["Statement"]:
        actions, resources = listed(statement["Action"]), listed(statement["Resource"])
        batched = [BATCH_NAMES[action] for action in actions if action in BATCH_NAMES]
        statement["Action"] = [*actions, *batched]
        groups = [arn.removesuffix(":*") for arn in resources if ":log-group:" in arn]
        statement["Resource"] = [*resources, *groups]
    return json.dumps(policy)


def template_policies(template: Path) -> dict[str, Policy]:
    """What each role and user of a synthesised template may do, under the grantee's logical id.

    Raises:
        AssertionError: a grantee with a managed policy.
    """
    resources = json.loads(template.read_text())["Resources"]
    found: dict[str, Policy] = {}
    for name, resource in resources.items():
        properties = resource.get("Properties", {})
        assert "ManagedPolicyArns" not in properties, name
        if resource["Type"] in ("AWS::IAM::Role", "AWS::IAM::User"):
            for policy in properties.get("Policies", ()):
                found.setdefault(name, {"Statement": []})
                found[name]["Statement"] += policy["PolicyDocument"]["Statement"]
        elif resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
            for grantee in [*properties.get("Users", ()), *properties.get("Roles", ())]:
                found.setdefault(grantee["Ref"], {"Statement": []})
                found[grantee["Ref"]]["Statement"] += properties["PolicyDocument"]["Statement"]
    for policy in found.values():
        for statement in policy["Statement"]:
            resources = listed(statement["Resource"])
            statement["Resource"] = [json.dumps(resource) for resource in resources]
    return found


def deployed_policy(aws: LocalAws, stack: str, grantee: str) -> Policy:
    """What the account holds for the grantee of that logical id: inline policies, none attached."""
    resource = aws.client("cloudformation").describe_stack_resource(
        StackName=stack, LogicalResourceId=grantee
    )["StackResourceDetail"]
    name, iam = resource["PhysicalResourceId"], aws.client("iam")
    if resource["ResourceType"] == "AWS::IAM::Role":
        assert iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"] == []
        names = iam.list_role_policies(RoleName=name)["PolicyNames"]
        found = [iam.get_role_policy(RoleName=name, PolicyName=each) for each in names]
    else:
        assert iam.list_attached_user_policies(UserName=name)["AttachedPolicies"] == []
        names = iam.list_user_policies(UserName=name)["PolicyNames"]
        found = [iam.get_user_policy(UserName=name, PolicyName=each) for each in names]
    return {
        **found[0]["PolicyDocument"],
        "Statement": [grant for each in found for grant in each["PolicyDocument"]["Statement"]],
    }


class Actor:
    """Somebody with a policy and nothing else, who calls with keys of their own.

    Stands in for a function's role: the local AWS runs functions, but polls their queues unasked.
    """

    def __init__(self, aws: LocalAws, name: str) -> None:
        self._aws, self._name, self._iam = aws, name, aws.client("iam")
        self._iam.create_user(UserName=name)
        key = self._iam.create_access_key(UserName=name)["AccessKey"]
        self._keys: Mapping[str, str] = {
            "aws_access_key_id": key["AccessKeyId"],
            "aws_secret_access_key": key["SecretAccessKey"],
        }

    def allow(self, policy: Policy) -> None:
        """Hold this policy from now on, and no other."""
        document = in_local_words(policy)
        self._iam.put_user_policy(UserName=self._name, PolicyName="only", PolicyDocument=document)

    def client(self, service: str, **arguments: Any) -> Any:
        """A client with the actor's keys; ``arguments`` go to boto3."""
        return self._aws.client(service, **self._keys, **arguments)
