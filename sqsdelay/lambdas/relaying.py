"""What became of copies, as metrics and in the log: the delay consumer's, and the dispatcher's that parks."""

from __future__ import annotations

from collections.abc import Sequence

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from sqsdelay.lambdas import relay_names
from sqsdelay.relaying.mover import Outcome, Status


def report_outcomes(
    metrics: Metrics, logger: Logger, outcomes: Sequence[Outcome], *, unreadable: int = 0
) -> None:
    """Add each count and each lateness to the metrics, and log what failed or was rejected."""
    counts = dict.fromkeys(Status, 0)
    for outcome in outcomes:
        counts[outcome.status] += 1
        if outcome.late_ms is not None:
            metrics.add_metric(relay_names.LATENESS, MetricUnit.Milliseconds, outcome.late_ms)
        if outcome.error is not None:
            logger.warning(
                outcome.status.value, message_id=outcome.copy.message_id, reason=outcome.error
            )
    metrics.add_metric(relay_names.HANDED_OVER, MetricUnit.Count, counts[Status.HANDED_OVER])
    metrics.add_metric(relay_names.DELIVERED, MetricUnit.Count, counts[Status.DELIVERED])
    metrics.add_metric(relay_names.HOPS, MetricUnit.Count, counts[Status.REQUEUED])
    if counts[Status.FORWARDED]:
        # Each metric is paid for by the month: only where there is a parking queue.
        metrics.add_metric(relay_names.FORWARDED, MetricUnit.Count, counts[Status.FORWARDED])
    metrics.add_metric(relay_names.PARKED, MetricUnit.Count, counts[Status.PARKED])
    metrics.add_metric(relay_names.CANCELLED, MetricUnit.Count, counts[Status.CANCELLED])
    metrics.add_metric(relay_names.REJECTED, MetricUnit.Count, counts[Status.REJECTED])
    metrics.add_metric(relay_names.FAILED, MetricUnit.Count, counts[Status.FAILED] + unreadable)
