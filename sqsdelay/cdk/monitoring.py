"""The alarms of an endpoint and of its store, and its dashboard; docs/operations.md says what to do when an
alarm rings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk import function_names
from sqsdelay.cdk.queues_and_buckets import beside
from sqsdelay.limits import GATHERING_SECONDS, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.operating.status import OVERDUE_MARGIN_SECONDS, OVERDUE_MS

PERIOD: Final = Duration.minutes(5)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rings when one period's value is above a threshold.

    ``above`` is the threshold, in the metric's unit; ``silence_rings``: a period without any value is a
    reason to ring.
    """

    name: str
    metric: cloudwatch.Metric
    description: str
    above: float = 0
    silence_rings: bool = False


class Alarms(Construct):
    """An alarm for each rule; ``all`` has them in the order of the documentation.

    Args:
        topic: told of every alarm that starts; nobody is when left out.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        rules: Sequence[Rule],
        *,
        topic: sns.ITopic | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.all = [self._alarm(rule, topic) for rule in rules]

    def _alarm(self, rule: Rule, topic: sns.ITopic | None) -> cloudwatch.Alarm:
        missing = cloudwatch.TreatMissingData
        alarm = cloudwatch.Alarm(
            self,
            rule.name,
            metric=rule.metric,
            alarm_description=rule.description,
            threshold=rule.above,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            evaluation_periods=1,
            treat_missing_data=missing.BREACHING if rule.silence_rings else missing.NOT_BREACHING,
        )
        if topic is not None:
            alarm.add_alarm_action(actions.SnsAction(topic))
        return alarm


def endpoint_rules(
    *,
    delay_queue: sqs.IQueue,
    error_queue: sqs.IQueue,
    function: lambda_.IFunction,
    hop_seconds: int,
    due_queue: sqs.IQueue | None = None,
) -> list[Rule]:
    """Error queue not empty, oldest message overdue, function errors, throttles, recursion drops; with
    a due queue also its oldest message overdue."""
    rules = [
        Rule(
            name="ErrorQueueNotEmpty",
            metric=error_queue.metric_approximate_number_of_messages_visible(
                period=PERIOD, statistic="max"
            ),
            description="Messages that could not be delivered wait in the error queue",
        ),
        _overdue("OldestMessage", delay_queue, "the delay queue", "one hop", hop_seconds),
        Rule(
            name="FunctionErrors",
            metric=function.metric_errors(period=PERIOD),
            description="The delay consumer raised or timed out; its batch comes back",
        ),
        Rule(
            name="FunctionThrottles",
            metric=function.metric_throttles(period=PERIOD),
            description="The delay consumer is throttled: the account has no concurrency left",
        ),
        Rule(
            name="RecursionDrops",
            metric=function.metric("RecursiveInvocationsDropped", period=PERIOD, statistic="sum"),
            description="Lambda stops the relay as a recursive loop; configure it to allow recursion",
        ),
    ]
    if due_queue is not None:
        longest = "a message timer", MAX_MESSAGE_TIMER_SECONDS
        rules.append(_overdue("OldestDueMessage", due_queue, "the due queue", *longest))
    return rules


def _overdue(name: str, queue: sqs.IQueue, where: str, what: str, seconds: int) -> Rule:
    return Rule(
        name=name,
        metric=queue.metric_approximate_age_of_oldest_message(period=PERIOD, statistic="max"),
        description=f"A message has been in {where} for more than {what} and a margin: "
        "the relay is late, or fails on it",
        above=seconds + OVERDUE_MARGIN_SECONDS,
    )


def parking_rule(parking_queue: sqs.IQueue) -> Rule:
    """The parking queue's oldest message overdue."""
    every = "the time between two runs", GATHERING_SECONDS
    return replace(
        _overdue("OldestParkingMessage", parking_queue, "the parking queue", *every),
        description="A message has been in the parking queue for longer than two runs of the dispatcher: "
        "they do not park, fail on it, or there is too much",
    )


def store_rules(*, endpoint: str, dispatcher: lambda_.IFunction) -> list[Rule]:
    """Due but still in the store, dispatcher errors, dispatcher throttles; ``endpoint`` may be a token."""
    return [
        Rule(
            name="Overdue",
            metric=cloudwatch.Metric(
                namespace=function_names.METRIC_NAMESPACE,
                metric_name=function_names.OVERDUE,
                dimensions_map={function_names.METRIC_DIMENSION: endpoint},
                statistic="max",
                period=PERIOD,
            ),
            description="A message is due but still in the store, or the dispatcher no longer runs",
            above=OVERDUE_MS,
            # Each run reports it: where nothing is reported, nothing is released either.
            silence_rings=True,
        ),
        Rule(
            name="DispatcherErrors",
            metric=dispatcher.metric_errors(period=PERIOD),
            description="The dispatcher raised or timed out; the next run continues",
        ),
        Rule(
            name="DispatcherThrottles",
            metric=dispatcher.metric_throttles(period=PERIOD),
            description="The dispatcher is throttled: a run before it has not ended",
        ),
    ]


class Dashboard(Construct):
    """Pending messages, hops and hand-overs, lateness, errors; with a store, what it released."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        delay_queue: sqs.IQueue,
        error_queue: sqs.IQueue,
        function: lambda_.IFunction,
        alarms: list[cloudwatch.Alarm],
        dispatcher: lambda_.IFunction | None,
        parking_queue: sqs.IQueue | None,
        due_queue: sqs.IQueue | None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._endpoint = endpoint
        pending = [
            delay_queue.metric_approximate_number_of_messages_delayed(label="waiting"),
            delay_queue.metric_approximate_number_of_messages_visible(label="to be relayed"),
            delay_queue.metric_approximate_number_of_messages_not_visible(label="in hand"),
        ]
        moved = [self._count(function_names.HOPS), self._count(function_names.HANDED_OVER)]
        if parking_queue is not None:
            gathered = parking_queue.metric_approximate_number_of_messages_visible
            pending.append(gathered(label="groups to be parked"))
        if due_queue is not None:
            pending += [
                due_queue.metric_approximate_number_of_messages_delayed(label="on their last leg"),
                due_queue.metric_approximate_number_of_messages_visible(label="to be delivered"),
            ]
            moved.append(self._count(function_names.DELIVERED))
        lateness = [self._lateness(statistic) for statistic in ("p50", "p99", "max")]
        errors = [
            self._count(function_names.FAILED),
            self._count(function_names.REJECTED),
            function.metric_errors(label="function errors"),
            function.metric_throttles(label="function throttles"),
            error_queue.metric_approximate_number_of_messages_visible(label="in the error queue"),
        ]
        # Dashboards share one name space across regions, and their names take no dots.
        cloudwatch.Dashboard(
            self,
            "Dashboard",
            dashboard_name=f"sqsdelay-{beside(endpoint, '')}-{Stack.of(self).region}",
            widgets=[
                [cloudwatch.AlarmStatusWidget(title="Alarms", alarms=alarms, width=24)],
                [_graph("Pending messages", pending), _graph("Hops and hand-overs", moved)],
                [_graph("Lateness", lateness), _graph("Errors", errors)],
                *([] if dispatcher is None else [self._of_store(dispatcher, parking_queue)]),
            ],
        )

    def _of_store(
        self, dispatcher: lambda_.IFunction, parking_queue: sqs.IQueue | None
    ) -> list[cloudwatch.GraphWidget]:
        moved = [
            self._count(function_names.PARKED),
            self._count(function_names.CANCELLED),
            *(self._count(name) for name in function_names.DISPATCH_COUNTS),
            dispatcher.metric_errors(label="dispatcher errors"),
        ]
        if parking_queue is not None:
            moved.insert(0, self._count(function_names.FORWARDED))
        late = [
            self._metric(function_names.DISPATCH_LATENESS, "max", label="released late (ms)"),
            self._metric(function_names.OVERDUE, "max", label="still in the store (ms)"),
        ]
        return [_graph("Store", moved), _graph("Due in the store", late)]

    def _count(self, name: str) -> cloudwatch.Metric:
        return self._metric(name, "sum", label=name)

    def _lateness(self, statistic: str) -> cloudwatch.Metric:
        return self._metric(function_names.LATENESS, statistic, label=f"{statistic} (ms)")

    def _metric(self, name: str, statistic: str, *, label: str) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace=function_names.METRIC_NAMESPACE,
            metric_name=name,
            dimensions_map={function_names.METRIC_DIMENSION: self._endpoint},
            statistic=statistic,
            label=label,
            period=Duration.minutes(1),
        )


def _graph(title: str, metrics: list[cloudwatch.Metric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=metrics, width=12)
