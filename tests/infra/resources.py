"""Finding resources in a template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aws_cdk.assertions import Template

Templates = Callable[..., Template]


def working(template: Template, kind: str, **properties: Any) -> dict[str, dict[str, Any]]:
    """The resources of a kind with these properties, less the removal guard's, which moves nothing."""
    found = template.find_resources(kind, {"Properties": properties})
    return {name: dict(each) for name, each in found.items() if "RemovalGuard" not in name}


def only(template: Template, kind: str, **properties: Any) -> dict[str, Any]:
    """The one resource of a kind with these properties."""
    [found] = working(template, kind, **properties).values()
    return found


def logical_id(template: Template, kind: str, **properties: Any) -> str:
    [found] = working(template, kind, **properties)
    return found


def arn(template: Template, queue: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [logical_id(template, "AWS::SQS::Queue", QueueName=queue), "Arn"]}


def function(template: Template, handler: str) -> dict[str, Any]:
    """The properties of the function with that handler."""
    return dict(only(template, "AWS::Lambda::Function", Handler=handler)["Properties"])


def statements(template: Template, handler: str) -> list[dict[str, Any]]:
    """What the role of the function with that handler may do."""
    role = function(template, handler)["Role"]["Fn::GetAtt"][0]
    [policy] = template.find_resources("AWS::IAM::Role")[role]["Properties"]["Policies"]
    return list(policy["PolicyDocument"]["Statement"])


def actions(granted: list[dict[str, Any]], service: str) -> set[str]:
    """Those of one service."""
    found = [each["Action"] for each in granted]
    listed = [each if isinstance(each, list) else [each] for each in found]
    return {each for some in listed for each in some if each.startswith(f"{service}:")}
