"""How old a queue's oldest message is: SQS does not answer that, CloudWatch keeps it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.core.delay import Clock, SystemClock, utc
from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.limits import SHORT_CALL_ATTEMPTS
from sqsdelay.core.readable import one_line
from sqsdelay.errors import QueueUnavailable
from sqsdelay.sqs.client import client_config

logger = logging.getLogger(__name__)

_NAMESPACE: Final = "AWS/SQS"
_METRIC: Final = "ApproximateAgeOfOldestMessage"
"""Source: sqs-available-cloudwatch-metrics.html: seconds; reported while a queue is active and not
empty; a message received three times or more does not count."""

_PERIOD: Final = timedelta(minutes=1)
_LOOK_BACK: Final = timedelta(minutes=10)
"""SQS reports once a minute, some minutes late; what is older than this is no news."""


class CloudWatchAges:
    """The `QueueAges` port over CloudWatch: the last value of the past ten minutes. Needs
    ``cloudwatch:GetMetricData``, and a boto3 CloudWatch client of the queues' region. Where it is denied or
    CloudWatch does not answer, no age is known, and a warning is logged."""

    def __init__(self, client: Any, *, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()

    def oldest_seconds(self, queues: Sequence[QueueRef]) -> Mapping[QueueRef, int]:
        try:
            return self.ask(queues)
        except QueueUnavailable as error:
            logger.warning("ages of the oldest messages are not known: %s", one_line(error))
            return {}

    def ask(self, queues: Sequence[QueueRef]) -> Mapping[QueueRef, int]:
        """The same, for callers that tell a denial, which is an answer, from none. Raises QueueUnavailable:
        CloudWatch does not answer."""
        now = utc(self._clock.now_ms())
        try:
            answer = self._client.get_metric_data(
                MetricDataQueries=[_query(f"q{n}", queue) for n, queue in enumerate(queues)],
                StartTime=now - _LOOK_BACK,
                EndTime=now + _PERIOD,
                ScanBy="TimestampDescending",
            )
        except BotoCoreError as error:
            raise QueueUnavailable(f"CloudWatch: {error}") from error
        except ClientError as error:
            logger.warning("ages of the oldest messages are not known: %s", one_line(error))
            return {}
        last = {result["Id"]: _last(result) for result in answer["MetricDataResults"]}
        ages = {queue: last.get(f"q{n}") for n, queue in enumerate(queues)}
        return {queue: age for queue, age in ages.items() if age is not None}


def short_client(service: str) -> Any:
    """A client of the default session that gives up soon: what is only told is worth no long wait."""
    make: Any = boto3.client
    return make(service, config=client_config(connections=1, attempts=SHORT_CALL_ATTEMPTS))


def _query(query_id: str, queue: QueueRef) -> dict[str, Any]:
    dimensions = [{"Name": "QueueName", "Value": queue.name}]
    metric = {"Namespace": _NAMESPACE, "MetricName": _METRIC, "Dimensions": dimensions}
    stat = {"Metric": metric, "Period": int(_PERIOD.total_seconds()), "Stat": "Maximum"}
    query = {"Id": query_id, "MetricStat": stat}
    # A queue of the same name may exist in our own account.
    return query if queue.account_id is None else {**query, "AccountId": queue.account_id}


def _last(result: Mapping[str, Any]) -> int | None:
    points = zip(result["Timestamps"], result["Values"], strict=True)
    newest = max(points, default=None, key=lambda point: point[0])
    return None if newest is None else int(newest[1])
