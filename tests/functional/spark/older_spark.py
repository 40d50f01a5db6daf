"""Run by another Spark's Python: `sqsdelay.spark.send` on a table, then a second time; into S3 likewise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from sqsdelay.errors import ConfigurationError, NotAllSent
from sqsdelay.spark import register, send
from tests.functional.spark.conftest import QUICK


def main(folder: str) -> None:
    builder = SparkSession.builder.master("local[2,4]")
    for name, value in QUICK.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.range(100).selectExpr(
        "if(id = 7, '', 'x') Body", "id order_id", "86400 delay_seconds"
    )
    given: dict[str, Any] = {
        "endpoint": "orders",
        "key": "order_id",
        "job": "older",
        "receipts": f"{folder}/receipts",
        "rejects": f"{folder}/rejects",
    }
    first = send(rows, unique=True, **given)
    second = send(rows, **given)
    rejected = [row.order_id for row in spark.read.parquet(f"{folder}/rejects").collect()]
    streamed = stream(spark, folder)
    given |= {"job": "stored", "store": "s3://parked/delays"}
    stored = []
    for _ in range(2):
        counts = send(rows, **given)
        stored.append([counts["sent"], counts["already_sent"]])
    named = [batches(spark, folder, job) for job in JOBS]
    try:
        register(spark)
    except ConfigurationError as error:
        refused = str(error)
    told = json.dumps(
        [pyspark.__version__, refused, first, second, rejected, streamed, stored, named]
    )
    sys.stdout.write(told + "\n")
    spark.stop()


JOBS = ("..", "x %2F\n\0y")
"""Each names one job, and no folder."""


def batches(spark: SparkSession, folder: str, job: str) -> list[int]:
    """A micro-batch that fails for want of a rejects folder, and run again, twice: what that finds sent, what
    it sends, and what has been rejected of all jobs by then."""
    rows = spark.range(3).selectExpr("if(id = 1, '', 'x') body", "id key", "86400 delay_seconds")
    given: dict[str, Any] = {"endpoint": "orders", "receipts": f"{folder}/named/receipts"}
    try:
        send(rows, batch=1, job=job, **given)
    except NotAllSent:
        rejects = f"{folder}/named/rejects"
        for _ in range(2):
            again = send(rows, batch=1, job=job, rejects=rejects, **given)
        kept = spark.read.parquet(rejects).count()
        return [again["already_sent"], again["sent"], kept]
    return []


def stream(spark: SparkSession, folder: str) -> list[int]:
    """Micro-batches sent within foreachBatch: how many rows each sent."""
    sent: list[int] = []

    def save(batch: DataFrame, number: int) -> None:
        given: dict[str, Any] = {
            "endpoint": "orders",
            "job": "arrivals",
            "receipts": f"{folder}/receipts",
        }
        sent.append(send(batch, batch=number, **given)["sent"])

    Path(folder, "in").mkdir()
    Path(folder, "in", "1.json").write_text('{"body": "x", "key": 1, "delay_seconds": 86400}\n')
    rows = spark.readStream.schema("body string, key long, delay_seconds long").json(f"{folder}/in")
    query = rows.writeStream.foreachBatch(save).option("checkpointLocation", f"{folder}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    return sent


if __name__ == "__main__":
    main(sys.argv[1])
