"""The S3 client sqsdelay makes when it is given none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from sqsdelay.limits import ANSWER_SECONDS, CALL_ATTEMPTS, CONNECT_SECONDS

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def default_client() -> S3Client:
    """A client of the default session; a bucket that does not answer is given up within seconds."""
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": CALL_ATTEMPTS},
        tcp_keepalive=True,
    )
    return boto3.client("s3", config=config)
