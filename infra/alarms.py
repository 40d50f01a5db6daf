"""The alarms of one endpoint; docs/operations.md says what to do when each rings."""

from __future__ import annotations

from typing import Final

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.alarm import PERIOD, Alarm
from sqsdelay.limits import DELAY_QUEUE_VISIBILITY_SECONDS, MAX_MESSAGE_TIMER_SECONDS

OVERDUE_MARGIN_SECONDS: Final = 2 * DELAY_QUEUE_VISIBILITY_SECONDS
"""A copy whose first attempt died is received again after one visibility timeout; the second allows
for a second such death."""


class Alarms(Construct):
    """Error queue not empty, oldest message overdue, function errors, throttles, recursion drops.

    With a due queue also its oldest message overdue.

    Args:
        hop_seconds: the delay queue's delivery delay.
        topic: told of every alarm that starts; nobody is when left out.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        delay_queue: sqs.IQueue,
        error_queue: sqs.IQueue,
        function: lambda_.IFunction,
        hop_seconds: int,
        topic: sns.ITopic | None = None,
        due_queue: sqs.IQueue | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.error_queue_not_empty = Alarm(
            self,
            "ErrorQueueNotEmpty",
            metric=error_queue.metric_approximate_number_of_messages_visible(
                period=PERIOD, statistic="max"
            ),
            description="Messages that could not be delivered wait in the error queue",
            topic=topic,
        )
        self.oldest_message = Alarm(
            self,
            "OldestMessage",
            metric=delay_queue.metric_approximate_age_of_oldest_message(
                period=PERIOD, statistic="max"
            ),
            description="A message has been in the delay queue for more than one hop and a margin: "
            "the relay is late, or fails on it",
            above=hop_seconds + OVERDUE_MARGIN_SECONDS,
            topic=topic,
        )
        self.errors = Alarm(
            self,
            "FunctionErrors",
            metric=function.metric_errors(period=PERIOD),
            description="The delay consumer raised or timed out; its batch comes back",
            topic=topic,
        )
        self.throttles = Alarm(
            self,
            "FunctionThrottles",
            metric=function.metric_throttles(period=PERIOD),
            description="The delay consumer is throttled: the account has no concurrency left",
            topic=topic,
        )
        self.recursion_drops = Alarm(
            self,
            "RecursionDrops",
            metric=function.metric("RecursiveInvocationsDropped", period=PERIOD, statistic="sum"),
            description="Lambda stops the relay as a recursive loop; configure it to allow recursion",
            topic=topic,
        )
        self.oldest_due_message = None if due_queue is None else self._overdue(due_queue, topic)

    def _overdue(self, due_queue: sqs.IQueue, topic: sns.ITopic | None) -> Alarm:
        return Alarm(
            self,
            "OldestDueMessage",
            metric=due_queue.metric_approximate_age_of_oldest_message(
                period=PERIOD, statistic="max"
            ),
            description="A message has been in the due queue for more than a message timer and a "
            "margin: the relay is late, or fails on it",
            above=MAX_MESSAGE_TIMER_SECONDS + OVERDUE_MARGIN_SECONDS,
            topic=topic,
        )

    @property
    def all(self) -> list[cloudwatch.Alarm]:
        """Every alarm, in the order of the documentation."""
        return [
            self.error_queue_not_empty,
            self.oldest_message,
            self.errors,
            self.throttles,
            self.recursion_drops,
            *([] if self.oldest_due_message is None else [self.oldest_due_message]),
        ]
