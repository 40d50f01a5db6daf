"""A schedule group of EventBridge Scheduler to park in, and the role that sends for it."""

from __future__ import annotations

from typing import Final

from aws_cdk import Aws, RemovalPolicy, Stack, Token
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk.acknowledgement import acknowledge, as_nag_writes
from sqsdelay.cdk.encryption import grant_queues
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import DEFAULT_HOP_SECONDS

SCHEDULER: Final = "scheduler"
"""What ``store=`` calls it."""

MAX_GROUP_CHARS: Final = 64
"""Source: CreateScheduleGroup API reference, Name."""

CALLS: Final = (
    "scheduler:CreateSchedule",
    "scheduler:DeleteSchedule",
    "scheduler:GetSchedule",
    "scheduler:UpdateSchedule",
)
"""On schedules: park a message, know it again, cancel and move it; the same for amendments."""


class ScheduleGroup(Construct):
    """Messages wait as one-time schedules of ``group``, which fire into the delay queue.

    Args:
        endpoint: the destination queue's name, which may be a token; the group has it, too.
        removal_policy: what becomes of the group, and the messages in it, when removed.

    Raises:
        ConfigurationError: a name too long for a group.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        delay_queue: sqs.IQueue,
        error_queue: sqs.IQueue,
        hop_seconds: int = DEFAULT_HOP_SECONDS,
        removal_policy: RemovalPolicy = RemovalPolicy.RETAIN,
    ) -> None:
        super().__init__(scope, construct_id)
        if not Token.is_unresolved(endpoint) and len(endpoint) > MAX_GROUP_CHARS:
            raise InvalidSetting(
                f"endpoint {endpoint!r} has {len(endpoint)} characters; a schedule group takes "
                f"{MAX_GROUP_CHARS}; shorten it, or use store=dynamodb"
            )
        self._hop_seconds = hop_seconds
        self.group = scheduler.ScheduleGroup(
            self, "Group", schedule_group_name=endpoint, removal_policy=removal_policy
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
                            resources=[delay_queue.queue_arn, error_queue.queue_arn],
                        )
                    ]
                )
            },
        )

        grant_queues(self.role, (delay_queue, error_queue))

    def grant_key(self, grantee: iam.IGrantable) -> None:
        """Schedules are under a key of AWS's: who parks needs none."""

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

    def acknowledge_schedules(self, role: iam.Role) -> None:
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
