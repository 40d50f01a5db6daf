"""The data source: rows of a table become delayed messages, each once under its own id."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sqsdelay.endpoint import Endpoint
from sqsdelay.sqs import create_endpoint
from sqsdelay.testing.local_aws import REGION, LocalAws

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


def test_rows(spark: SparkSession, local_aws: LocalAws) -> None:
    """x"""
    create_endpoint(local_aws.client("sqs"), Endpoint.parse("spark-orders"))
    df = spark.sql("select cast(id as string) body, concat('m', id) message_id, 2 delay_seconds from range(25)")
    df.write.format("sqsdelay").options(endpoint="spark-orders", region=REGION, endpoint_url=local_aws.endpoint_url, summary="/tmp/x/summary.json").mode("append").save()
    print(open("/tmp/x/summary.json").read())
