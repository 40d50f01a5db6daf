"""What the two functions share: settings of their environment, their ledger, and what became of copies as
metrics and in the log."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from sqsdelay.cdk import function_names
from sqsdelay.cdk.function_names import LEDGER_MESSAGE, LEDGER_STREAM_SCHEME
from sqsdelay.core import limits
from sqsdelay.core.received_message import whole_number
from sqsdelay.errors import ConfigurationError
from sqsdelay.ledger.events import Event, Ledger, as_fields
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, parking_settings
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.relaying.outcomes import DEFAULT_MAX_RECEIVES, Outcome, RelaySettings, Status
from sqsdelay.sqs.client import OutOfTime, default_client, limit_whole_answers

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest
    from mypy_boto3_sqs import SQSClient


def whole_setting(variable: str, default: int) -> int:
    """A whole number; the default where the variable is not set. Raises ConfigurationError: any other
    value."""
    text = os.environ.get(variable, str(default))
    value = whole_number(text)
    if value is None:
        raise ConfigurationError(
            f"{variable}={text!r} is not a whole number; leave it out for {default}"
        )
    return value


def relay_settings(store: ParkingPlace | None, **more: Any) -> RelaySettings:
    """How copies are relayed, and parked in a store: what the environment says to both functions. Raises
    ConfigurationError: a setting out of range."""
    park_after = whole_setting(
        function_names.PARK_AFTER_SECONDS_VARIABLE, DEFAULT_PARK_AFTER_SECONDS
    )
    return RelaySettings(
        parking=parking_settings(store, park_after),
        max_receives=whole_setting(function_names.MAX_RECEIVES_VARIABLE, DEFAULT_MAX_RECEIVES),
        max_delay_seconds=whole_setting(
            function_names.MAX_DELAY_SECONDS_VARIABLE, limits.DEFAULT_MAX_DELAY_SECONDS
        ),
        **more,
    )


@dataclass(slots=True)
class Until:
    """When an invocation's calls have to have ended, by the monotonic clock in seconds; set anew by each.
    ``kept_back`` is for what follows, until it ``ends``; ``for_a_send`` what a send needs, so that its
    outcome is known."""

    kept_back: float = 1
    at: float = math.inf
    for_a_send: float = 0
    ends: float = math.inf

    def begin(self, context: Any) -> None:
        """An invocation begins: Lambda's context says how long it may take."""
        left = context.get_remaining_time_in_millis() / 1000
        kept = min(self.kept_back, left / 3)
        # Half of it is for botocore, which may pause for 2 s before it asks whether there is time.
        self.ends = time.monotonic() + left - kept / 2
        left -= kept
        self.at, self.for_a_send = time.monotonic() + left, min(limits.SHORT_CALL_SECONDS, left / 2)

    def seconds_left(self) -> float:
        return self.at - time.monotonic()

    def may_send(self) -> bool:
        return self.seconds_left() > self.for_a_send


def end_in_time(client: Any, left: Callable[[str], float]) -> None:
    """Let no request of a client, if there is one, begin or last when no seconds are ``left`` for it, which
    is told its operation. It goes without the invocation's trace header, which botocore adds: SQS would give
    it, and Lambda's recursion count (Lineage) in it, to messages without one of their own."""

    def prepare(request: AWSRequest, operation_name: str, **_: object) -> None:
        if left(operation_name) <= 0:
            raise OutOfTime()
        del request.headers["X-Amzn-Trace-Id"]

    if client is not None:
        client.meta.events.register("request-created", prepare)
        limit_whole_answers(client, lambda: left(""))


def sqs_client(*, connections: int, until: Until) -> SQSClient:
    """A client whose requests end with the invocation; a send begins only if its outcome will be known."""

    def left(operation: str) -> float:
        kept = until.for_a_send if operation.startswith("SendMessage") else 0
        return until.seconds_left() - kept

    client = default_client(connections=connections, attempts=limits.SHORT_CALL_ATTEMPTS)
    end_in_time(client, left)
    return client


class PowertoolsLedger:
    """Logs events, each under ``ledger``, at level INFO, whatever level the environment gives the
    function's own logger. ``endpoint``: its name; the lines' service is ``<endpoint>-ledger``."""

    def __init__(self, endpoint: str) -> None:
        # Powertools has one logger, with one level, for each service.
        self._logger = Logger(service=f"{endpoint}-ledger", level="INFO")

    def record(self, events: Sequence[Event]) -> None:
        for event in events:
            self._logger.info(LEDGER_MESSAGE, ledger=as_fields(event))


def ledger_if_on(variable: str, endpoint: str, *, until: Until) -> Ledger | None:
    """The ledger that the environment's variable names, None where it is not set. ``true`` is the function's
    log; ``firehose://NAME`` a Firehose stream, and the log for what the stream does not take. Raises
    ConfigurationError: any other value. ``until``: the invocation's; no call to the stream outlasts it."""
    value = os.environ.get(variable, "")
    if not value:
        return None
    log = PowertoolsLedger(endpoint)
    stream = value.removeprefix(LEDGER_STREAM_SCHEME)
    if stream != value and stream:
        from sqsdelay.ledger.firehose import CALL_SECONDS, FirehoseLedger

        return FirehoseLedger(
            stream, otherwise=log, may_call=lambda: until.seconds_left() > CALL_SECONDS
        )
    if value != "true":
        raise ConfigurationError(
            f"{variable}={value!r}; use true or {LEDGER_STREAM_SCHEME}NAME, or leave it out for no ledger"
        )
    return log


def report_outcomes(
    metrics: Metrics, logger: Logger, outcomes: Sequence[Outcome], unreadable: int = 0
) -> Counter[Status]:
    """Add each count and each lateness to the metrics, and log what failed or was rejected; the counts."""
    counts = Counter(outcome.status for outcome in outcomes)
    counts[Status.FAILED] += unreadable
    for outcome in outcomes:
        if outcome.late_ms is not None:
            metrics.add_metric(function_names.LATENESS, MetricUnit.Milliseconds, outcome.late_ms)
        if outcome.error is not None:
            logger.warning(
                outcome.status.value, message_id=outcome.copy.message_id, reason=outcome.error
            )
    for status in Status:
        # Each metric is paid for by the month: this one only where there is a parking queue.
        if counts[status] or status is not Status.FORWARDED:
            name = "HOPS" if status is Status.REQUEUED else status.name
            metrics.add_metric(getattr(function_names, name), MetricUnit.Count, counts[status])
    return counts
