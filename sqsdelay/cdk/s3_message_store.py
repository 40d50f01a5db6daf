"""The S3 store of one endpoint: bucket, parking queue, dispatcher on its schedules, alarms."""

from __future__ import annotations

from typing import Final

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk import function_names, queues
from sqsdelay.cdk.acknowledgement import acknowledge
from sqsdelay.cdk.alarms import Alarms, parking_rule, store_rules
from sqsdelay.cdk.body_bucket import private_bucket
from sqsdelay.cdk.dispatcher_function import CONCURRENCY, DispatcherFunction
from sqsdelay.cdk.encryption import grant_queues
from sqsdelay.cdk.function_settings import DEFAULTS, FunctionSettings
from sqsdelay.cdk.s3_ledger import S3Ledger
from sqsdelay.limits import GATHERING_SECONDS

S3: Final = "s3"
"""What ``store=`` calls it."""

KEEP_OBJECTS: Final = ("s3:DeleteObject", "s3:GetObject", "s3:PutObject")
"""What who parks, releases, finds, cancels or moves messages does with objects; and lists them."""


class S3MessageStore(Construct):
    """Messages wait in ``bucket`` until ``function`` releases them to ``queue``.

    The delay consumer is given ten copies at a time, for which an object would be dear. It forwards them
    to ``parking_queue``, which the dispatcher empties every five minutes, with an object for each slot.

    The bucket has no versions: what is released or cancelled would stay, and be paid for, and each state
    that is written beside an object would be kept. No lifecycle rule deletes objects: they are messages.

    Args:
        endpoint: the destination queue's name, which may be a token.
        queue: where released messages go: the destination, or a FIFO endpoint's due queue.
        delay_queue: where a message goes that was moved so near while it waited to be parked that it
            hops on.
        hop_seconds: the delay queue's delivery delay.
        variables: of the delay consumer's environment, those that count for whoever parks, too.
        alarm_topic: notified when an alarm starts.
        removal_policy: what becomes of bucket and parking queue, and the messages in them, when removed.
        code: the dispatcher's code; built from this checkout when left out.
        ledger: where the dispatcher records what it does; True is its log.
        encryption_key: of bucket and parking queue; one that AWS manages when None.
        settings: where and how the dispatcher runs.
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
        variables: dict[str, str],
        alarm_topic: sns.ITopic | None = None,
        removal_policy: RemovalPolicy = RemovalPolicy.RETAIN,
        code: lambda_.Code | None = None,
        ledger: S3Ledger | bool = False,
        encryption_key: kms.IKey | None = None,
        settings: FunctionSettings = DEFAULTS,
    ) -> None:
        super().__init__(scope, construct_id)
        self.bucket = private_bucket(
            self, "Bucket", removal_policy=removal_policy, encryption_key=encryption_key
        )
        self.parking_queue = queues.parking_queue(
            self, endpoint=endpoint, removal_policy=removal_policy, encryption_key=encryption_key
        )
        dispatcher = DispatcherFunction(
            self,
            "Dispatcher",
            endpoint=endpoint,
            queue=queue,
            error_queue=error_queue,
            statements=[*self._keep("Lease"), *self._park(delay_queue)],
            store_url=self.url,
            variables={function_names.HOP_SECONDS_VARIABLE: str(hop_seconds), **variables},
            settings=settings,
            # One more than release side by side: a backlog does not keep messages from being parked.
            concurrency=CONCURRENCY + 1,
            code=code,
            ledger=ledger,
        )
        self.acknowledge_objects(dispatcher.role)
        grant_queues(dispatcher.role, (delay_queue,))
        self.grant_key(dispatcher.role)
        self.function = dispatcher.function
        self.schedule = dispatcher.schedule
        self.parking_schedule = dispatcher.park_every(GATHERING_SECONDS, endpoint)
        rules = store_rules(endpoint=endpoint, dispatcher=self.function)
        self.alarms = Alarms(
            self, "Alarms", [*rules, parking_rule(self.parking_queue)], topic=alarm_topic
        )

    @property
    def url(self) -> str:
        """The store as `open_store` and ``--store`` take it."""
        return f"s3://{self.bucket.bucket_name}"

    def variables(self) -> dict[str, str]:
        """What the delay consumer's environment has besides the store's URL."""
        return {function_names.PARKING_QUEUE_VARIABLE: "true"}

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
        grant_queues(grantee, (self.parking_queue,))

    def acknowledge_objects(self, role: iam.Role) -> None:
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
