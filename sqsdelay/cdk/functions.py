"""The functions of an endpoint: where and how they run, what each may do, what invokes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk import function_names
from sqsdelay.cdk.function_code import PYTHON_VERSION, functions_archive
from sqsdelay.cdk.ledger import S3Ledger, ledger_setting, ledger_statements
from sqsdelay.cdk.queues_and_buckets import acknowledge, grant_queues
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.limits import (
    DELAY_CONSUMER_MEMORY_MB,
    DISPATCHER_MEMORY_MB,
    FUNCTION_TIMEOUT_SECONDS,
    MAX_BATCH_ENTRIES,
    SCHEDULE_SECONDS,
)

DEFAULT_MAX_CONCURRENCY: Final = 10
"""Batches in hand at once; the event source takes 2 to 1,000."""

RUNTIME: Final = lambda_.Runtime(
    f"python{PYTHON_VERSION}", lambda_.RuntimeFamily.PYTHON, supports_inline_code=True
)
"""By its name, which an older CDK has no constant for."""

CONCURRENCY: Final = 3
"""Runs of the dispatcher at once: they share out the store's shards. One is started every minute, and ends
at once where nothing is due; with a backlog the next ones come to its side."""

TIMEOUT_SECONDS: Final = CONCURRENCY * SCHEDULE_SECONDS - 10
"""With a backlog a run lasts until as many are under way, and then makes room for the next."""

_NOTHING_TO_KEEP: Final = (
    "The event that starts a run carries nothing: messages stay in the store, and the next run does "
    "what a failed one did not."
)

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


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What the functions and the store of one endpoint are built with.

    Args:
        endpoint: the destination queue's name, which may be a token.
        queue: the destination.
        due_queue: of a FIFO endpoint, where its message timers run.
        hop_seconds: the delay queue's delivery delay.
        removal_policy: what becomes of a store, and the messages in it, when removed.
        encryption_key: of a store; one that AWS manages when None.
        alarm_topic: notified when an alarm starts.
        code: the functions' code; built from this checkout when left out.
        ledger: where the functions record what they do; True is their log.
        settings: where and how the functions run.
    """

    endpoint: str
    queue: sqs.IQueue
    delay_queue: sqs.IQueue
    error_queue: sqs.IQueue
    due_queue: sqs.IQueue | None
    hop_seconds: int
    removal_policy: RemovalPolicy
    encryption_key: kms.IKey | None
    alarm_topic: sns.ITopic | None
    code: lambda_.Code | None
    ledger: S3Ledger | bool
    settings: FunctionSettings


class Place(Construct):
    """Where messages may be parked: what the delay consumer has to have of it."""

    @property
    def url(self) -> str:
        """The place as `open_place` and ``--store`` take it."""
        raise NotImplementedError

    def statements(self) -> list[iam.PolicyStatement]:
        """What the delay consumer is to be allowed."""
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        """What the delay consumer's environment has of it."""
        return {function_names.STORE_VARIABLE: self.url}

    def grant_key(self, grantee: iam.IGrantable) -> None:
        """Let ``grantee`` use its key, where that is the customer's; AWS's own needs no grant."""

    def acknowledge_wildcards(self, role: iam.Role) -> None:
        """Keep cdk-nag quiet about what `statements` has to leave open."""


def function_role(
    scope: Construct,
    policy: str,
    log_group: logs.ILogGroup,
    before: Sequence[iam.PolicyStatement],
    after: Sequence[iam.PolicyStatement] = (),
) -> iam.Role:
    """A role for a function that writes to ``log_group``, and may do what is stated."""
    log = iam.PolicyStatement(
        sid="Log",
        actions=["logs:CreateLogStream", "logs:PutLogEvents"],
        resources=[log_group.log_group_arn],
    )
    return iam.Role(
        scope,
        "Role",
        assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        # Inline, so that an event source, which needs them at once, is not created before them.
        inline_policies={policy: iam.PolicyDocument(statements=[*before, log, *after])},
    )


class _EndpointFunction(Construct):
    """A function of the archive, its role and its log.

    Args:
        policy: the name of its role's policy.
        statements: what it is allowed besides writing its log, running in its network, recording.
        queues: those it uses, which may be under keys.
        place: where it parks.
        variables: its environment besides endpoint, place and ledger.
        arguments: more of those of `aws_lambda.Function`.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        wiring: Wiring,
        *,
        policy: str,
        statements: Sequence[iam.PolicyStatement],
        queues: Sequence[sqs.IQueue],
        place: Place | None = None,
        variables: Mapping[str, str],
        **arguments: Any,
    ) -> None:
        super().__init__(scope, construct_id)
        settings = wiring.settings
        log_group = settings.log_group(self)
        recorded = ledger_setting(wiring.ledger)
        self.role = function_role(
            self,
            policy,
            log_group,
            statements,
            [
                *([] if place is None else place.statements()),
                *settings.statements(),
                *ledger_statements(wiring.ledger, log_group),
            ],
        )
        grant_queues(self.role, queues)
        if place is not None:
            place.grant_key(self.role)
            place.acknowledge_wildcards(self.role)
        self.function = lambda_.Function(
            self,
            "Function",
            code=wiring.code or lambda_.Code.from_asset(str(functions_archive())),
            runtime=RUNTIME,
            architecture=lambda_.Architecture.ARM_64,
            environment={
                function_names.ENDPOINT_VARIABLE: wiring.endpoint,
                **variables,
                **({} if place is None else place.variables()),
                **({function_names.LEDGER_VARIABLE: recorded} if recorded else {}),
            },
            role=self.role,
            log_group=log_group,
            # The metrics travel in log lines, which a level above INFO would drop.
            logging_format=lambda_.LoggingFormat.JSON,
            system_log_level_v2=lambda_.SystemLogLevel.WARN,
            **settings.arguments(),
            **arguments,
        )
        settings.acknowledge(self)


class DelayConsumerFunction(_EndpointFunction):
    """The function that moves messages one hop on, on its queues' event sources.

    Args:
        max_concurrency: batches in hand at once, 2 to 1,000.
        place: where to park messages that are far away; they hop on when None.
        variables: more of its environment.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        wiring: Wiring,
        *,
        max_concurrency: int,
        place: Place | None,
        variables: Mapping[str, str],
    ) -> None:
        due_queues = () if wiring.due_queue is None else (wiring.due_queue,)
        consumed = (wiring.delay_queue, *due_queues)
        arns = [each.queue_arn for each in consumed]
        relay = iam.PolicyStatement(
            sid="Relay",
            actions=["sqs:GetQueueUrl", "sqs:SendMessage"],
            resources=[wiring.queue.queue_arn, *arns, wiring.error_queue.queue_arn],
        )
        consume = iam.PolicyStatement(
            sid="Consume",
            actions=[
                "sqs:ChangeMessageVisibility",
                "sqs:DeleteMessage",
                "sqs:GetQueueAttributes",
                "sqs:ReceiveMessage",
            ],
            resources=arns,
        )
        super().__init__(
            scope,
            construct_id,
            wiring,
            policy="DelayConsumer",
            statements=[relay, consume],
            queues=(wiring.queue, *consumed, wiring.error_queue),
            place=place,
            variables={
                function_names.HOP_SECONDS_VARIABLE: str(wiring.hop_seconds),
                **variables,
            },
            description=f"Relays delayed messages of {wiring.endpoint} (sqsdelay)",
            handler=function_names.CONSUMER_HANDLER,
            memory_size=wiring.settings.memory_mb or DELAY_CONSUMER_MEMORY_MB,
            timeout=Duration.seconds(FUNCTION_TIMEOUT_SECONDS),
            # Relaying is a loop by design: unless told so, Lambda stops it after about 16 hops.
            recursive_loop=lambda_.RecursiveLoop.ALLOW,
        )
        acknowledge(
            self.function,
            "Serverless-LambdaTracing",
            reason="The sender's trace header travels with the message; a trace of its own per hop "
            "would cost more than the hop and need a permission on every resource.",
        )
        acknowledge(
            self.function,
            "Serverless-LambdaDLQ",
            reason="It is invoked by event sources only, where a failed batch stays in its "
            "queue; the dead-letter queue of a function is for asynchronous invocations.",
        )
        for source_id, queue in zip(("EventSource", "DueEventSource"), consumed, strict=False):
            event_source = lambda_.EventSourceMapping(
                self,
                source_id,
                target=self.function,
                event_source_arn=queue.queue_arn,
                batch_size=MAX_BATCH_ENTRIES,
                max_concurrency=max_concurrency,
                report_batch_item_failures=True,
            )
            acknowledge(
                event_source,
                "Serverless-LambdaEventSourceMappingDestination",
                reason="Lambda takes no failure destination for SQS sources; the function itself sends "
                "what cannot be delivered to the error queue.",
            )


class DispatcherFunction(_EndpointFunction):
    """The function that releases what is due, on its schedule, a few runs at a time.

    Released messages go to the destination, or to a FIFO endpoint's due queue.

    Args:
        statements: what it is allowed besides, on its store.
        variables: more of its environment, the store's URL among them.
        concurrency: runs at once.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        wiring: Wiring,
        *,
        statements: Sequence[iam.PolicyStatement],
        variables: Mapping[str, str],
        concurrency: int = CONCURRENCY,
    ) -> None:
        sent_to = (wiring.due_queue or wiring.queue, wiring.error_queue)
        release = iam.PolicyStatement(
            sid="Release",
            actions=["sqs:GetQueueUrl", "sqs:SendMessage"],
            resources=[queue.queue_arn for queue in sent_to],
        )
        super().__init__(
            scope,
            construct_id,
            wiring,
            policy="Dispatcher",
            statements=[*statements, release],
            queues=sent_to,
            variables=variables,
            description=f"Releases delayed messages of {wiring.endpoint} from their store (sqsdelay)",
            handler=function_names.DISPATCHER_HANDLER,
            memory_size=DISPATCHER_MEMORY_MB,
            timeout=Duration.seconds(TIMEOUT_SECONDS),
            reserved_concurrent_executions=concurrency,
            # A run that failed or was throttled is made up for by the next.
            retry_attempts=0,
            max_event_age=Duration.seconds(SCHEDULE_SECONDS),
        )
        self.schedule = self.every(
            SCHEDULE_SECONDS, "Schedule", f"Runs the dispatcher of {wiring.endpoint}"
        )
        acknowledge(
            self.function,
            "Serverless-LambdaTracing",
            reason="A message's own trace header travels with it; a trace per minute would tell nothing.",
        )
        acknowledge(
            self.function,
            "Serverless-LambdaDLQ",
            "Serverless-LambdaAsyncFailureDestination",
            reason=_NOTHING_TO_KEEP,
        )

    def every(
        self,
        seconds: int,
        construct_id: str,
        description: str,
        event: events.RuleTargetInput | None = None,
    ) -> events.Rule:
        """Have it run so often, with ``event`` if it is not to release."""
        target = targets.LambdaFunction(
            self.function,
            event=event,
            retry_attempts=0,
            max_event_age=Duration.seconds(SCHEDULE_SECONDS),
        )
        rule = events.Rule(
            self,
            construct_id,
            description=f"{description} (sqsdelay)",
            schedule=events.Schedule.rate(Duration.seconds(seconds)),
            targets=[target],
        )
        acknowledge(rule, "Serverless-EventBusDLQ", reason=_NOTHING_TO_KEEP)
        return rule
