"""The alarms of one endpoint; docs/deploy.md says what to do when each rings."""

from __future__ import annotations

from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.limits import DELAY_QUEUE_VISIBILITY_SECONDS

PERIOD: Final = Duration.minutes(5)
OVERDUE_MARGIN_SECONDS: Final = 2 * DELAY_QUEUE_VISIBILITY_SECONDS
"""A copy whose first attempt died is received again after one visibility timeout; the second allows
for a second such death."""


class Alarms(Construct):
    """Error queue not empty, oldest message overdue, function errors, throttles, recursion drops.

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
    ) -> None:
        super().__init__(scope, construct_id)
        self._topic = topic
        self.error_queue_not_empty = self._alarm(
            "ErrorQueueNotEmpty",
            error_queue.metric_approximate_number_of_messages_visible(
                period=PERIOD, statistic="max"
            ),
            "Messages that could not be delivered wait in the error queue",
        )
        self.oldest_message = self._alarm(
            "OldestMessage",
            delay_queue.metric_approximate_age_of_oldest_message(period=PERIOD, statistic="max"),
            "A message is in the delay queue for longer than one hop and a margin: the relay is "
            "behind, or fails on it",
            above=hop_seconds + OVERDUE_MARGIN_SECONDS,
        )
        self.errors = self._alarm(
            "FunctionErrors",
            function.metric_errors(period=PERIOD),
            "The delay consumer raised or timed out; its batch comes back",
        )
        self.throttles = self._alarm(
            "FunctionThrottles",
            function.metric_throttles(period=PERIOD),
            "The delay consumer is throttled: the account has no concurrency left",
        )
        self.recursion_drops = self._alarm(
            "RecursionDrops",
            function.metric("RecursiveInvocationsDropped", period=PERIOD, statistic="sum"),
            "Lambda stops the relay as a recursive loop; it should be told to allow it",
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
        ]

    def _alarm(
        self, name: str, metric: cloudwatch.Metric, description: str, *, above: float = 0
    ) -> cloudwatch.Alarm:
        alarm = cloudwatch.Alarm(
            self,
            name,
            metric=metric,
            alarm_description=description,
            threshold=above,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            evaluation_periods=1,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        if self._topic is not None:
            alarm.add_alarm_action(actions.SnsAction(self._topic))
        return alarm
