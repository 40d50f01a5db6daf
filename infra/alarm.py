"""One alarm, as all of ours are."""

from __future__ import annotations

from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct

PERIOD: Final = Duration.minutes(5)


class Alarm(cloudwatch.Alarm):
    """Rings when one period's value is above a threshold.

    Args:
        above: the threshold, in the metric's unit.
        silence_rings: whether a period without any value is a reason to ring.
        topic: told when the alarm starts; nobody is when left out.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        metric: cloudwatch.Metric,
        description: str,
        above: float = 0,
        silence_rings: bool = False,
        topic: sns.ITopic | None = None,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            metric=metric,
            alarm_description=description,
            threshold=above,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            evaluation_periods=1,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING
            if silence_rings
            else cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        if topic is not None:
            self.add_alarm_action(actions.SnsAction(topic))
