"""A delayed message store for one endpoint: table, dispatcher on its schedule, alarms."""

from __future__ import annotations

from typing import Final

from aws_cdk import RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk.alarms import Alarms, store_rules
from sqsdelay.cdk.dispatcher_function import DispatcherFunction
from sqsdelay.cdk.encryption import grant_table
from sqsdelay.cdk.function_settings import DEFAULTS, FunctionSettings
from sqsdelay.cdk.s3_ledger import S3Ledger
from sqsdelay.cdk.store_table import StoreTable
from sqsdelay.stores.dynamodb.dynamodb_store import DEFAULT_SHARDS, STANDARD

DYNAMODB: Final = "dynamodb"
"""What ``store=`` calls this store."""

KEEP_MESSAGES: Final = tuple(
    f"dynamodb:{action}"
    for action in ("BatchGetItem", "ConditionCheckItem", "DeleteItem", "PutItem", "Query")
)
"""What who parks, finds, cancels or moves messages does on the table."""


class MessageStore(Construct):
    """Messages wait in ``table`` until ``function`` releases them to ``queue``.

    Args:
        endpoint: the destination queue's name, which may be a token.
        queue: where released messages go: the destination, or a FIFO endpoint's due queue.
        alarm_topic: notified when an alarm starts.
        removal_policy: what becomes of the table, and the messages in it, when removed.
        code: the dispatcher's code; built from this checkout when left out.
        ledger: where the dispatcher records what it does; True is its log.
        shards: over how many partitions an hour's messages are spread.
        table_class: the table's, ``STANDARD`` or ``STANDARD_INFREQUENT_ACCESS``.
        encryption_key: of the table; one that AWS manages when None.
        settings: where and how the dispatcher runs.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        queue: sqs.IQueue,
        error_queue: sqs.IQueue,
        alarm_topic: sns.ITopic | None = None,
        removal_policy: RemovalPolicy = RemovalPolicy.RETAIN,
        code: lambda_.Code | None = None,
        ledger: S3Ledger | bool = False,
        shards: int = DEFAULT_SHARDS,
        table_class: str = STANDARD,
        encryption_key: kms.IKey | None = None,
        settings: FunctionSettings = DEFAULTS,
    ) -> None:
        super().__init__(scope, construct_id)
        self._shards = shards
        self.table = StoreTable(
            self,
            "Table",
            endpoint=endpoint,
            removal_policy=removal_policy,
            table_class=table_class,
            encryption_key=encryption_key,
        )
        dispatcher = DispatcherFunction(
            self,
            "Dispatcher",
            endpoint=endpoint,
            queue=queue,
            error_queue=error_queue,
            statements=[_lease(self.table)],
            store_url=self.url,
            code=code,
            ledger=ledger,
            settings=settings,
        )
        self.grant_key(dispatcher.role)
        self.function = dispatcher.function
        self.schedule = dispatcher.schedule
        self.alarms = Alarms(
            self,
            "Alarms",
            store_rules(endpoint=endpoint, dispatcher=self.function),
            topic=alarm_topic,
        )

    @property
    def url(self) -> str:
        """The store as `open_store` and ``--store`` take it."""
        settings = "" if self._shards == DEFAULT_SHARDS else f"?shards={self._shards}"
        return f"dynamodb://{self.table.table_name}{settings}"

    def statements(self) -> list[iam.PolicyStatement]:
        """What the delay consumer is to be allowed: park a message, know it again when its copy comes
        back, read amendments, and apply one to a message parked just now."""
        return [
            iam.PolicyStatement(
                sid="Park", actions=list(KEEP_MESSAGES), resources=[self.table.table_arn]
            )
        ]

    def grant_key(self, grantee: iam.IGrantable) -> None:
        """Let ``grantee`` use the table's key, where that is the customer's."""
        grant_table(grantee, self.table.encryption_key)

    def grant_store(self, producer: iam.IGrantable) -> iam.Grant:
        """Let ``producer`` store, list, find, cancel and reschedule messages."""
        self.grant_key(producer)
        return iam.Grant.add_to_principal(
            grantee=producer,
            actions=list(KEEP_MESSAGES),
            resource_arns=[self.table.table_arn],
            scope=self,
        )


def _lease(table: StoreTable) -> iam.PolicyStatement:
    """What releasing takes of the table."""
    return iam.PolicyStatement(
        sid="Lease",
        actions=[
            "dynamodb:DeleteItem",
            "dynamodb:DescribeTable",
            "dynamodb:PutItem",
            "dynamodb:Query",
            "dynamodb:UpdateItem",
        ],
        resources=[table.table_arn],
    )
