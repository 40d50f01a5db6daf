"""Finding resources in a template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aws_cdk.assertions import Template

Templates = Callable[..., Template]


def only(template: Template, kind: str, **properties: Any) -> dict[str, Any]:
    """The one resource of a kind with these properties."""
    [found] = template.find_resources(kind, {"Properties": properties}).values()
    return dict(found)


def logical_id(template: Template, kind: str, **properties: Any) -> str:
    [found] = template.find_resources(kind, {"Properties": properties})
    return str(found)


def arn(template: Template, queue: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [logical_id(template, "AWS::SQS::Queue", QueueName=queue), "Arn"]}
