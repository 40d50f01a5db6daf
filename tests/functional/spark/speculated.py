"""Run as a driver: a table into an S3 store on a cluster whose first attempt on one task stands still until
Spark has begun a copy of it."""

from __future__ import annotations

import os
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.functional.spark.conftest import SETTINGS
from tests.patience import PATIENCE_SECONDS

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m",
    "spark.cores.max": "4",
}


def held_up(folder: str) -> object:
    """A column's function: the first attempt on row 0 waits for another attempt on it."""

    def wait(number: int) -> int:
        if number:
            return number
        for name, first in (("first", True), ("second", False)):
            try:
                os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            deadline = time.monotonic() + PATIENCE_SECONDS
            while first and not os.path.exists(f"{folder}/second") and time.monotonic() < deadline:
                time.sleep(0.05)
            break
        return number

    return F.udf(wait, "long", useArrow=False)


def main(folder: str, master: str) -> None:
    builder = SparkSession.builder.master(master)
    for name, value in (SETTINGS | SPECULATION).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.range(0, 400, 1, 8).select(held_up(folder)("id").alias("id"))  # type: ignore[operator]
    rows = rows.selectExpr("id", "concat('body ', id) body", "(id + 1) * 86400 delay_seconds")
    given = {"endpoint": "orders", "store": "s3://parked/delays", "key": "id", "job": "copies"}
    rows.write.format("sqsdelay").options(**given).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
