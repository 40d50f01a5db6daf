"""The delay consumer as a Lambda function on the delay queue's event source."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import boto3
from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from botocore.awsrequest import AWSRequest

from lambdas.delay_consumer import contract
from sqsdelay.consumer import DEFAULT_MAX_RECEIVES, Outcome, Relay, Status
from sqsdelay.endpoint import Endpoint
from sqsdelay.errors import MalformedMessage
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.wire import ReceivedMessage, from_lambda_event

TRACE_HEADER = "X-Amzn-Trace-Id"


@dataclass(frozen=True)
class Function:
    """What one execution environment keeps between invocations."""

    relay: Relay
    logger: Logger
    metrics: Metrics


@cache
def function() -> Function:
    """Wire the function from its environment, once, on the first invocation."""
    endpoint = Endpoint.parse(os.environ[contract.ENDPOINT_VARIABLE])
    client = boto3.client("sqs")
    client.meta.events.register("request-created.sqs", _drop_trace_header)
    metrics = Metrics(namespace=contract.METRIC_NAMESPACE, service=endpoint.name)
    logger = Logger(service=endpoint.name)
    return Function(
        Relay(
            SqsQueues(client),
            endpoint,
            hop_seconds=int(
                os.environ.get(contract.HOP_SECONDS_VARIABLE, MAX_MESSAGE_TIMER_SECONDS)
            ),
            max_receives=int(os.environ.get(contract.MAX_RECEIVES_VARIABLE, DEFAULT_MAX_RECEIVES)),
        ),
        logger,
        metrics,
    )


def handler(event: Mapping[str, Any], context: object) -> dict[str, list[dict[str, str]]]:
    """Relay the event's records; answer with those that Lambda must not delete.

    Raises:
        MalformedMessage: the event is no SQS event at all; Lambda counts it as an error.
    """
    received_at = time.monotonic()
    this = function()
    records = event.get("Records")
    if not isinstance(records, list):
        this.logger.error("not an SQS event: it has no list of Records")
        raise MalformedMessage("not an SQS event: it has no list of Records")
    copies: list[ReceivedMessage] = []
    failed: list[str] = []
    for record in records:
        try:
            copies.append(from_lambda_event(record, received_at=received_at))
        except MalformedMessage as error:
            message_id = str(record.get("messageId")) if isinstance(record, Mapping) else "unknown"
            this.logger.error("unreadable record", message_id=message_id, reason=str(error))
            failed.append(message_id)
    outcomes = this.relay.process(copies, delete=False) if copies else []
    failed += [o.copy.sqs_message_id for o in outcomes if not o.settled]
    _report(this, outcomes, unreadable=len(records) - len(copies))
    return {"batchItemFailures": [{"itemIdentifier": item} for item in failed]}


def _report(this: Function, outcomes: list[Outcome], *, unreadable: int) -> None:
    counts = dict.fromkeys(Status, 0)
    for outcome in outcomes:
        counts[outcome.status] += 1
        if outcome.late_ms is not None:
            this.metrics.add_metric(contract.LATENESS, MetricUnit.Milliseconds, outcome.late_ms)
        if outcome.error is not None:
            this.logger.warning(
                outcome.status.value, message_id=outcome.copy.message_id, reason=outcome.error
            )
    this.metrics.add_metric(contract.HANDED_OVER, MetricUnit.Count, counts[Status.HANDED_OVER])
    this.metrics.add_metric(contract.HOPS, MetricUnit.Count, counts[Status.REQUEUED])
    this.metrics.add_metric(contract.REJECTED, MetricUnit.Count, counts[Status.REJECTED])
    this.metrics.add_metric(contract.FAILED, MetricUnit.Count, counts[Status.FAILED] + unreadable)
    this.metrics.flush_metrics()


def _drop_trace_header(request: AWSRequest, **_: object) -> None:
    """Take this invocation's trace header off a call, where botocore puts it within Lambda.

    SQS would give it to messages without one of their own, with the recursion count (Lineage) that
    Lambda keeps in it. A message's own header travels as its system attribute.
    """
    del request.headers[TRACE_HEADER]
