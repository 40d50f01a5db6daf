"""Where an endpoint's messages may be parked: in DynamoDB, in S3, in EventBridge Scheduler.

The first two have a dispatcher on its schedule and alarms; schedules fire by themselves.
"""

from __future__ import annotations

from typing import Any, Final

from aws_cdk import Aws, CfnDeletionPolicy, Duration, Stack, Tags, Token
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk import function_names, queues_and_buckets
from sqsdelay.cdk.functions import CONCURRENCY, DispatcherFunction, Place, Wiring
from sqsdelay.cdk.monitoring import SILENT, Alarms, Watched, of_runs, oldest, own_metric
from sqsdelay.cdk.queues_and_buckets import allow, beside, grant_key, grant_queues, waiting_queue
from sqsdelay.core import limits
from sqsdelay.core.delay import check_range
from sqsdelay.errors import InvalidSetting
from sqsdelay.operating.status import OVERDUE_MS, ROLE_TAG, STORE_TAG
from sqsdelay.stores.dynamodb.dynamodb_store import DEFAULT_SHARDS, MAX_SHARDS
from sqsdelay.stores.dynamodb.layout import EXPIRY, PARTITION, SORT

DYNAMODB: Final = "dynamodb"
S3: Final = "s3"
SCHEDULER: Final = "scheduler"
"""What ``store=`` calls them."""

_KEEPS: Final = ("BatchGetItem", "ConditionCheckItem", "DeleteItem", "PutItem", "Query")
KEEP_MESSAGES: Final = tuple(f"dynamodb:{action}" for action in _KEEPS)
"""What who parks, finds, cancels or moves messages does on the table."""

KEEP_OBJECTS: Final = ("s3:DeleteObject", "s3:GetObject", "s3:PutObject")
"""What who parks, releases, finds, cancels or moves messages does with objects; and lists them."""

CALLS: Final = tuple(f"scheduler:{verb}Schedule" for verb in ("Create", "Delete", "Get", "Update"))
"""On schedules: park a message, know it again, cancel and move it; amendments; the version."""

MAX_GROUP_CHARS: Final = 64
"""Source: CreateScheduleGroup API reference, Name."""

_USES: Final = "Decrypt DescribeKey Encrypt GenerateDataKey ReEncryptFrom ReEncryptTo"
USE_TABLE: Final = tuple(f"kms:{action}" for action in _USES.split())
"""What using a table under a key takes. Source: DynamoDB developer guide, encryption at rest, "Usage
notes", as aws-cdk-lib's ``Table`` grants it."""

_SERVICE: Final = "scheduler.amazonaws.com"


class Dispatched(Place):
    """A store from which ``function`` releases, on its ``schedule``; ``alarms`` tell when it does not."""

    def dispatch(
        self, wiring: Wiring, more: Watched | None = None, **arguments: Any
    ) -> DispatcherFunction:
        """Make the function with these arguments, and its alarms with some more."""
        made = DispatcherFunction(self, wiring, store_url=self.url, **arguments)
        self.use(made.role)
        self.function, self.schedule = made.function, made.schedule
        overdue = own_metric(wiring.endpoint, function_names.OVERDUE, "max"), OVERDUE_MS
        watched = {"Overdue": overdue, **of_runs("Dispatcher", made.function), **(more or {})}
        self.alarms = Alarms(self, watched, topic=wiring.alarm_topic)
        return made


class MessageStore(Dispatched):
    """Messages wait in ``table`` until ``function`` releases them. ``shards``: over how many partitions an
    hour's messages are spread. ``table_class``: the table's, ``STANDARD`` or ``STANDARD_INFREQUENT_ACCESS``.
    """

    def __init__(
        self, scope: Construct, construct_id: str, wiring: Wiring, *, shards: int, table_class: str
    ) -> None:
        super().__init__(scope, construct_id)
        check_range(1, MAX_SHARDS, store_shards=shards)
        key, text = wiring.encryption_key, dynamodb.AttributeType.STRING
        kept = dynamodb.TableEncryption
        # Keys and billing as the store defines them; restorable to any second of 35 days.
        self.table = dynamodb.Table(
            self,
            "Table",
            table_name=wiring.endpoint + limits.STORE_TABLE_SUFFIX,
            partition_key=dynamodb.Attribute(name=PARTITION, type=text),
            sort_key=dynamodb.Attribute(name=SORT, type=text),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            table_class=dynamodb.TableClass(table_class),
            # Amendments, and messages that are released.
            time_to_live_attribute=EXPIRY,
            encryption=kept.AWS_MANAGED if key is None else kept.CUSTOMER_MANAGED,
            encryption_key=key,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            removal_policy=wiring.removal_policy,
        )
        # What waits in a table is still to be moved when another one takes its place.
        made: Any = self.table.node.default_child
        made.cfn_options.update_replace_policy = CfnDeletionPolicy.RETAIN
        self.url = f"dynamodb://{self.table.table_name}"
        if shards != DEFAULT_SHARDS:
            self.url += f"?shards={shards}"
        # What releasing takes of the table.
        actions = ("DeleteItem", "DescribeTable", "PutItem", "Query")
        lease = allow("Lease", [f"dynamodb:{a}" for a in actions], self.table.table_arn)
        self.dispatch(wiring, statements=[lease])

    def statements(self) -> list[iam.PolicyStatement]:
        """What the delay consumer is to be allowed: park a message, know it again when its copy comes
        back, read amendments, and apply one to a message parked just now."""
        return [allow("Park", KEEP_MESSAGES, self.table.table_arn)]

    def grant_key(self, grantee: iam.IGrantable) -> None:
        grant_key(grantee, self.table.encryption_key, ["dynamodb"], USE_TABLE)


class S3MessageStore(Dispatched):
    """Messages wait in ``bucket`` until ``function`` releases them.

    The delay consumer is given ten copies at a time, for which an object would be dear. It forwards them
    to ``parking_queue``, which the dispatcher empties every five minutes, with an object for each slot.

    The bucket has no versions: what is released or cancelled would stay, and be paid for, and each state
    that is written beside an object would be kept. No lifecycle rule deletes objects: they are messages.

    What was moved so near while it waited to be parked that it hops on goes to the delay queue."""

    def __init__(self, scope: Construct, construct_id: str, wiring: Wiring) -> None:
        super().__init__(scope, construct_id)
        self.bucket = queues_and_buckets.PrivateBucket(self, "Bucket", **wiring.kept)
        self.url = f"s3://{self.bucket.bucket_name}"
        # An action on a bucket's objects has no other resource.
        why = "All objects of one bucket, which holds nothing but this endpoint's messages."
        self.wildcard = self.bucket.arn_for_objects("*"), why
        self.parking_queue = waiting_queue(self, "ParkingQueue", wiring.endpoint, **wiring.kept)
        # By which a bucket is found that was retained: CloudFormation makes up its name.
        Tags.of(self.parking_queue).add(STORE_TAG, self.url)
        dispatcher = self.dispatch(
            wiring,
            {"OldestParkingMessage": oldest(self.parking_queue, limits.GATHERING_SECONDS)},
            statements=[*self.store_statements("Lease"), *_empty(self.parking_queue, wiring)],
            # One more than release side by side: a backlog does not keep messages from being parked.
            concurrency=CONCURRENCY + 1,
        )
        grant_queues(dispatcher.role, (wiring.delay_queue,))
        self.parking_schedule = dispatcher.empty_parking_queue(wiring.endpoint)

    def statements(self) -> list[iam.PolicyStatement]:
        """What the delay consumer is to be allowed: forward, park what is large, read amendments and
        apply them to what it parked."""
        send = ("sqs:GetQueueUrl", "sqs:SendMessage")
        forward = allow("Forward", send, self.parking_queue.queue_arn)
        return [forward, *self.store_statements("Park")]

    def grant_key(self, grantee: iam.IGrantable) -> None:
        """The key of bucket and parking queue."""
        grant_key(grantee, self.bucket.encryption_key, ["s3", "sqs"], queues_and_buckets.USE_KEY)

    def store_statements(self, sid: str = "Store") -> list[iam.PolicyStatement]:
        """Objects of the bucket."""
        return [
            allow(sid, KEEP_OBJECTS, self.bucket.arn_for_objects("*")),
            allow(f"{sid}List", ["s3:ListBucket"], self.bucket.bucket_arn),
        ]


def _empty(parking_queue: sqs.IQueue, wiring: Wiring) -> list[iam.PolicyStatement]:
    """What emptying a parking queue takes of queues."""
    parking, delay = parking_queue.queue_arn, wiring.delay_queue.queue_arn
    return [
        allow("Gather", ["sqs:DeleteMessage", "sqs:ReceiveMessage"], parking),
        allow("Hop", ["sqs:GetQueueUrl", "sqs:SendMessage"], parking, delay),
    ]


class ScheduleGroup(Place):
    """Messages wait as one-time schedules of ``group``, which fire into ``parking_queue``. ``function``
    empties that every five minutes, and hands over. The group has the endpoint's name. Raises
    ConfigurationError: a name too long for a group."""

    def __init__(self, scope: Construct, construct_id: str, wiring: Wiring) -> None:
        super().__init__(scope, construct_id)
        endpoint = wiring.endpoint
        if not Token.is_unresolved(endpoint) and len(endpoint) > MAX_GROUP_CHARS:
            raise InvalidSetting(
                f"endpoint {endpoint!r} has {len(endpoint)} characters; a schedule group takes "
                f"{MAX_GROUP_CHARS}; shorten it, or use store=dynamodb"
            )
        self.parking_queue = waiting_queue(self, "ParkingQueue", endpoint, **wiring.kept)
        self.group = scheduler.ScheduleGroup(
            self, "Group", schedule_group_name=endpoint, removal_policy=wiring.removal_policy
        )
        # Nobody else's schedule may borrow it: of this account, and of this group alone.
        ours = {"aws:SourceAccount": Aws.ACCOUNT_ID, "aws:SourceArn": self.group.schedule_group_arn}
        # By its name, not by a reference: the queue has a tag that tells the role.
        parking = Stack.of(self).format_arn(
            service="sqs", resource=beside(endpoint, limits.PARKING_QUEUE_SUFFIX)
        )
        send = allow("Send", ["sqs:SendMessage"], parking, wiring.error_queue.queue_arn)
        self.role = iam.Role(
            self,
            "Role",
            description=f"EventBridge Scheduler sends delayed messages of {endpoint} (sqsdelay)",
            assumed_by=iam.ServicePrincipal(_SERVICE, conditions={"StringEquals": ours}),
            inline_policies={"Send": iam.PolicyDocument(statements=[send])},
        )
        grant_queues(self.role, (self.parking_queue, wiring.error_queue))
        # What is retained has still to fire.
        self.role.apply_removal_policy(wiring.removal_policy)
        group = self.group.schedule_group_name
        self.url = f"scheduler://{group}?role={self.role.role_arn}"
        tags = Tags.of(self.parking_queue)
        tags.add(STORE_TAG, f"scheduler://{group}")
        tags.add(ROLE_TAG, self.role.role_arn)
        self._schedules_arn = Stack.of(self).format_arn(
            service="scheduler", resource="schedule", resource_name=f"{group}/*"
        )
        why = "A message's schedule has a name of its own: these are of this endpoint's group."
        self.wildcard = self._schedules_arn, why
        emptied = _empty(self.parking_queue, wiring)
        emptier = DispatcherFunction(self, wiring, statements=emptied, place=self)
        grant_queues(emptier.role, (self.parking_queue, wiring.delay_queue))
        self.function = emptier.function
        self.parking_schedule = emptier.empty_parking_queue(endpoint)
        longest = limits.GATHERING_SECONDS + limits.MAX_MESSAGE_TIMER_SECONDS
        watched = {
            **of_runs("Dispatcher", self.function),
            SILENT: (self.function.metric_invocations(period=Duration.minutes(1)), 1),
            "OldestParkingMessage": oldest(self.parking_queue, longest),
        }
        self.alarms = Alarms(self, watched, topic=wiring.alarm_topic)

    def statements(self) -> list[iam.PolicyStatement]:
        """What the delay consumer is to be allowed: park, read amendments, cancel, move."""
        passed = {"StringEquals": {"iam:PassedToService": _SERVICE}}
        return [
            allow("Park", CALLS, self._schedules_arn),
            allow("PassRole", ["iam:PassRole"], self.role.role_arn, conditions=passed),
        ]

    def store_statements(self) -> list[iam.PolicyStatement]:
        """The same, and to list, which takes no resource: the service authorization reference has none."""
        listing = iam.PolicyStatement(actions=["scheduler:ListSchedules"], resources=["*"])
        return [*self.statements(), listing]
