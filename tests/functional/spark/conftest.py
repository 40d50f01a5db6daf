"""One Spark session for all tests of this folder, on two cores, in which a failed task is retried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sqs_stub import Stub, running_stub
from sqsdelay.spark import register
from sqsdelay.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(own_aws_settings: None) -> Iterator[SparkSession]:
    """Its workers inherit the tests' AWS settings; where SQS is, the tests say by options."""
    settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    with session("tests", master="local[2,4]", settings=settings) as started:
        register(started)
        yield started


@pytest.fixture(scope="session")
def one_stub() -> Iterator[Stub]:
    with running_stub() as stub:
        yield stub


@pytest.fixture
def sqs(one_stub: Stub) -> Stub:
    """A stub of SQS in which every queue exists, and which keeps what it is sent."""
    one_stub.set_latency(0)
    one_stub.refuse("", calls=0)
    one_stub.keep()
    return one_stub
