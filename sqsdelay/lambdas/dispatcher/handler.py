"""The dispatcher as a scheduled Lambda function: releases from a DynamoDB store what is due soon.

The schedule's interval must be shorter than the release ahead; then message timers make up for it
and messages arrive to the second.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.dispatching.settings import DispatchSettings
from sqsdelay.dispatching.settlement import Round
from sqsdelay.lambdas.dispatcher import contract
from sqsdelay.lambdas.powertools_ledger import ledger_if_on
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS, SHORT_CALL_ATTEMPTS
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.sqs.client import default_client
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores import open_store

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

BATCH: Final = 1000
"""Small enough that a claim is settled well within the time that is kept back. A store's claim is
bounded in bytes as well."""

CONCURRENT_SENDS: Final = 32
"""Batches in flight: an answer of SQS takes many times as long as a processor works for it."""

KEPT_BACK_MS: Final = 10_000
"""No claim is begun with less time left: one cut off would be released twice."""


@dataclass(frozen=True)
class Function:
    """What one execution environment keeps between invocations."""

    dispatcher: Dispatcher
    store: DelayedMessageStore
    outbox: SqsOutbox
    logger: Logger
    metrics: Metrics


@cache
def function() -> Function:
    """Wire the function from its environment, once, on the first invocation."""
    endpoint = Endpoint.parse(os.environ[contract.ENDPOINT_VARIABLE])
    store = open_store(os.environ[contract.STORE_VARIABLE], endpoint=endpoint.name)
    outbox = SqsOutbox(SqsQueues(_client()), endpoint, concurrency=CONCURRENT_SENDS)
    settings = DispatchSettings(
        number_of_retries=int(os.environ.get(contract.NUMBER_OF_RETRIES_VARIABLE, 0)),
        release_ahead_seconds=int(
            os.environ.get(contract.RELEASE_AHEAD_VARIABLE, MAX_MESSAGE_TIMER_SECONDS)
        ),
        batch_size=BATCH,
    )
    logger = Logger(service=endpoint.name)
    ledger = ledger_if_on(contract.LEDGER_VARIABLE, endpoint.name)
    dispatcher = Dispatcher(
        store,
        outbox,
        settings=settings,
        # The alarm on Overdue rings; raising would keep this run's metrics from being told.
        on_critical=lambda critical: logger.error(str(critical)),
        ledger=ledger,
    )
    dispatcher.start()
    metrics = Metrics(namespace=contract.METRIC_NAMESPACE, service=endpoint.name)
    return Function(dispatcher, store, outbox, logger, metrics)


def _client() -> SQSClient:
    return default_client(connections=CONCURRENT_SENDS, attempts=SHORT_CALL_ATTEMPTS)


def handler(event: object, context: Any) -> dict[str, int]:
    """Release batch after batch until time runs out, or none is due whose destination is in reach.

    Returns:
        How many messages were released, rejected, failed and held.

    Raises:
        StoreError, QueueMissing, QueueUnavailable: Lambda counts an error; the next run goes on.
    """
    this = function()
    counts = {"released": 0, "rejected": 0, "failed": 0, "held": 0}
    latest_ms = 0
    while True:
        done = this.dispatcher.dispatch()
        _count(counts, done)
        latest_ms = max([latest_ms, *done.late_ms()])
        for message in (*done.rejected, *done.failed, *done.held):
            this.logger.warning("not released", message_id=message.message_id)
        # What was refused is hidden until its retry, and destinations that failed are left out of the
        # next claim: what is behind them goes ahead.
        if not done.claimed or context.get_remaining_time_in_millis() < KEPT_BACK_MS:
            break
    _report(this, counts, latest_ms)
    return counts


def _count(counts: dict[str, int], done: Round) -> None:
    counts["released"] += len(done.released)
    counts["rejected"] += len(done.rejected)
    counts["failed"] += len(done.failed)
    counts["held"] += len(done.held)


def _report(this: Function, counts: dict[str, int], latest_ms: int) -> None:
    # Not next_due_ms(), which leaves out what is held until an outage or a refusal is over.
    earliest = this.store.pending(1)
    overdue_ms = max(0, this.outbox.now_ms() - earliest[0].due_ms) if earliest else 0
    for name in contract.COUNTS:
        this.metrics.add_metric(name, MetricUnit.Count, counts[name.lower()])
    this.metrics.add_metric(contract.LATENESS, MetricUnit.Milliseconds, latest_ms)
    this.metrics.add_metric(contract.OVERDUE, MetricUnit.Milliseconds, overdue_ms)
    this.metrics.flush_metrics()
