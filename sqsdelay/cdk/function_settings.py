"""Where and how the functions run: memory, log, traces, network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from sqsdelay.cdk.acknowledgement import acknowledge
from sqsdelay.errors import ConfigurationError, InvalidSetting

MIN_MEMORY_MB: Final = 128
MAX_MEMORY_MB: Final = 10_240
"""Source: Lambda developer guide, "Configure Lambda function memory"."""

_WILDCARD: Final = "AwsSolutions-IAM5"

IN_A_VPC: Final = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:UnassignPrivateIpAddresses",
)
"""Source: Lambda developer guide, "Required IAM permissions" of VPC access."""


@dataclass(frozen=True, kw_only=True)
class FunctionSettings:
    """What the delay consumer and the dispatcher have in common.

    Args:
        memory_mb: the delay consumer's memory, 128 to 10,240; 256 when left out. The dispatcher keeps
            its own: it needs a whole processor.
        log_retention: how long the functions' logs are kept.
        tracing: has X-Ray trace the functions themselves. A message's own trace is carried on either way.
        vpc: the network to run in; the Lambda service's own when left out. There has to be a way to
            SQS, CloudWatch Logs and the store from it: endpoints, or NAT.
        subnets: of that network; its private ones when left out.
        security_groups: one that lets everything out is made when left out.

    Raises:
        ConfigurationError: memory out of range, subnets or security groups without a network.
    """

    memory_mb: int | None = None
    log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH
    tracing: bool = False
    vpc: ec2.IVpc | None = None
    subnets: ec2.SubnetSelection | None = None
    security_groups: Sequence[ec2.ISecurityGroup] = ()

    def __post_init__(self) -> None:
        if self.memory_mb is not None and not MIN_MEMORY_MB <= self.memory_mb <= MAX_MEMORY_MB:
            raise InvalidSetting(
                f"memory_mb={self.memory_mb}; Lambda takes {MIN_MEMORY_MB} to {MAX_MEMORY_MB}"
            )
        if self.vpc is None and (self.subnets is not None or self.security_groups):
            raise ConfigurationError("subnets and security groups are a network's: give vpc too")

    def log_group(self, scope: Construct) -> logs.LogGroup:
        """A function's log; what it says is no longer needed once the function is gone."""
        return logs.LogGroup(
            scope, "Log", retention=self.log_retention, removal_policy=RemovalPolicy.DESTROY
        )

    def arguments(self) -> dict[str, Any]:
        """Those of `aws_lambda.Function` that these settings decide."""
        given: dict[str, Any] = {}
        if self.tracing:
            given["tracing"] = lambda_.Tracing.ACTIVE
        if self.vpc is not None:
            given |= {"vpc": self.vpc, "vpc_subnets": self.subnets}
            if self.security_groups:
                given["security_groups"] = list(self.security_groups)
        return given

    def statements(self) -> list[iam.PolicyStatement]:
        """What a function's role needs for its network."""
        if self.vpc is None:
            return []
        return [iam.PolicyStatement(sid="Network", actions=[*IN_A_VPC], resources=["*"])]

    def acknowledge(self, function: Construct) -> None:
        """Say why a function's role names no resource for its network and its traces."""
        acknowledge(
            function,
            _WILDCARD,
            f"{_WILDCARD}[Resource::*]",
            "Serverless-LambdaStarPermissions",
            reason="X-Ray takes no resource, and an interface of the function's has no name before "
            "Lambda makes it.",
        )


DEFAULTS: Final = FunctionSettings()
