"""The boto3 client sqsdelay makes when it is given none."""

from __future__ import annotations

import logging
import platform
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from sqsdelay.errors import ConfigurationError
from sqsdelay.limits import ANSWER_SECONDS, CALL_ATTEMPTS, CONNECT_SECONDS
from sqsdelay.processes.forks import in_each_child

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)


def client_config(
    *,
    connections: int,
    parameter_validation: bool = True,
    paced: bool = False,
    wait_seconds: int = 0,
    attempts: int = CALL_ATTEMPTS,
) -> Config:
    """The settings of a client of sqsdelay's.

    Whole calls are retried by botocore ("standard" mode: throttling, 5xx, lost connections). No call
    is without a time limit: botocore's own minute for each of six attempts is an outage.

    Args:
        connections: requests in flight at a time.
        paced: True for a caller that could send for hours more than SQS takes: botocore's "adaptive"
            mode slows down at a throttled call and speeds up again while none is throttled.
        parameter_validation: False for a caller that has checked all it passes: botocore's own
            check of every value is a tenth of the work of a batch send.
        wait_seconds: of the long polls it will be used for; an answer may take so much longer.
        attempts: on one call, the first included.
    """
    return Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=wait_seconds + ANSWER_SECONDS,
        retries={"mode": "adaptive" if paced else "standard", "total_max_attempts": attempts},
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
    paced: bool = False,
    wait_seconds: int = 0,
    attempts: int = CALL_ATTEMPTS,
    region: str | None = None,
    endpoint_url: str | None = None,
) -> SQSClient:
    """An SQS client of the default session (environment, profile and region as with the AWS CLI).

    Args:
        connections, parameter_validation, paced, wait_seconds, attempts: as for `client_config`.
        region, endpoint_url: instead of the session's.

    Raises:
        ConfigurationError: no region, an unknown profile, or another setting boto3 cannot use.
    """
    config = client_config(
        connections=connections,
        parameter_validation=parameter_validation,
        paced=paced,
        wait_seconds=wait_seconds,
        attempts=attempts,
    )
    try:
        client = boto3.client("sqs", config=config, region_name=region, endpoint_url=endpoint_url)
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"{str(error).rstrip('.')}; set AWS_DEFAULT_REGION and AWS_PROFILE (or AWS_ENDPOINT_URL) "
            "as for the AWS CLI"
        ) from error
    client.meta.events.register("needs-retry.sqs", partial(_tell_of_retries, attempts))
    # A closed client opens connections again when it needs them; the parent's are left to the parent.
    in_each_child(client, type(client).close)
    return client


def _tell_of_retries(
    most: int, *, attempts: int, caught_exception: Exception | None = None, **_: Any
) -> None:
    """Say what a call waits for, where botocore would try again in silence."""
    if caught_exception is not None and attempts < most:
        logger.warning(
            "waiting for SQS, attempt %d of %d failed: %s", attempts, most, caught_exception
        )
