"""One Spark session for all tests of this folder, on two cores, in which a failed task is retried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

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
