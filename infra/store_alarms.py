"""The alarms of a store; docs/operations.md says what to do when each rings."""

from __future__ import annotations

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from constructs import Construct

from infra.alarm import PERIOD, Alarm
from lambdas.dispatcher import contract
from sqsdelay.operating.status import OVERDUE_MS


class StoreAlarms(Construct):
    """Due but still in the store, dispatcher errors, dispatcher throttles.

    Args:
        endpoint: the destination queue's name, which may be a token.
        topic: told of every alarm that starts; nobody is when left out.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        dispatcher: lambda_.IFunction,
        topic: sns.ITopic | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.overdue = Alarm(
            self,
            "Overdue",
            metric=cloudwatch.Metric(
                namespace=contract.METRIC_NAMESPACE,
                metric_name=contract.OVERDUE,
                dimensions_map={contract.METRIC_DIMENSION: endpoint},
                statistic="max",
                period=PERIOD,
            ),
            description="A message is due but still in the store, or the dispatcher no longer runs",
            above=OVERDUE_MS,
            # Each run reports it: where nothing is reported, nothing is released either.
            silence_rings=True,
            topic=topic,
        )
        self.errors = Alarm(
            self,
            "DispatcherErrors",
            metric=dispatcher.metric_errors(period=PERIOD),
            description="The dispatcher raised or timed out; the next run goes on",
            topic=topic,
        )
        self.throttles = Alarm(
            self,
            "DispatcherThrottles",
            metric=dispatcher.metric_throttles(period=PERIOD),
            description="The dispatcher is throttled: a run before it has not ended",
            topic=topic,
        )

    @property
    def all(self) -> list[cloudwatch.Alarm]:
        """Every alarm, in the order of the documentation."""
        return [self.overdue, self.errors, self.throttles]
