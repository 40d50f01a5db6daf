"""One endpoint at a glance."""

from __future__ import annotations

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk import function_names
from sqsdelay.cdk.message_store import MessageStore
from sqsdelay.cdk.queues import beside
from sqsdelay.cdk.s3_message_store import S3MessageStore


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
        store: MessageStore | S3MessageStore | None = None,
        due_queue: sqs.IQueue | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._endpoint = endpoint
        pending = [
            delay_queue.metric_approximate_number_of_messages_delayed(label="waiting"),
            delay_queue.metric_approximate_number_of_messages_visible(label="to be relayed"),
            delay_queue.metric_approximate_number_of_messages_not_visible(label="in hand"),
        ]
        moved = [self._count(function_names.HOPS), self._count(function_names.HANDED_OVER)]
        if isinstance(store, S3MessageStore):
            gathered = store.parking_queue.metric_approximate_number_of_messages_visible
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
        shown = alarms if store is None else alarms + store.alarms.all
        # Dashboards share one name space across regions, and their names take no dots.
        cloudwatch.Dashboard(
            self,
            "Dashboard",
            dashboard_name=f"sqsdelay-{beside(endpoint, '')}-{Stack.of(self).region}",
            widgets=[
                [cloudwatch.AlarmStatusWidget(title="Alarms", alarms=shown, width=24)],
                [_graph("Pending messages", pending), _graph("Hops and hand-overs", moved)],
                [_graph("Lateness", lateness), _graph("Errors", errors)],
                *([] if store is None else [self._of_store(store)]),
            ],
        )

    def _of_store(self, store: MessageStore | S3MessageStore) -> list[cloudwatch.GraphWidget]:
        moved = [
            self._count(function_names.PARKED),
            self._count(function_names.CANCELLED),
            *(self._count(name) for name in function_names.DISPATCH_COUNTS),
            store.function.metric_errors(label="dispatcher errors"),
        ]
        if isinstance(store, S3MessageStore):
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
