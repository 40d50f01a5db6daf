"""The alarms of an endpoint and of its store, and its dashboard; docs/operations.md says what to do when an
alarm rings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk import function_names
from sqsdelay.cdk.queues_and_buckets import beside
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.operating.status import OVERDUE_MARGIN_SECONDS

_OVERDUE: Final = "A message has been in {} and a margin: the relay is late, or fails on it"
TOLD: Final = {
    "ErrorQueueNotEmpty": "Messages that could not be delivered wait in the error queue",
    "OldestMessage": _OVERDUE.format("the delay queue for more than one hop"),
    "FunctionErrors": "The delay consumer raised or timed out; its batch comes back",
    "FunctionThrottles": "The delay consumer is throttled: the account has no concurrency left",
    "RecursionDrops": "Lambda stops the relay as a recursive loop; configure it to allow recursion",
    "OldestDueMessage": _OVERDUE.format("the due queue for more than a message timer"),
    "Overdue": "A message is due but still in the store, or the dispatcher no longer runs",
    "DispatcherErrors": "The dispatcher raised or timed out; the next run continues",
    "DispatcherThrottles": "The dispatcher is throttled: a run before it has not ended",
    "DispatcherSilent": "The dispatcher does not run any more: nothing hands over what has fired",
    "OldestParkingMessage": "A message has been in the parking queue for longer than two runs of the "
    "dispatcher: they do not empty it, fail on it, or there is too much",
    "LedgerLate": "Firehose cannot write the ledger to its bucket; after 24 hours it gives events up",
    "LedgerInLog": "The ledger's stream did not take events: they are in the functions' logs only",
}
"""What each alarm tells, by its name."""

SILENT: Final = "DispatcherSilent"
_SILENCE_RINGS: Final = {"Overdue", SILENT}
"""Each run of the dispatcher reports it: where nothing is reported, nothing is released either. The latter
rings below its threshold."""

_SILENT_MINUTES: Final = 9
"""Without a run. CloudWatch looks at some minutes more before what is missing is a breach ("Evaluating an
alarm": at five data points for three), so it rings after about twelve, two before the next message is due."""

Watched = Mapping[str, tuple[cloudwatch.Metric, float]]
"""Metrics by the names of their alarms, each with a threshold, in the metric's unit."""


class Alarms(Construct):
    """Alarms that ring when one period's value is above the threshold, in the order of the documentation.
    ``topic``: told of every alarm that starts; nobody is when left out."""

    def __init__(
        self, scope: Construct, watched: Watched, *, topic: sns.ITopic | None = None
    ) -> None:
        super().__init__(scope, "Alarms")
        missing, compared = cloudwatch.TreatMissingData, cloudwatch.ComparisonOperator
        below = compared.LESS_THAN_THRESHOLD
        self.all = [
            cloudwatch.Alarm(
                self,
                name,
                metric=metric,
                alarm_description=TOLD[name],
                threshold=above,
                comparison_operator=below if name == SILENT else compared.GREATER_THAN_THRESHOLD,
                evaluation_periods=_SILENT_MINUTES if name == SILENT else 1,
                treat_missing_data=missing.BREACHING
                if name in _SILENCE_RINGS
                else missing.NOT_BREACHING,
            )
            for name, (metric, above) in watched.items()
        ]
        if topic is not None:
            for alarm in self.all:
                alarm.add_alarm_action(actions.SnsAction(topic))


def own_metric(service: str, name: str, statistic: str, **more: Any) -> cloudwatch.Metric:
    """A metric that the functions tell; ``service`` is the endpoint's name, which may be a token."""
    return cloudwatch.Metric(
        namespace=function_names.METRIC_NAMESPACE,
        metric_name=name,
        dimensions_map={function_names.METRIC_DIMENSION: service},
        statistic=statistic,
        **more,
    )


def oldest(queue: sqs.IQueue, seconds: int) -> tuple[cloudwatch.Metric, float]:
    """The age of its oldest message, which may be so much and a margin."""
    age = queue.metric_approximate_age_of_oldest_message(statistic="max")
    return age, seconds + OVERDUE_MARGIN_SECONDS


Queues = Mapping[str, sqs.IQueue | None]
"""The ``delay``, ``error``, ``due`` and ``parking`` queues, as far as there are any."""


def of_endpoint(queues: Queues, function: lambda_.IFunction, hop_seconds: int) -> Watched:
    """Its queues and its delay consumer."""
    delay, error, due = (queues[name] for name in ("delay", "error", "due"))
    assert delay is not None
    assert error is not None
    failed = error.metric_approximate_number_of_messages_visible(statistic="max")
    drops = function.metric("RecursiveInvocationsDropped", statistic="sum")
    return {
        "ErrorQueueNotEmpty": (failed, 0),
        "OldestMessage": oldest(delay, hop_seconds),
        **of_runs("Function", function),
        "RecursionDrops": (drops, 0),
        **({} if due is None else {"OldestDueMessage": oldest(due, MAX_MESSAGE_TIMER_SECONDS)}),
    }


def of_runs(which: str, function: lambda_.IFunction) -> Watched:
    """The errors and throttles of a function; ``which`` begins the alarms' names."""
    return {
        f"{which}Errors": (function.metric_errors(), 0),
        f"{which}Throttles": (function.metric_throttles(), 0),
    }


def dashboard(
    scope: Construct,
    endpoint: str,
    queues: Queues,
    function: lambda_.IFunction,
    dispatcher: lambda_.IFunction | None,
    alarms: list[cloudwatch.Alarm],
) -> None:
    """Pending messages, hops and hand-overs, lateness, errors; with a store, what it released."""
    names = function_names

    def told(statistic: str, **metrics: str) -> list[cloudwatch.Metric]:
        minute = Duration.minutes(1)
        return [
            own_metric(endpoint, m, statistic, label=t, period=minute) for t, m in metrics.items()
        ]

    def counted(*metrics: str) -> list[cloudwatch.Metric]:
        return told("sum", **{each: each for each in metrics})

    def held(queue: str, **labels: str) -> list[cloudwatch.Metric]:
        metric = "metric_approximate_number_of_messages_"
        found = queues[queue]
        return [getattr(found, metric + n)(label=t) for n, t in labels.items()] if found else []

    graphs = {
        "Pending messages": [
            *held("delay", delayed="waiting", visible="to be relayed", not_visible="in hand"),
            *held("parking", visible="groups to be parked"),
            *held("due", delayed="on their last leg", visible="to be delivered"),
        ],
        "Hops and hand-overs": counted(
            names.HOPS, names.HANDED_OVER, *([names.DELIVERED] if queues["due"] else [])
        ),
        "Lateness": [
            metric
            for each in ("p50", "p99", "max")
            for metric in told(each, **{f"{each} (ms)": names.LATENESS})
        ],
        "Errors": [
            *counted(names.FAILED, names.REJECTED),
            function.metric_errors(label="function errors"),
            function.metric_throttles(label="function throttles"),
            *held("error", visible="in the error queue"),
        ],
    }
    if dispatcher is not None:
        forwarded = [names.FORWARDED] if queues["parking"] else []
        graphs["Store"] = [
            *counted(*forwarded, names.PARKED, names.CANCELLED, *names.DISPATCH_COUNTS),
            dispatcher.metric_errors(label="dispatcher errors"),
        ]
        late = {
            "released late (ms)": names.DISPATCH_LATENESS,
            "still in the store (ms)": names.OVERDUE,
        }
        graphs["Due in the store"] = told("max", **late)
    drawn = [cloudwatch.GraphWidget(title=t, left=m, width=12) for t, m in graphs.items()]
    rows: list[list[Any]] = [
        [cloudwatch.AlarmStatusWidget(title="Alarms", alarms=alarms, width=24)],
        *([*pair] for pair in zip(drawn[::2], drawn[1::2], strict=True)),
    ]
    # Dashboards share one name space across regions, and their names take no dots.
    cloudwatch.Dashboard(
        Construct(scope, "Dashboard"),
        "Dashboard",
        dashboard_name=f"sqsdelay-{beside(endpoint, '')}-{Stack.of(scope).region}",
        widgets=rows,
    )
