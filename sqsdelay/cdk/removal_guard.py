"""The removal guard: a deployment that leaves out a part which holds messages is refused.

A template says what there shall be; CloudFormation removes the rest, with success. So the stack has
a custom resource that is told which parts were left out, neither asked for nor let go of by name. It
looks whether the stack has one of them, before anything else of the endpoint is changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aws_cdk import CustomResource, Duration, Stack
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from sqsdelay.cdk.function_code import guard_source
from sqsdelay.cdk.function_names import LEFT_OUT, SETTLING_SECONDS
from sqsdelay.cdk.functions import RUNTIME, FunctionSettings, function_log, function_role
from sqsdelay.cdk.queues_and_buckets import acknowledge, allow

NONE: Final = "none"
"""What lets go of a store by name."""

TIMEOUT_SECONDS: Final = 2 * SETTLING_SECONDS + 50
_ONLY_THE_STACK: Final = "Nothing but CloudFormation invokes it, which waits for its answer."


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of an endpoint that was left out.

    Args:
        path: of the construct that would be there, below the one that is guarded.
        resource_type: CloudFormation's name of it.
        words: what to tell whoever left it out, and what to do.
    """

    path: str
    resource_type: str
    words: str


STORE: Final = Part(
    path="Store/Table",
    resource_type="AWS::DynamoDB::Table",
    words="the stack has a store, but this deployment has none, so nothing would release the messages "
    "parked in it; use store=dynamodb as before, or store=none to give it up (the table is kept unless "
    "removalPolicy=destroy)",
)
SCHEDULES: Final = Part(
    path="Schedules/Group",
    resource_type="AWS::Scheduler::ScheduleGroup",
    words="the stack has a schedule group, but this deployment has none, so the consumer would not see "
    "what was cancelled in it; use store=scheduler as before, or store=none to give it up (the group is "
    "kept unless removalPolicy=destroy)",
)
S3_STORE: Final = Part(
    path="S3Store/Bucket",
    resource_type="AWS::S3::Bucket",
    words="the stack has a store in S3, but this deployment has none, so nothing would release the "
    "messages parked in it, nor park those in its parking queue; use store=s3 as before, or store=none to "
    "give it up (bucket and parking queue are kept unless removalPolicy=destroy)",
)
LARGE_BODIES: Final = Part(
    path="Bodies",
    resource_type="AWS::S3::Bucket",
    words="the stack has a bucket for large bodies, but this deployment has none; use "
    "largeBodies=true (large_bodies=True) as before, or largeBodies=none (large_bodies=False) to give "
    "it up",
)
LEDGER: Final = Part(
    path="Ledger/Bucket",
    resource_type="AWS::S3::Bucket",
    words="the stack keeps its ledger in a bucket, but this deployment does not, so the record would end "
    "there; use ledger=s3 as before, or ledger=none (ledger=False) to give it up (the bucket is kept unless "
    "removalPolicy=destroy)",
)
DUE_QUEUE: Final = Part(
    path="DueQueue",
    resource_type="AWS::SQS::Queue",
    words="the stack has a due queue, but its destination is no longer a FIFO queue, so nothing "
    "would deliver the messages in it; use the FIFO queue as before, or due_queue=False to give it up",
)


class RemovalGuard(Construct):
    """A custom resource, its function, the function's role and log.

    Args:
        left_out: the parts that are neither deployed nor let go of by name.
        settings: how long its log is kept. It runs in no network of the user's: it asks CloudFormation.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        left_out: Sequence[Part],
        settings: FunctionSettings,
    ) -> None:
        super().__init__(scope, construct_id)
        log_group = function_log(self, settings)
        actions = ("cloudformation:DescribeStacks", "cloudformation:ListStackResources")
        look = allow("Look", actions, Stack.of(self).stack_id)
        self.role = function_role(self, "RemovalGuard", log_group, [look])
        self.function = lambda_.Function(
            self,
            "Function",
            description="Refuses deployments that would strand delayed messages (sqsdelay)",
            code=lambda_.Code.from_inline(guard_source()),
            handler="index.handler",
            runtime=RUNTIME,
            architecture=lambda_.Architecture.ARM_64,
            timeout=Duration.seconds(TIMEOUT_SECONDS),
            role=self.role,
            log_group=log_group,
        )
        acknowledge(
            self.function,
            "Serverless-LambdaTracing",
            "Serverless-LambdaDLQ",
            "Serverless-LambdaAsyncFailureDestination",
            "Serverless-LambdaDefaultMemorySize",
            reason=_ONLY_THE_STACK,
        )
        self.parts = CustomResource(
            self,
            "Parts",
            resource_type="Custom::SqsDelayParts",
            service_token=self.function.function_arn,
            service_timeout=Duration.seconds(2 * TIMEOUT_SECONDS),
            properties={LEFT_OUT: [_told(scope, part) for part in left_out]},
        )


def _told(scope: Construct, part: Part) -> dict[str, str]:
    return {
        "Prefix": _logical_prefix(scope, part.path),
        "Type": part.resource_type,
        "Words": part.words,
    }


def _logical_prefix(scope: Construct, path: str) -> str:
    """What the logical id of a construct below ``scope`` begins with; a hash follows.

    Source: aws-cdk-lib's ``makeUniqueId``: the path within the stack, without "Resource", "Default"
    and what repeats the component before it, letters and digits only, at most 240 of them.
    """
    inside = scope.node.path.removeprefix(Stack.of(scope).node.path)
    human: list[str] = []
    for component in (*inside.split("/"), *path.split("/")):
        plain = re.sub(r"[^A-Za-z0-9]", "", component)
        if plain not in ("", "Resource", "Default") and not (human and human[-1].endswith(plain)):
            human.append(plain)
    return "".join(human)[:240]
