"""The boto3 client sqsdelay makes when it is given none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from sqsdelay.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


def default_client(*, connections: int) -> SQSClient:
    """An SQS client of the default session (environment, profile and region as with the AWS CLI).

    Whole calls are retried by botocore ("standard" mode: throttling, 5xx, lost connections).

    Raises:
        ConfigurationError: no region, an unknown profile, or another setting boto3 cannot use.
    """
    config = Config(
        retries={"mode": "standard", "max_attempts": 5},
        max_pool_connections=max(10, connections),
        tcp_keepalive=True,
    )
    try:
        return boto3.client("sqs", config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"{error} Set AWS_REGION and AWS_PROFILE (or AWS_ENDPOINT_URL) as for the AWS CLI."
        ) from error
