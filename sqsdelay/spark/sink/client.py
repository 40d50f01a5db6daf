"""The boto3 client of a write: its driver's and its workers'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqsdelay.spark.sink.options import Options
from sqsdelay.sqs.client import default_client

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_ATTEMPTS: Final = 10
"""On one call: a task that is throttled has time."""


def sender_client(options: Options) -> SQSClient:
    """The client that the options ask for; raises ConfigurationError as `default_client` does."""
    return default_client(
        connections=options.concurrency,
        parameter_validation=False,  # the sender checks every value
        paced=True,
        attempts=_ATTEMPTS,
        region=options.region,
        endpoint_url=options.endpoint_url,
    )
