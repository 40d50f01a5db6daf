"""The delay consumer: the function that moves messages one hop on, its role, its log, its event source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aws_cdk import Duration
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
from sqsdelay.cdk.message_store import MessageStore
from sqsdelay.cdk.s3_ledger import S3Ledger, ledger_setting, ledger_statements
from sqsdelay.cdk.s3_message_store import S3MessageStore
from sqsdelay.cdk.schedule_group import ScheduleGroup
from sqsdelay.limits import (
    DEFAULT_MAX_DELAY_SECONDS,
    DELAY_CONSUMER_MEMORY_MB,
    FUNCTION_TIMEOUT_SECONDS,
    MAX_BATCH_ENTRIES,
)

DEFAULT_MAX_CONCURRENCY: Final = 10
"""Batches in hand at once; the event source takes 2 to 1,000."""


Place = MessageStore | S3MessageStore | ScheduleGroup
"""Where messages may be parked."""


class DelayConsumerFunction(Construct):
    """The function on its queues' event sources, allowed just what it does.

    Args:
        endpoint: the destination queue's name, which may be a token.
        queue: the destination.
        hop_seconds: the delay queue's delivery delay.
        max_delay_seconds: what is due later than that goes to the error queue.
        max_concurrency: batches in hand at once, 2 to 1,000.
        code: the function's code; built from this checkout when left out.
        store: where to park messages that are far away; they hop on when left out.
        due_queue: of a FIFO endpoint, served too.
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
        delay_queue: sqs.IQueue,
        error_queue: sqs.IQueue,
        hop_seconds: int,
        max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS,
        max_concurrency: int = DEFAULT_MAX_CONCURRENCY,
        code: lambda_.Code | None = None,
        store: Place | None = None,
        due_queue: sqs.IQueue | None = None,
        ledger: S3Ledger | bool = False,
        settings: FunctionSettings = DEFAULTS,
    ) -> None:
        super().__init__(scope, construct_id)
        due_queues = () if due_queue is None else (due_queue,)
        log_group = settings.log_group(self)
        recorded = ledger_setting(ledger)
        self.role = _role(
            self,
            log_group=log_group,
            queue=queue,
            consumed=(delay_queue, *due_queues),
            error_queue=error_queue,
            store=store,
            more=[*settings.statements(), *ledger_statements(ledger, log_group)],
        )
        if isinstance(store, S3MessageStore):
            store.acknowledge_objects(self.role)
        if isinstance(store, ScheduleGroup):
            store.acknowledge_schedules(self.role)
        self.function = lambda_.Function(
            self,
            "Function",
            description=f"Relays delayed messages of {endpoint} (sqsdelay)",
            code=code or lambda_.Code.from_asset(str(functions_archive())),
            handler=function_names.CONSUMER_HANDLER,
            runtime=lambda_.Runtime.PYTHON_3_14,
            architecture=lambda_.Architecture.ARM_64,
            memory_size=settings.memory_mb or DELAY_CONSUMER_MEMORY_MB,
            timeout=Duration.seconds(FUNCTION_TIMEOUT_SECONDS),
            environment={
                function_names.ENDPOINT_VARIABLE: endpoint,
                function_names.HOP_SECONDS_VARIABLE: str(hop_seconds),
                **max_delay_setting(max_delay_seconds),
                **({} if store is None else {function_names.STORE_VARIABLE: store.url}),
                **(store.variables() if isinstance(store, S3MessageStore) else {}),
                **({function_names.LEDGER_VARIABLE: recorded} if recorded else {}),
            },
            # Relaying is a loop by design: unless told so, Lambda stops it after about 16 hops.
            recursive_loop=lambda_.RecursiveLoop.ALLOW,
            role=self.role,
            log_group=log_group,
            # The metrics travel in log lines, which a level above INFO would drop.
            logging_format=lambda_.LoggingFormat.JSON,
            system_log_level_v2=lambda_.SystemLogLevel.WARN,
            **settings.arguments(),
        )
        settings.acknowledge(self)
        _acknowledge_function(self.function)
        self._serve("EventSource", delay_queue, max_concurrency)
        if due_queue is not None:
            self._serve("DueEventSource", due_queue, max_concurrency)

    def _serve(self, construct_id: str, queue: sqs.IQueue, max_concurrency: int) -> None:
        event_source = lambda_.EventSourceMapping(
            self,
            construct_id,
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


def max_delay_setting(max_delay_seconds: int) -> dict[str, str]:
    """The variable of the function's environment, where it is to have one."""
    if max_delay_seconds == DEFAULT_MAX_DELAY_SECONDS:
        return {}
    return {function_names.MAX_DELAY_SECONDS_VARIABLE: str(max_delay_seconds)}


def _role(
    scope: Construct,
    *,
    log_group: logs.LogGroup,
    queue: sqs.IQueue,
    consumed: Sequence[sqs.IQueue],
    error_queue: sqs.IQueue,
    store: Place | None,
    more: Sequence[iam.PolicyStatement],
) -> iam.Role:
    arns = [each.queue_arn for each in consumed]
    relay = iam.PolicyStatement(
        sid="Relay",
        actions=["sqs:GetQueueUrl", "sqs:SendMessage"],
        resources=[queue.queue_arn, *arns, error_queue.queue_arn],
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
    log = iam.PolicyStatement(
        sid="Log",
        actions=["logs:CreateLogStream", "logs:PutLogEvents"],
        resources=[log_group.log_group_arn],
    )
    statements = [relay, consume, log, *([] if store is None else store.statements()), *more]
    role = iam.Role(
        scope,
        "Role",
        assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        # Inline, so that the event source, which needs them at once, is not created before them.
        inline_policies={"DelayConsumer": iam.PolicyDocument(statements=statements)},
    )
    grant_queues(role, (queue, *consumed, error_queue))
    if store is not None:
        store.grant_key(role)
    return role


def _acknowledge_function(function: lambda_.Function) -> None:
    acknowledge(
        function,
        "Serverless-LambdaTracing",
        reason="The sender's trace header travels with the message; a trace of its own per hop "
        "would cost more than the hop and need a permission on every resource.",
    )
    acknowledge(
        function,
        "Serverless-LambdaDLQ",
        reason="It is invoked by event sources only, where a failed batch stays in its "
        "queue; the dead-letter queue of a function is for asynchronous invocations.",
    )
