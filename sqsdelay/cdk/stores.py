"""Where an endpoint's messages may be parked: in DynamoDB, in S3, in EventBridge Scheduler.

The first two have a dispatcher on its schedule and alarms; schedules fire by themselves.
"""

from __future__ import annotations

from typing import Any, Final

from aws_cdk import Aws, CfnDeletionPolicy, RemovalPolicy, Stack, Token
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk import function_names
from sqsdelay.cdk.functions import CONCURRENCY, DispatcherFunction, Place, Wiring
from sqsdelay.cdk.monitoring import Alarms, parking_rule, store_rules
from sqsdelay.cdk.queues_and_buckets import (
    USE_KEY,
    acknowledge,
    as_nag_writes,
    grant_key,
    grant_queues,
    parking_queue,
    private_bucket,
)
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import DEFAULT_HOP_SECONDS, GATHERING_SECONDS, STORE_TABLE_SUFFIX
from sqsdelay.stores.dynamodb import table_definition
from sqsdelay.stores.dynamodb.dynamodb_store import DEFAULT_SHARDS
from sqsdelay.stores.dynamodb.layout import EXPIRY

DYNAMODB: Final = "dynamodb"
"""What ``store=`` calls this store."""

S3: Final = "s3"
"""What ``store=`` calls it."""

SCHEDULER: Final = "scheduler"
"""What ``store=`` calls it."""

KEEP_MESSAGES: Final = tuple(
    f"dynamodb:{action}"
    for action in ("BatchGetItem", "ConditionCheckItem", "DeleteItem", "PutItem", "Query")
)
"""What who parks, finds, cancels or moves messages does on the table."""

KEEP_OBJECTS: Final = ("s3:DeleteObject", "s3:GetObject", "s3:PutObject")
"""What who parks, releases, finds, cancels or moves messages does with objects; and lists them."""

CALLS: Final = (
    "scheduler:CreateSchedule",
    "scheduler:DeleteSchedule",
    "scheduler:GetSchedule",
    "scheduler:UpdateSchedule",
)
"""On schedules: park a message, know it again, cancel and move it; the same for amendments."""

MAX_GROUP_CHARS: Final = 64
"""Source: CreateScheduleGroup API reference, Name."""

USE_TABLE: Final = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
"""What using a table under a key takes. Source: DynamoDB developer guide, encryption at rest, "Usage
notes", as aws-cdk-lib's ``Table`` grants it."""

_TYPES: Final = {"S": dynamodb.AttributeType.STRING, "N": dynamodb.AttributeType.NUMBER}


class StoreTable(dynamodb.Table):
    """Keys and billing as the store defines them; restorable to any second of 35 days.

    Args:
        endpoint: the destination queue's name, which may be a token.
        table_class: ``STANDARD`` or ``STANDARD_INFREQUENT_ACCESS``.
        encryption_key: one that AWS manages when None.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        removal_policy: RemovalPolicy,
        table_class: str,
        encryption_key: kms.IKey | None,
    ) -> None:
        definition = table_definition()
        types = {a["AttributeName"]: a["AttributeType"] for a in definition["AttributeDefinitions"]}
        keys: dict[str, Any] = {
            {"HASH": "partition_key", "RANGE": "sort_key"}[key["KeyType"]]: dynamodb.Attribute(
                name=key["AttributeName"], type=_TYPES[types[key["AttributeName"]]]
            )
            for key in definition["KeySchema"]
        }
        super().__init__(
            scope,
            construct_id,
            table_name=endpoint + STORE_TABLE_SUFFIX,
            **keys,
            billing_mode=dynamodb.BillingMode(definition["BillingMode"]),
            table_class=dynamodb.TableClass(table_class),
            # Amendments, and messages that are released.
            time_to_live_attribute=EXPIRY,
            encryption=dynamodb.TableEncryption.AWS_MANAGED
            if encryption_key is None
            else dynamodb.TableEncryption.CUSTOMER_MANAGED,
            encryption_key=encryption_key,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            removal_policy=removal_policy,
        )
        # What waits in a table is still to be moved when another one takes its place.
        self.node.default_child.cfn_options.update_replace_policy = CfnDeletionPolicy.RETAIN  # type: ignore[union-attr]


class MessageStore(Place):
    """Messages wait in ``table`` until ``function`` releases them.

    Args:
        shards: over how many partitions an hour's messages are spread.
        table_class: the table's, ``STANDARD`` or ``STANDARD_INFREQUENT_ACCESS``.
    """

    def __init__(
        self, scope: Construct, construct_id: str, wiring: Wiring, *, shards: int, table_class: str
    ) -> None:
        super().__init__(scope, construct_id)
        self._shards = shards
        self.table = StoreTable(
            self,
            "Table",
            endpoint=wiring.endpoint,
            removal_policy=wiring.removal_policy,
            table_class=table_class,
            encryption_key=wiring.encryption_key,
        )
        # What releasing takes of the table.
        lease = iam.PolicyStatement(
            sid="Lease",
            actions=[
                "dynamodb:DeleteItem",
                "dynamodb:DescribeTable",
                "dynamodb:PutItem",
                "dynamodb:Query",
            ],
            resources=[self.table.table_arn],
        )
        dispatcher = DispatcherFunction(
            self, "Dispatcher", wiring, statements=[lease], variables=self.variables()
        )
        self.grant_key(dispatcher.role)
        self.function = dispatcher.function
        self.schedule = dispatcher.schedule
        rules = store_rules(endpoint=wiring.endpoint, dispatcher=self.function)
        self.alarms = Alarms(self, "Alarms", rules, topic=wiring.alarm_topic)

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
        grant_key(grantee, self.table.encryption_key, ["dynamodb"], USE_TABLE)

    def grant_store(self, producer: iam.IGrantable) -> iam.Grant:
        """Let ``producer`` store, list, find, cancel and reschedule messages."""
        self.grant_key(producer)
        return iam.Grant.add_to_principal(
            grantee=producer,
            actions=list(KEEP_MESSAGES),
            resource_arns=[self.table.table_arn],
            scope=self,
        )


class S3MessageStore(Place):
    """Messages wait in ``bucket`` until ``function`` releases them.

    The delay consumer is given ten copies at a time, for which an object would be dear. It forwards them
    to ``parking_queue``, which the dispatcher empties every five minutes, with an object for each slot.

    The bucket has no versions: what is released or cancelled would stay, and be paid for, and each state
    that is written beside an object would be kept. No lifecycle rule deletes objects: they are messages.

    What was moved so near while it waited to be parked that it hops on goes to the delay queue.

    Args:
        variables: of the delay consumer's environment, those that count for whoever parks, too.
    """

    def __init__(
        self, scope: Construct, construct_id: str, wiring: Wiring, *, variables: dict[str, str]
    ) -> None:
        super().__init__(scope, construct_id)
        kept: dict[str, Any] = {
            "removal_policy": wiring.removal_policy,
            "encryption_key": wiring.encryption_key,
        }
        self.bucket = private_bucket(self, "Bucket", **kept)
        self.parking_queue = parking_queue(self, endpoint=wiring.endpoint, **kept)
        dispatcher = DispatcherFunction(
            self,
            "Dispatcher",
            wiring,
            statements=[*self._keep("Lease"), *self._park(wiring.delay_queue)],
            variables={
                function_names.STORE_VARIABLE: self.url,
                function_names.HOP_SECONDS_VARIABLE: str(wiring.hop_seconds),
                **variables,
            },
            # One more than release side by side: a backlog does not keep messages from being parked.
            concurrency=CONCURRENCY + 1,
        )
        self.acknowledge_wildcards(dispatcher.role)
        grant_queues(dispatcher.role, (wiring.delay_queue,))
        self.grant_key(dispatcher.role)
        self.function = dispatcher.function
        self.schedule = dispatcher.schedule
        self.parking_schedule = dispatcher.every(
            GATHERING_SECONDS,
            "ParkingSchedule",
            f"Parks what the parking queue of {wiring.endpoint} has gathered",
            event=events.RuleTargetInput.from_object({function_names.PARK: True}),
        )
        rules = store_rules(endpoint=wiring.endpoint, dispatcher=self.function)
        self.alarms = Alarms(
            self, "Alarms", [*rules, parking_rule(self.parking_queue)], topic=wiring.alarm_topic
        )

    @property
    def url(self) -> str:
        """The store as `open_store` and ``--store`` take it."""
        return f"s3://{self.bucket.bucket_name}"

    def variables(self) -> dict[str, str]:
        """What the delay consumer's environment has of the store."""
        return super().variables() | {function_names.PARKING_QUEUE_VARIABLE: "true"}

    def statements(self) -> list[iam.PolicyStatement]:
        """What the delay consumer is to be allowed: forward, park what is large, read amendments and
        apply them to what it parked."""
        forward = iam.PolicyStatement(
            sid="Forward",
            actions=["sqs:GetQueueUrl", "sqs:SendMessage"],
            resources=[self.parking_queue.queue_arn],
        )
        return [forward, *self._keep("Park")]

    def grant_key(self, grantee: iam.IGrantable) -> None:
        """Let ``grantee`` use the key of bucket and parking queue, where that is the customer's."""
        grant_key(grantee, self.bucket.encryption_key, ["s3", "sqs"], USE_KEY)

    def acknowledge_wildcards(self, role: iam.Role) -> None:
        """Keep the rule against wildcards quiet: an action on a bucket's objects has no other resource."""
        bucket = self.bucket.node.default_child
        assert isinstance(bucket, s3.CfnBucket)
        arn = f"<{Stack.of(self).get_logical_id(bucket)}.Arn>"
        acknowledge(
            role,
            f"AwsSolutions-IAM5[Resource::{arn}/*]",
            reason="All objects of one bucket, which holds nothing but this endpoint's messages.",
        )

    def grant_store(self, producer: iam.IGrantable) -> None:
        """Let ``producer`` store, list, find, cancel and reschedule messages."""
        self.grant_key(producer)
        for statement in self._keep("Store"):
            producer.grant_principal.add_to_principal_policy(statement)

    def _keep(self, sid: str) -> list[iam.PolicyStatement]:
        return [
            iam.PolicyStatement(
                sid=sid, actions=list(KEEP_OBJECTS), resources=[self.bucket.arn_for_objects("*")]
            ),
            iam.PolicyStatement(
                sid=f"{sid}List", actions=["s3:ListBucket"], resources=[self.bucket.bucket_arn]
            ),
        ]

    def _park(self, delay_queue: sqs.IQueue) -> list[iam.PolicyStatement]:
        """What emptying the parking queue takes of queues."""
        return [
            iam.PolicyStatement(
                sid="Gather",
                actions=["sqs:DeleteMessage", "sqs:ReceiveMessage"],
                resources=[self.parking_queue.queue_arn],
            ),
            iam.PolicyStatement(
                sid="Hop",
                actions=["sqs:GetQueueUrl", "sqs:SendMessage"],
                resources=[self.parking_queue.queue_arn, delay_queue.queue_arn],
            ),
        ]


class ScheduleGroup(Place):
    """Messages wait as one-time schedules of ``group``, which fire into the delay queue.

    The group has the endpoint's name.

    Raises:
        ConfigurationError: a name too long for a group.
    """

    def __init__(self, scope: Construct, construct_id: str, wiring: Wiring) -> None:
        super().__init__(scope, construct_id)
        endpoint = wiring.endpoint
        sent_to = (wiring.delay_queue, wiring.error_queue)
        if not Token.is_unresolved(endpoint) and len(endpoint) > MAX_GROUP_CHARS:
            raise InvalidSetting(
                f"endpoint {endpoint!r} has {len(endpoint)} characters; a schedule group takes "
                f"{MAX_GROUP_CHARS}; shorten it, or use store=dynamodb"
            )
        self._hop_seconds = wiring.hop_seconds
        self.group = scheduler.ScheduleGroup(
            self, "Group", schedule_group_name=endpoint, removal_policy=wiring.removal_policy
        )
        self.role = iam.Role(
            self,
            "Role",
            description=f"EventBridge Scheduler sends delayed messages of {endpoint} (sqsdelay)",
            # Nobody else's schedule may borrow it: of this account, and of this group alone.
            assumed_by=iam.ServicePrincipal(
                "scheduler.amazonaws.com",
                conditions={
                    "StringEquals": {
                        "aws:SourceAccount": Aws.ACCOUNT_ID,
                        "aws:SourceArn": self.group.schedule_group_arn,
                    }
                },
            ),
            inline_policies={
                "Send": iam.PolicyDocument(
                    statements=[
                        iam.PolicyStatement(
                            sid="Send",
                            actions=["sqs:SendMessage"],
                            resources=[queue.queue_arn for queue in sent_to],
                        )
                    ]
                )
            },
        )
        grant_queues(self.role, sent_to)

    @property
    def url(self) -> str:
        """The place as `open_place` and ``--store`` take it."""
        url = f"scheduler://{self.group.schedule_group_name}?role={self.role.role_arn}"
        if self._hop_seconds == DEFAULT_HOP_SECONDS:
            return url
        return f"{url}&hop={self._hop_seconds}"

    @property
    def schedules_arn(self) -> str:
        """All schedules of the group."""
        return Stack.of(self).format_arn(
            service="scheduler",
            resource="schedule",
            resource_name=f"{self.group.schedule_group_name}/*",
        )

    def statements(self) -> list[iam.PolicyStatement]:
        """What the delay consumer is to be allowed: park, read amendments, cancel, move."""
        return [
            iam.PolicyStatement(sid="Park", actions=[*CALLS], resources=[self.schedules_arn]),
            iam.PolicyStatement(
                sid="Group",
                actions=["scheduler:GetScheduleGroup"],
                resources=[self.group.schedule_group_arn],
            ),
            iam.PolicyStatement(
                sid="PassRole",
                actions=["iam:PassRole"],
                resources=[self.role.role_arn],
                conditions={"StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}},
            ),
        ]

    def acknowledge_wildcards(self, role: iam.Role) -> None:
        """Say why a role of this endpoint has a wildcard."""
        acknowledge(
            role,
            f"AwsSolutions-IAM5[Resource::{as_nag_writes(self, self.schedules_arn)}]",
            reason="A message's schedule has a name of its own: the wildcard is for the schedules of this "
            "endpoint's group.",
        )

    def grant_store(self, producer: iam.IGrantable) -> None:
        """Let ``producer`` store, list, find, cancel and reschedule messages."""
        for statement in self.statements():
            producer.grant_principal.add_to_principal_policy(statement)
        # Listing takes no resource: the service authorization reference has none for it.
        listing = iam.PolicyStatement(actions=["scheduler:ListSchedules"], resources=["*"])
        producer.grant_principal.add_to_principal_policy(listing)
