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

from sqsdelay.cdk import function_names, queues_and_buckets
from sqsdelay.cdk.function_code import PYTHON_VERSION, functions_archive
from sqsdelay.cdk.ledger import S3Ledger
from sqsdelay.cdk.queues_and_buckets import acknowledge, allow, grant_queues
from sqsdelay.core import limits
from sqsdelay.core.delay import check_range
from sqsdelay.errors import ConfigurationError

DEFAULT_MAX_CONCURRENCY: Final = 10
"""Batches in hand at once; the event source takes 2 to 1,000."""

CONCURRENCY: Final = 3
"""Runs of the dispatcher at once: they share out the store's shards. One is started every minute, and ends
at once where nothing is due; with a backlog the next ones come to its side."""

TIMEOUT_SECONDS: Final = CONCURRENCY * limits.SCHEDULE_SECONDS - 10
"""With a backlog a run lasts until as many are under way, and then makes room for the next."""

_NOTHING_TO_KEEP: Final = (
    "The event that starts a run carries nothing: messages stay in the store, and the next run does "
    "what a failed one did not."
)

_SEND: Final = ("sqs:GetQueueUrl", "sqs:SendMessage")

MIN_MEMORY_MB: Final = 128
MAX_MEMORY_MB: Final = 10_240
"""Source: Lambda developer guide, "Configure Lambda function memory"."""

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
        if self.memory_mb is not None:
            check_range(MIN_MEMORY_MB, MAX_MEMORY_MB, memory_mb=self.memory_mb)
        if self.vpc is None and (self.subnets is not None or self.security_groups):
            raise ConfigurationError("subnets and security groups are a network's: give vpc too")

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
        return [allow("Network", IN_A_VPC, "*")]


DEFAULTS: Final = FunctionSettings()


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What the functions and the store of one endpoint are built with, as `UnrestrictedDelay` was told.
    ``endpoint``: the destination queue's name, which may be a token. ``due_queue``: of a FIFO endpoint, where
    its message timers run. ``ledger``: where the functions record what they do; True is their log.
    ``variables``: of the environments of all who move messages on."""

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
    variables: Mapping[str, str]

    @property
    def kept(self) -> dict[str, Any]:
        """How what holds messages is kept."""
        return {"removal_policy": self.removal_policy, "encryption_key": self.encryption_key}


class Place(Construct):
    """Where messages may be parked: what the delay consumer has to have of it. ``url``: as `open_place` and
    ``--store`` take it. ``wildcard``: an ARN that `statements` has to leave open, and why."""

    url: str
    wildcard: tuple[str, str] | None = None

    def statements(self) -> list[iam.PolicyStatement]:
        """What the delay consumer is to be allowed."""
        raise NotImplementedError

    def store_statements(self) -> list[iam.PolicyStatement]:
        """What whoever stores, lists, finds, cancels and moves messages is to be allowed."""
        return self.statements()

    def grant_key(self, grantee: iam.IGrantable) -> None:
        """Let ``grantee`` use its key, where that is the customer's; AWS's own needs no grant."""

    def grant_store(self, producer: iam.IGrantable) -> None:
        """Let ``producer`` store, list, find, cancel and reschedule messages."""
        self.grant_key(producer)
        for statement in self.store_statements():
            producer.grant_principal.add_to_principal_policy(statement)

    def use(self, role: iam.Role) -> None:
        """Let a function's role, which has its statements, use its key; and cdk-nag be quiet about both."""
        self.grant_key(role)
        if self.wildcard is not None:
            arn, reason = self.wildcard
            queues_and_buckets.acknowledge_wildcards(role, arn, reason=reason)


def function_log(scope: Construct, settings: FunctionSettings) -> logs.LogGroup:
    """A function's log; what it says is no longer needed once the function is gone."""
    return logs.LogGroup(
        scope, "Log", retention=settings.log_retention, removal_policy=RemovalPolicy.DESTROY
    )


def function_role(
    scope: Construct,
    policy: str,
    log_group: logs.ILogGroup,
    before: Sequence[iam.PolicyStatement],
    after: Sequence[iam.PolicyStatement] = (),
) -> iam.Role:
    """A role for a function that writes to ``log_group``, and may do what is stated."""
    log = allow("Log", ["logs:CreateLogStream", "logs:PutLogEvents"], log_group.log_group_arn)
    return iam.Role(
        scope,
        "Role",
        assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        # Inline, so that an event source, which needs them at once, is not created before them.
        inline_policies={policy: iam.PolicyDocument(statements=[*before, log, *after])},
    )


def runtime() -> lambda_.Runtime:
    """By its name, which an older CDK has no constant for."""
    python = lambda_.RuntimeFamily.PYTHON
    return lambda_.Runtime(f"python{PYTHON_VERSION}", python, supports_inline_code=True)


class EndpointFunction(Construct):
    """A function of the archive, its role and its log. ``statements``: what it is allowed besides writing its
    log, running in its network, recording. ``queues``: those it uses, which may be under keys. ``place``:
    where it parks. ``store_url``: from where it releases. ``quiet``: rules of cdk-nag that are not followed,
    each with its reason. ``arguments``: more of those of `aws_lambda.Function`."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        wiring: Wiring,
        *,
        statements: Sequence[iam.PolicyStatement],
        queues: Sequence[sqs.IQueue],
        place: Place | None = None,
        store_url: str | None = None,
        quiet: Mapping[str, str],
        **arguments: Any,
    ) -> None:
        super().__init__(scope, construct_id)
        settings, ledger = wiring.settings, wiring.ledger
        log_group = function_log(self, settings)
        after = [*([] if place is None else place.statements()), *settings.statements()]
        environment = {
            function_names.ENDPOINT_VARIABLE: wiring.endpoint,
            function_names.HOP_SECONDS_VARIABLE: str(wiring.hop_seconds),
            **wiring.variables,
        }
        url = store_url if place is None else place.url
        if url is not None:
            environment[function_names.STORE_VARIABLE] = url
        if isinstance(ledger, S3Ledger):
            ledger.watch(log_group)
            after.append(ledger.statement())
            environment[function_names.LEDGER_VARIABLE] = ledger.stream_url
        elif ledger:
            environment[function_names.LEDGER_VARIABLE] = "true"
        self.role = function_role(self, construct_id, log_group, statements, after)
        grant_queues(self.role, queues)
        if place is not None:
            place.use(self.role)
        self.function = lambda_.Function(
            self,
            "Function",
            code=wiring.code or lambda_.Code.from_asset(str(functions_archive())),
            runtime=runtime(),
            architecture=lambda_.Architecture.ARM_64,
            environment=environment,
            role=self.role,
            log_group=log_group,
            # The metrics travel in log lines, which a level above INFO would drop.
            logging_format=lambda_.LoggingFormat.JSON,
            system_log_level_v2=lambda_.SystemLogLevel.WARN,
            **settings.arguments(),
            **arguments,
        )
        acknowledge(
            self,
            "AwsSolutions-IAM5",
            "AwsSolutions-IAM5[Resource::*]",
            "Serverless-LambdaStarPermissions",
            reason="X-Ray takes no resource, and an interface of the function's has no name before "
            "Lambda makes it.",
        )
        for rule, reason in quiet.items():
            acknowledge(self.function, rule, reason=reason)


def delay_consumer(
    scope: Construct, wiring: Wiring, max_concurrency: int, place: Place | None
) -> EndpointFunction:
    """The function that moves messages one hop on, on its queues' event sources. ``max_concurrency``: batches
    in hand at once, 2 to 1,000. ``place``: where to park messages that are far away; they hop on when None.
    """
    consumed = [wiring.delay_queue, *([wiring.due_queue] if wiring.due_queue else [])]
    arns = [each.queue_arn for each in consumed]
    consume = ("ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "ReceiveMessage")
    made = EndpointFunction(
        scope,
        "DelayConsumer",
        wiring,
        statements=[
            allow("Relay", _SEND, wiring.queue.queue_arn, *arns, wiring.error_queue.queue_arn),
            allow("Consume", [f"sqs:{action}" for action in consume], *arns),
        ],
        queues=(wiring.queue, *consumed, wiring.error_queue),
        place=place,
        description=f"Relays delayed messages of {wiring.endpoint} (sqsdelay)",
        handler=function_names.CONSUMER_HANDLER,
        memory_size=wiring.settings.memory_mb or limits.DELAY_CONSUMER_MEMORY_MB,
        timeout=Duration.seconds(limits.FUNCTION_TIMEOUT_SECONDS),
        # Relaying is a loop by design: unless told so, Lambda stops it after about 16 hops.
        recursive_loop=lambda_.RecursiveLoop.ALLOW,
        quiet={
            "Serverless-LambdaTracing": "The sender's trace header travels with the message; a trace of "
            "its own per hop would cost more than the hop and need a permission on every resource.",
            "Serverless-LambdaDLQ": "It is invoked by event sources only, where a failed batch stays in "
            "its queue; the dead-letter queue of a function is for asynchronous invocations.",
        },
    )
    for source_id, arn in zip(("EventSource", "DueEventSource"), arns, strict=False):
        event_source = lambda_.EventSourceMapping(
            made,
            source_id,
            target=made.function,
            event_source_arn=arn,
            batch_size=limits.MAX_BATCH_ENTRIES,
            max_concurrency=max_concurrency,
            report_batch_item_failures=True,
        )
        acknowledge(
            event_source,
            "Serverless-LambdaEventSourceMappingDestination",
            reason="Lambda takes no failure destination for SQS sources; the function itself sends "
            "what cannot be delivered to the error queue.",
        )
    return made


class DispatcherFunction(EndpointFunction):
    """The function that releases what is due, on its schedule, a few runs at a time. Released messages go to
    the destination, or to a FIFO endpoint's due queue. ``statements``: what it is allowed besides, on its
    store. ``store_url``: the store's. ``place``: one whose schedules release: the function only empties the
    parking queue. ``concurrency``: runs at once."""

    def __init__(
        self,
        scope: Construct,
        wiring: Wiring,
        *,
        statements: Sequence[iam.PolicyStatement],
        store_url: str | None = None,
        place: Place | None = None,
        concurrency: int = CONCURRENCY,
    ) -> None:
        sent_to = (wiring.due_queue or wiring.queue, wiring.error_queue)
        # Without a store it mostly waits for answers, and where there is much it starts more runs.
        small = wiring.settings.memory_mb or limits.DELAY_CONSUMER_MEMORY_MB
        seconds = TIMEOUT_SECONDS if place is None else limits.GATHERING_SECONDS - 10
        arns = [queue.queue_arn for queue in sent_to]
        super().__init__(
            scope,
            "Dispatcher",
            wiring,
            statements=[*statements, allow("Release", _SEND, *arns)],
            queues=sent_to,
            place=place,
            store_url=store_url,
            description=f"Releases delayed messages of {wiring.endpoint} from their store (sqsdelay)",
            handler=function_names.DISPATCHER_HANDLER,
            memory_size=limits.DISPATCHER_MEMORY_MB if place is None else small,
            timeout=Duration.seconds(seconds),
            reserved_concurrent_executions=concurrency if place is None else None,
            # A run that failed or was throttled is made up for by the next.
            retry_attempts=0,
            max_event_age=Duration.seconds(limits.SCHEDULE_SECONDS),
            quiet={
                "Serverless-LambdaTracing": "A message's own trace header travels with it; a trace per "
                "minute would tell nothing.",
                "Serverless-LambdaDLQ": _NOTHING_TO_KEEP,
                "Serverless-LambdaAsyncFailureDestination": _NOTHING_TO_KEEP,
            },
        )
        if place is None:
            what = f"Runs the dispatcher of {wiring.endpoint}"
            self.schedule = self.every(limits.SCHEDULE_SECONDS, "Schedule", what)
        else:
            invoke = allow("Help", ["lambda:InvokeFunction"], self.function.function_arn)
            iam.Policy(self, "SendForHelp", statements=[invoke], roles=[self.role])

    def empty_parking_queue(self, endpoint: str) -> events.Rule:
        """Have it empty the parking queue every five minutes."""
        event = events.RuleTargetInput.from_object({function_names.PARK: True})
        what = f"Empties the parking queue of {endpoint}"
        return self.every(limits.GATHERING_SECONDS, "ParkingSchedule", what, event)

    def every(self, seconds: int, construct_id: str, what: str, event: Any = None) -> events.Rule:
        """Have it run so often, with an input if it is not to release."""
        target = targets.LambdaFunction(
            self.function,
            event=event,
            retry_attempts=0,
            max_event_age=Duration.seconds(limits.SCHEDULE_SECONDS),
        )
        rule = events.Rule(
            self,
            construct_id,
            description=f"{what} (sqsdelay)",
            schedule=events.Schedule.rate(Duration.seconds(seconds)),
            targets=[target],
        )
        acknowledge(rule, "Serverless-EventBusDLQ", reason=_NOTHING_TO_KEEP)
        return rule
