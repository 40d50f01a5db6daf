"""The dispatcher: the function that releases what is due from the store, its role, its log, its schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk import function_names
from sqsdelay.cdk.acknowledgement import acknowledge
from sqsdelay.cdk.encryption import grant_queues
from sqsdelay.cdk.function_code import functions_archive
from sqsdelay.cdk.function_settings import DEFAULTS, FunctionSettings
from sqsdelay.cdk.s3_ledger import S3Ledger, ledger_setting, ledger_statements
from sqsdelay.limits import DISPATCHER_MEMORY_MB, SCHEDULE_SECONDS

CONCURRENCY: Final = 3
"""Runs at once: they share out the store's shards. One is started every minute, and ends at once where
nothing is due; with a backlog the next ones come to its side."""

TIMEOUT_SECONDS: Final = CONCURRENCY * SCHEDULE_SECONDS - 10
"""With a backlog a run lasts until as many are under way, and then makes room for the next."""

_NOTHING_TO_KEEP: Final = (
    "The event that starts a run carries nothing: messages stay in the store, and the next run does "
    "what a failed one did not."
)


class DispatcherFunction(Construct):
    """The function on its schedule, a few runs at a time, allowed just what it does.

    Args:
        endpoint: the destination queue's name, which may be a token.
        queue: where released messages go: the destination, or a FIFO endpoint's due queue.
        statements: what it is allowed besides, on its store.
        store_url: the store as the function opens it.
        variables: more of its environment.
        concurrency: runs at once.
        code: the function's code; built from this checkout when left out.
        ledger: where it records what it does; True is its log.
        settings: where and how it runs.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        queue: sqs.IQueue,
        error_queue: sqs.IQueue,
        statements: Sequence[iam.PolicyStatement],
        store_url: str,
        variables: Mapping[str, str] | None = None,
        concurrency: int = CONCURRENCY,
        code: lambda_.Code | None = None,
        ledger: S3Ledger | bool = False,
        settings: FunctionSettings = DEFAULTS,
    ) -> None:
        super().__init__(scope, construct_id)
        log_group = settings.log_group(self)
        recorded = ledger_setting(ledger)
        self.role = _role(
            self,
            statements,
            more=[*settings.statements(), *ledger_statements(ledger, log_group)],
            log_group=log_group,
            queue=queue,
            error_queue=error_queue,
        )
        self.function = lambda_.Function(
            self,
            "Function",
            description=f"Releases delayed messages of {endpoint} from their store (sqsdelay)",
            code=code or lambda_.Code.from_asset(str(functions_archive())),
            handler=function_names.DISPATCHER_HANDLER,
            runtime=lambda_.Runtime.PYTHON_3_14,
            architecture=lambda_.Architecture.ARM_64,
            memory_size=DISPATCHER_MEMORY_MB,
            timeout=Duration.seconds(TIMEOUT_SECONDS),
            environment={
                function_names.ENDPOINT_VARIABLE: endpoint,
                function_names.STORE_VARIABLE: store_url,
                **(variables or {}),
                **({function_names.LEDGER_VARIABLE: recorded} if recorded else {}),
            },
            reserved_concurrent_executions=concurrency,
            # A run that failed or was throttled is made up for by the next.
            retry_attempts=0,
            max_event_age=Duration.seconds(SCHEDULE_SECONDS),
            role=self.role,
            log_group=log_group,
            # The metrics travel in log lines, which a level above INFO would drop.
            logging_format=lambda_.LoggingFormat.JSON,
            system_log_level_v2=lambda_.SystemLogLevel.WARN,
            **settings.arguments(),
        )
        settings.acknowledge(self)
        self.schedule = self._scheduled(
            "Schedule", SCHEDULE_SECONDS, f"Runs the dispatcher of {endpoint}"
        )
        _acknowledge_function(self.function)

    def park_every(self, seconds: int, endpoint: str) -> events.Rule:
        """Have it empty the parking queue so often."""
        return self._scheduled(
            "ParkingSchedule",
            seconds,
            f"Parks what the parking queue of {endpoint} has gathered",
            event=events.RuleTargetInput.from_object({function_names.PARK: True}),
        )

    def _scheduled(
        self,
        construct_id: str,
        seconds: int,
        description: str,
        *,
        event: events.RuleTargetInput | None = None,
    ) -> events.Rule:
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


def _role(
    scope: Construct,
    statements: Sequence[iam.PolicyStatement],
    *,
    log_group: logs.LogGroup,
    queue: sqs.IQueue,
    error_queue: sqs.IQueue,
    more: Sequence[iam.PolicyStatement],
) -> iam.Role:
    release = iam.PolicyStatement(
        sid="Release",
        actions=["sqs:GetQueueUrl", "sqs:SendMessage"],
        resources=[queue.queue_arn, error_queue.queue_arn],
    )
    log = iam.PolicyStatement(
        sid="Log",
        actions=["logs:CreateLogStream", "logs:PutLogEvents"],
        resources=[log_group.log_group_arn],
    )
    role = iam.Role(
        scope,
        "Role",
        assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        inline_policies={
            "Dispatcher": iam.PolicyDocument(statements=[*statements, release, log, *more])
        },
    )
    grant_queues(role, (queue, error_queue))
    return role


def _acknowledge_function(function: lambda_.Function) -> None:
    acknowledge(
        function,
        "Serverless-LambdaTracing",
        reason="A message's own trace header travels with it; a trace per minute would tell nothing.",
    )
    acknowledge(
        function,
        "Serverless-LambdaDLQ",
        reason=_NOTHING_TO_KEEP,
    )
    acknowledge(function, "Serverless-LambdaAsyncFailureDestination", reason=_NOTHING_TO_KEEP)
