"""The dispatcher as a scheduled Lambda function: releases from its store what is due soon.

The schedule's interval must be shorter than the release ahead; then message timers make up for it
and messages arrive to the second. A second schedule has it empty the parking queue: it parks what the delay
consumer has gathered there, and hands over what schedules have sent.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from botocore.exceptions import BotoCoreError, ClientError

from lambdas import settings
from sqsdelay.cdk import function_names
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.errors import ConfigurationError
from sqsdelay.opentelemetry import if_installed
from sqsdelay.parking.parking import check
from sqsdelay.ports.stores import DelayedMessageStore, ParkingPlace
from sqsdelay.relaying.gathering import Parker
from sqsdelay.relaying.outcomes import Status
from sqsdelay.sqs.cloudwatch import short_client
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores import open_place

BATCH: Final = 1000
"""Small enough that a claim is settled well within the time that is kept back. A store's claim is
bounded in bytes as well."""

CONCURRENT_SENDS: Final = 32
"""Batches in flight: an answer of SQS takes many times as long as a processor works for it."""

KEPT_BACK_SECONDS: Final = 5  # For what follows a send: what was sent is also removed.

HELPERS: Final = 9
"""Runs that one with more than a round in its parking queue starts."""

PARKING_KEPT_BACK_MS: Final = 60_000
"""No more is received from the parking queue with less time left: enough to park what was received."""


@dataclass(frozen=True)
class Function:
    """What one execution environment keeps between invocations."""

    dispatcher: Dispatcher | None
    store: ParkingPlace
    outbox: SqsOutbox
    parker: Parker
    logger: Logger
    metrics: Metrics
    until: settings.Until


@cache
def function() -> Function:
    """Wire the function from its environment, once, on the first invocation."""
    endpoint = Endpoint.parse(os.environ[function_names.ENDPOINT_VARIABLE])
    store = open_place(os.environ[function_names.STORE_VARIABLE], endpoint=endpoint.name)
    until = settings.Until(kept_back=KEPT_BACK_SECONDS)
    # To the end: what is sent is to be removed, too, and what was is not to be forgotten.
    client = getattr(store, "client", None)
    settings.end_in_time(client, lambda _: until.ends - time.monotonic())
    if hasattr(store, "seconds_left"):
        # S3's: a turn of the wheel that Lambda cuts off is given up by the next.
        store.seconds_left = until.seconds_left
    ledger = settings.ledger_if_on(function_names.LEDGER_VARIABLE, endpoint.name, until=until)
    tracing, ledger = if_installed(ledger)
    queues = SqsQueues(settings.sqs_client(connections=CONCURRENT_SENDS, until=until))
    outbox = SqsOutbox(queues, endpoint, concurrency=CONCURRENT_SENDS, tracing=tracing)
    dispatching = DispatchSettings(
        number_of_retries=settings.whole_setting(function_names.NUMBER_OF_RETRIES_VARIABLE, 0),
        release_ahead_seconds=settings.whole_setting(
            function_names.RELEASE_AHEAD_VARIABLE, MAX_MESSAGE_TIMER_SECONDS
        ),
        batch_size=BATCH,
    )
    logger = Logger(service=endpoint.name)
    dispatcher = None
    if isinstance(store, DelayedMessageStore):
        dispatcher = Dispatcher(
            store,
            outbox,
            settings=dispatching,
            # The alarm on Overdue rings; raising would keep this run's metrics from being told.
            on_critical=lambda critical: logger.error(str(critical)),
            ledger=ledger,
        )
        dispatcher.start()
    else:
        check(store)
    relaying = settings.relay_settings(store, ledger=ledger, tracing=tracing)
    parker = Parker(queues, endpoint, relaying)
    metrics = Metrics(namespace=function_names.METRIC_NAMESPACE, service=endpoint.name)
    return Function(dispatcher, store, outbox, parker, logger, metrics, until)


def handler(event: object, context: Any) -> dict[str, int]:
    """Release batch after batch until time runs out, or none is due whose destination is in reach.

    Asked to park, it does that instead, until the parking queue is empty or time runs out. Where schedules
    have sent more than one round, it starts more runs of itself. Raises ConfigurationError: it has no time
    for that; StoreError, QueueMissing, QueueUnavailable: Lambda counts an error; the next run goes on.
    Returns how many messages were released, rejected, failed and held; or how many copies met which fate."""
    this = function()
    this.until.begin(context)
    asked = event.get(function_names.PARK) if isinstance(event, Mapping) else None
    if asked in (True, function_names.HELP) or this.dispatcher is None:
        return _park(this, context, may_ask=this.store.fires and asked is True)
    counts, latest_ms = dict.fromkeys(("released", "rejected", "failed", "held"), 0), 0
    while True:
        done = this.dispatcher.dispatch()
        for fate in counts:
            counts[fate] += len(getattr(done, fate))
        latest_ms = max([latest_ms, *done.late_ms()])
        for message in (*done.rejected, *done.failed, *done.held):
            this.logger.warning("not released", message_id=message.message_id)
        # What was refused is hidden until its retry, and destinations that failed are left out of the
        # next claim: what is behind them goes ahead.
        if not done.claimed or not this.until.may_send():
            break
    # Not next_due_ms(), which leaves out what is held until an outage or a refusal is over.
    now_ms = this.outbox.now_ms()
    earliest = this.store.pending(1, due_before_ms=now_ms)
    overdue_ms = now_ms - earliest[0].due_ms if earliest else 0
    for name in function_names.DISPATCH_COUNTS:
        this.metrics.add_metric(name, MetricUnit.Count, counts[name.lower()])
    this.metrics.add_metric(function_names.DISPATCH_LATENESS, MetricUnit.Milliseconds, latest_ms)
    this.metrics.add_metric(function_names.OVERDUE, MetricUnit.Milliseconds, overdue_ms)
    this.metrics.flush_metrics()
    return counts


def _park(this: Function, context: Any, *, may_ask: bool) -> dict[str, int]:
    def send_for_help() -> None:
        event = json.dumps({function_names.PARK: function_names.HELP})
        asked = {"InvocationType": "Event", "Payload": event}
        try:
            client = short_client("lambda")
            for _ in range(HELPERS):
                client.invoke(FunctionName=context.function_name, **asked)
        except (BotoCoreError, ClientError) as error:
            this.logger.error("no help to empty the parking queue", reason=str(error))

    left_ms = context.get_remaining_time_in_millis
    if left_ms() <= PARKING_KEPT_BACK_MS:
        raise ConfigurationError(
            f"{left_ms() / 1000:g} s are too few for the parking queue; set a timeout of 120 s or more"
        )
    rounds = this.parker.rounds(
        more=lambda: left_ms() > PARKING_KEPT_BACK_MS,
        held=this.until.may_send,
        crowded=send_for_help if may_ask else None,
    )
    report = partial(settings.report_outcomes, this.metrics, this.logger)
    fates = sum(map(report, rounds), Counter[Status]())
    this.metrics.flush_metrics()
    return {str(status): count for status, count in fates.items()}
