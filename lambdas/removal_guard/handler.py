"""CloudFormation asks it before a stack changes: may what the new template leaves out go?

Deployed as it stands, in the template itself: one file, and what Lambda's runtime brings.
"""

import json
import os
import re
import ssl
import time
import urllib.request
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

LEFT_OUT = "LeftOut"
"""The property with the parts that are neither deployed nor let go of: prefix, type, words."""

SETTLING_SECONDS = 20
"""A new role's policy may take a moment until it counts."""

_CONFIG = Config(connect_timeout=3, read_timeout=5, retries={"mode": "standard", "max_attempts": 4})


class Refused(Exception):
    """The deployment would let go of a part that the stack has."""


def handler(event: dict[str, Any], context: object) -> None:
    """Answer SUCCESS, or FAILED with what to do; CloudFormation then rolls the change back."""
    status, reason = "SUCCESS", "nothing is let go of"
    try:
        if event["RequestType"] != "Delete":
            check(event, boto3.client("cloudformation", config=_CONFIG))
    except Exception as error:
        # Whatever it is: CloudFormation must hear of it, or it waits for its time limit.
        status, reason = "FAILED", str(error) or repr(error)
    print(json.dumps({"status": status, "reason": reason}))  # noqa: T201
    answer(event, status, reason)


def check(event: dict[str, Any], client: Any, settling_seconds: int = SETTLING_SECONDS) -> None:
    """Refuse a change that leaves out what the stack has.

    Raises:
        Refused: with all that would go, and the remedies.
    """
    left_out = event["ResourceProperties"].get(LEFT_OUT) or []
    if not left_out:
        return
    stack_id, deadline = event["StackId"], time.monotonic() + settling_seconds
    [stack] = when_allowed(lambda: client.describe_stacks(StackName=stack_id), deadline)["Stacks"]
    if "ROLLBACK" in stack["StackStatus"]:
        return  # back to what was there before: what goes was added a moment ago
    found = when_allowed(lambda: resources(client, stack_id), deadline)
    going = [part["Words"] for part in left_out if any(is_part(part, each) for each in found)]
    if going:
        raise Refused("; ".join(going))


def resources(client: Any, stack_id: str) -> list[Any]:
    pages = client.get_paginator("list_stack_resources").paginate(StackName=stack_id)
    return [each for page in pages for each in page["StackResourceSummaries"]]


def is_part(part: dict[str, str], resource: dict[str, str]) -> bool:
    """A logical id is a construct's path and a hash."""
    wanted = re.escape(part["Prefix"]) + "[0-9A-F]{8}"
    return (
        resource["ResourceType"] == part["Type"]
        and re.fullmatch(wanted, resource["LogicalResourceId"]) is not None
        and not resource["ResourceStatus"].startswith("DELETE_")
    )


def when_allowed(ask: Any, deadline: float) -> Any:
    """The answer; asked again while it is denied, until then."""
    while True:
        try:
            return ask()
        except ClientError as error:
            denied = "AccessDenied" in error.response["Error"]["Code"]
            if not denied or time.monotonic() > deadline:
                raise
        time.sleep(2)


def answer(event: dict[str, Any], status: str, reason: str) -> None:
    """Tell CloudFormation, at the URL it gave for this request."""
    response = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    response |= {
        "Status": status,
        "Reason": reason,
        "PhysicalResourceId": event["LogicalResourceId"],
    }
    request = urllib.request.Request(
        event["ResponseURL"],
        data=json.dumps(response).encode(),
        method="PUT",
        headers={"Content-Type": ""},
    )
    trusted = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
    urllib.request.urlopen(request, timeout=10, context=trusted).close()
