"""The delay consumer as a Lambda function on the delay queue's event source.

For a FIFO endpoint the due queue is its second event source; a record's ARN tells them apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from aws_lambda_powertools import Logger, Metrics

from lambdas import settings
from sqsdelay.cdk import function_names
from sqsdelay.core.delay import begun_within
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS
from sqsdelay.core.received_message import ReceivedMessage, from_lambda_event
from sqsdelay.errors import MalformedMessage
from sqsdelay.opentelemetry import if_installed
from sqsdelay.relaying.gathering import ForwardingRelay
from sqsdelay.relaying.outcomes import Outcome
from sqsdelay.relaying.relay import DueRelay, Relay
from sqsdelay.sqs.endpoints import checked_relay
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores import open_place


@dataclass(frozen=True)
class Function:
    """What one execution environment keeps between invocations."""

    delay_queue: str
    begin: Callable[[], Relay]
    due_relay: DueRelay | None
    logger: Logger
    metrics: Metrics
    hop_seconds: int
    until: settings.Until

    @cached_property
    def relay(self) -> Relay:
        """Begun by the first event from the delay queue; the due queue needs neither that nor a store."""
        return self.begin()


@cache
def function() -> Function:
    """Wire the function from its environment, once, on the first invocation. Raises InvalidEndpoint,
    ConfigurationError: a variable that cannot be used."""
    endpoint = Endpoint.parse(os.environ.get(function_names.ENDPOINT_VARIABLE, ""))
    until = settings.Until()
    ledger = settings.ledger_if_on(function_names.LEDGER_VARIABLE, endpoint.name, until=until)
    tracing, ledger = if_installed(ledger)
    queues = SqsQueues(settings.sqs_client(connections=1, until=until))
    url = os.environ.get(function_names.STORE_VARIABLE)
    store = open_place(url, endpoint=endpoint.name) if url else None
    # A send needs the rest: what the store does not take in time hops on, or comes back.
    client = getattr(store, "client", None)
    settings.end_in_time(client, lambda _: until.seconds_left() - until.for_a_send)
    relaying = settings.relay_settings(
        store,
        # Whatever the queue's delay is, it is the hop; refusing would cost a visibility timeout.
        hop_seconds=1,
        ledger=ledger,
        tracing=tracing,
    )
    # Ten copies are too few for a store that wants thousands: others gather them.
    forwards = store is not None and store.stored_at_once is not None
    kind = ForwardingRelay if forwards else Relay
    return Function(
        endpoint.delay_queue.name,
        partial(checked_relay, queues, endpoint, relaying, kind=kind),
        DueRelay(queues, endpoint, relaying) if endpoint.fifo else None,
        Logger(service=endpoint.name),
        Metrics(namespace=function_names.METRIC_NAMESPACE, service=endpoint.name),
        settings.whole_setting(function_names.HOP_SECONDS_VARIABLE, DEFAULT_HOP_SECONDS),
        until,
    )


def handler(event: Mapping[str, Any], context: Any) -> dict[str, list[dict[str, str]]]:
    """Relay the event's records; answer with those that Lambda must not delete. Raises MalformedMessage: the
    event is no SQS event at all; ConfigurationError: a variable that cannot be used, or a delay queue that
    does not fit; QueueMissing, QueueUnavailable: the delay queue cannot be asked; SchemaMismatch: the store
    is of another version. Lambda counts it as an error, as the others; nothing was sent, and SQS hands the
    messages out again."""
    received_at = time.monotonic()
    this = function()
    this.until.begin(context)
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list):
        problem = "not an SQS event: it has no list of Records"
        this.logger.error(problem)
        raise MalformedMessage(problem)
    copies, failed = list[ReceivedMessage](), list[str]()
    for record in records:
        try:
            copies.append(from_lambda_event(record, received_at=received_at))
        except MalformedMessage as error:
            this.logger.error("no record of a queue", reason=str(error))
            if not isinstance(record, Mapping) or not record.get("messageId"):
                raise
            failed.append(str(record["messageId"]))
    outcomes: list[Outcome] = []
    if copies:
        with begun_within(this.until.seconds_left()):
            relay, held = _relay(this, records), this.until.may_send
            outcomes = relay.process(copies, delete=False, held=held)
    failed += [outcome.copy.sqs_message_id for outcome in outcomes if not outcome.settled]
    settings.report_outcomes(this.metrics, this.logger, outcomes, len(records) - len(copies))
    this.metrics.flush_metrics()
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _relay(this: Function, records: list[Mapping[str, Any]]) -> Relay:
    """Whose queue the event is from; Lambda never mixes two queues in one event."""
    if this.due_relay is not None:
        sources = {str(record.get("eventSourceARN")).rpartition(":")[2] for record in records}
        due, delay = this.due_relay.source.name, this.delay_queue
        if sources == {due}:
            return this.due_relay
        if sources != {delay}:
            raise MalformedMessage(
                f"event from {', '.join(sorted(sources))}; this function serves {delay} and {due}"
            )
    if this.relay.hop_seconds != this.hop_seconds:
        this.logger.warning(
            "the delay queue's delay is not the one this function was deployed with",
            queue=this.delay_queue,
            delay_seconds=this.relay.hop_seconds,
            expected_seconds=this.hop_seconds,
        )
        # A deployment is changing the queue: what it is then must not be missed.
        function.cache_clear()
    return this.relay
