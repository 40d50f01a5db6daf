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
from sqsdelay.cdk.functions import FunctionSettings, function_log, function_role, runtime
from sqsdelay.cdk.queues_and_buckets import acknowledge, allow

NONE: Final = "none"
"""What lets go of a store by name."""

LEFT_OUT: Final = "LeftOut"
SETTLING_SECONDS: Final = 20
"""As the function has them, which stands in the template and imports nothing."""

TIMEOUT_SECONDS: Final = 2 * SETTLING_SECONDS + 50
_ONLY_THE_STACK: Final = "Nothing but CloudFormation invokes it, which waits for its answer."


@dataclass(frozen=True, slots=True)
class Part:
    """A part that was left out: its construct's path below the one that is guarded, its type, what would be
    lost, and how to keep it or to give it up."""

    path: str
    resource_type: str
    words: str
    remedy: str

    def told(self, scope: Construct) -> dict[str, str]:
        """The part as the guard's property has it."""
        prefix = _logical_prefix(scope, self.path)
        words = f"the stack has {self.words}; use {self.remedy}"
        return {"Prefix": prefix, "Type": self.resource_type, "Words": words}


def _store(kind: str, kept: str) -> str:
    return f"store={kind} as before, or store=none to give it up ({kept} kept unless removalPolicy=destroy)"


_NOTHING_RELEASES: Final = (
    "but this deployment has none, so nothing would release the messages parked in it"
)

STORE: Final = Part(
    "Store/Table",
    "AWS::DynamoDB::Table",
    f"a store, {_NOTHING_RELEASES}",
    _store("dynamodb", "the table is"),
)
SCHEDULES: Final = Part(
    "Schedules/Group",
    "AWS::Scheduler::ScheduleGroup",
    "a schedule group, but this deployment has none, so nobody would hand over what fires, nor see what was "
    "cancelled in it",
    _store("scheduler", "group, role and parking queue are"),
)
S3_STORE: Final = Part(
    "S3Store/Bucket",
    "AWS::S3::Bucket",
    f"a store in S3, {_NOTHING_RELEASES}, nor park those in its parking queue",
    _store("s3", "bucket and parking queue are"),
)
LARGE_BODIES: Final = Part(
    "Bodies",
    "AWS::S3::Bucket",
    "a bucket for large bodies, but this deployment has none",
    "largeBodies=true (large_bodies=True) as before, or largeBodies=none (large_bodies=False) to give it up",
)
LEDGER: Final = Part(
    "Ledger/Bucket",
    "AWS::S3::Bucket",
    "its ledger in a bucket, but this deployment does not, so the record would end there",
    "ledger=s3 as before, or ledger=none (ledger=False) to give it up (the bucket is kept unless "
    "removalPolicy=destroy)",
)
DUE_QUEUE: Final = Part(
    "DueQueue",
    "AWS::SQS::Queue",
    "a due queue, but its destination is no longer a FIFO queue, so nothing would deliver the messages in it",
    "the FIFO queue as before, or due_queue=False to give it up",
)


class RemovalGuard(Construct):
    """A custom resource, its function, the function's role and log. ``left_out``: the parts that are neither
    deployed nor let go of by name. ``settings``: how long its log is kept. It runs in no network of the
    user's: it asks CloudFormation."""

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
            runtime=runtime(),
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
            properties={LEFT_OUT: [part.told(scope) for part in left_out]},
        )


def _logical_prefix(scope: Construct, path: str) -> str:
    """What the logical id of a construct below ``scope`` begins with; a hash follows. Source: aws-cdk-lib's
    ``makeUniqueId``: the path within the stack, without "Resource", "Default" and what repeats the component
    before it, letters and digits only, at most 240 of them."""
    inside = scope.node.path.removeprefix(Stack.of(scope).node.path)
    human: list[str] = []
    for component in (*inside.split("/"), *path.split("/")):
        plain = re.sub(r"[^A-Za-z0-9]", "", component)
        if plain not in ("", "Resource", "Default") and not (human and human[-1].endswith(plain)):
            human.append(plain)
    return "".join(human)[:240]
