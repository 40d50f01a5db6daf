"""The boto3 client sqsdelay makes when it is given none."""

from __future__ import annotations

import platform
from functools import cache
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from sqsdelay.errors import ConfigurationError
from sqsdelay.forks import in_each_child

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


def client_config(*, connections: int, parameter_validation: bool = True) -> Config:
    """The settings of a client of sqsdelay's.

    Whole calls are retried by botocore ("standard" mode: throttling, 5xx, lost connections).

    Args:
        connections: requests in flight at a time.
        parameter_validation: False for a caller that has checked all it passes: botocore's own
            check of every value is a tenth of the work of a batch send.
    """
    return Config(
        retries={"mode": "standard", "max_attempts": 5},
        max_pool_connections=max(10, connections),
        tcp_keepalive=True,
        parameter_validation=parameter_validation,
        user_agent=_user_agent(),
    )


@cache
def _user_agent() -> str:
    """Who asks, put together once: botocore's own is put together twice for each request, a tenth of
    the work of a batch send."""
    # boto3 adds botocore's name and version.
    return f"sqsdelay Boto3/{boto3.__version__} Python/{platform.python_version()}"


def default_client(
    *,
    connections: int,
    parameter_validation: bool = True,
    region: str | None = None,
    endpoint_url: str | None = None,
) -> SQSClient:
    """An SQS client of the default session (environment, profile and region as with the AWS CLI).

    Args:
        connections, parameter_validation: as for `client_config`.
        region, endpoint_url: instead of the session's.

    Raises:
        ConfigurationError: no region, an unknown profile, or another setting boto3 cannot use.
    """
    config = client_config(connections=connections, parameter_validation=parameter_validation)
    try:
        client = boto3.client("sqs", config=config, region_name=region, endpoint_url=endpoint_url)
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"{error} Set AWS_DEFAULT_REGION and AWS_PROFILE (or AWS_ENDPOINT_URL) as for the AWS CLI."
        ) from error
    # A closed client opens connections again when it needs them; the parent's are left to the parent.
    in_each_child(client, type(client).close)
    return client
