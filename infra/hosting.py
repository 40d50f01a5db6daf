"""What the context says of keys, network, memory, logs and roles: settings of an account, not of messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from sqsdelay.cdk import FunctionSettings
from sqsdelay.cdk.functions import MAX_MEMORY_MB, MIN_MEMORY_MB
from sqsdelay.errors import ConfigurationError

RETENTION: Final = {
    "1": logs.RetentionDays.ONE_DAY,
    "3": logs.RetentionDays.THREE_DAYS,
    "7": logs.RetentionDays.ONE_WEEK,
    "14": logs.RetentionDays.TWO_WEEKS,
    "30": logs.RetentionDays.ONE_MONTH,
    "90": logs.RetentionDays.THREE_MONTHS,
    "180": logs.RetentionDays.SIX_MONTHS,
    "365": logs.RetentionDays.ONE_YEAR,
    "731": logs.RetentionDays.TWO_YEARS,
    "1827": logs.RetentionDays.FIVE_YEARS,
    "3653": logs.RetentionDays.TEN_YEARS,
}
"""Days that CloudWatch Logs takes, the usual ones of them."""

_ID: Final = "[0-9a-f]{8,17}"
_NOT_USED: Final = "given-by-the-subnets"
"""The CDK wants a subnet's zone and routes, for uses that are not ours."""

_FORMS: Final = {
    "kmsKeyArn": (
        r"arn:[a-z-]+:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+",
        "arn:aws:kms:REGION:ACCOUNT:key/ID",
    ),
    "permissionsBoundaryArn": (
        r"arn:[a-z-]+:iam::(\d{12}|aws):policy/[\w+=,.@/-]+",
        "arn:aws:iam::ACCOUNT:policy/NAME",
    ),
    "vpcId": (rf"vpc-{_ID}", "vpc-ID"),
    "subnetIds": (rf"subnet-{_ID}(,subnet-{_ID})*", "subnet-ID,subnet-ID"),
    "securityGroupIds": (rf"sg-{_ID}(,sg-{_ID})*", "sg-ID"),
}
KEYS: Final = (*_FORMS, "memoryMb", "logRetentionDays", "tracing")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosting:
    """Where an endpoint's parts run and what they are encrypted and fenced with."""

    kms_key_arn: str | None = None
    permissions_boundary_arn: str | None = None
    vpc_id: str | None = None
    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    memory_mb: int | None = None
    log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH
    tracing: bool = False

    @classmethod
    def read(cls, get: Callable[[str], Any]) -> Hosting:
        """What a context asks for.

        Raises:
            ConfigurationError: a value that cannot be used, and what can.
        """
        given = {key: _formed(key, get(key)) for key in _FORMS}
        network = [key for key in ("vpcId", "subnetIds", "securityGroupIds") if given[key]]
        if network and len(network) < 3:
            raise ConfigurationError(
                f"context {' and '.join(network)} alone; a network takes vpcId, subnetIds and "
                "securityGroupIds, all three, for nothing is looked up in the account"
            )
        return cls(
            kms_key_arn=given["kmsKeyArn"],
            permissions_boundary_arn=given["permissionsBoundaryArn"],
            vpc_id=given["vpcId"],
            subnet_ids=_listed(given["subnetIds"]),
            security_group_ids=_listed(given["securityGroupIds"]),
            memory_mb=_memory(get("memoryMb")),
            log_retention=_retention(get("logRetentionDays")),
            tracing=_tracing(get("tracing")),
        )

    def key(self, scope: Construct) -> kms.IKey | None:
        """The key for queues, store and bucket."""
        if self.kms_key_arn is None:
            return None
        return kms.Key.from_key_arn(scope, "Key", self.kms_key_arn)

    def boundary(self, scope: Construct) -> iam.IManagedPolicy | None:
        """The permissions boundary of every role."""
        arn = self.permissions_boundary_arn
        if arn is None:
            return None
        return iam.ManagedPolicy.from_managed_policy_arn(scope, "PermissionsBoundary", arn)

    def functions(self, scope: Construct) -> FunctionSettings:
        """The settings of the functions."""
        common: dict[str, Any] = {
            "memory_mb": self.memory_mb,
            "log_retention": self.log_retention,
            "tracing": self.tracing,
        }
        if self.vpc_id is None:
            return FunctionSettings(**common)
        subnets = [
            ec2.Subnet.from_subnet_attributes(
                scope, f"Subnet{number}", subnet_id=subnet_id, route_table_id=_NOT_USED
            )
            for number, subnet_id in enumerate(self.subnet_ids)
        ]
        groups = [
            ec2.SecurityGroup.from_security_group_id(scope, f"SecurityGroup{number}", group_id)
            for number, group_id in enumerate(self.security_group_ids)
        ]
        vpc = ec2.Vpc.from_vpc_attributes(
            scope, "Network", vpc_id=self.vpc_id, availability_zones=[_NOT_USED]
        )
        return FunctionSettings(
            vpc=vpc,
            subnets=ec2.SubnetSelection(subnets=subnets),
            security_groups=groups,
            **common,
        )


def _formed(key: str, value: Any) -> str | None:
    if value is None:
        return None
    form, example = _FORMS[key]
    if re.fullmatch(form, str(value), re.ASCII) is None:
        raise ConfigurationError(f"context {key}={value!r}; write {example}")
    return str(value)


def _listed(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(text.split(","))


def _memory(value: Any) -> int | None:
    if value is None:
        return None
    text = str(value)
    if not (text.isascii() and text.isdigit() and MIN_MEMORY_MB <= int(text) <= MAX_MEMORY_MB):
        raise ConfigurationError(
            f"context memoryMb={text!r}; use whole MB, {MIN_MEMORY_MB} to {MAX_MEMORY_MB}"
        )
    return int(text)


def _retention(value: Any) -> logs.RetentionDays:
    if value is None:
        return logs.RetentionDays.ONE_MONTH
    if str(value) not in RETENTION:
        raise ConfigurationError(
            f"context logRetentionDays={str(value)!r}; use one of {', '.join(RETENTION)}"
        )
    return RETENTION[str(value)]


def _tracing(value: Any) -> bool:
    if value is None or value is True or value == "true":
        return value is not None
    raise ConfigurationError(
        f"context tracing={value!r}; use true, or leave it out for no traces of the functions"
    )
