"""Run by a process of its own, on a cluster of two executors: a table of which one task is copied by real
speculation. Half of its rows go to the queues, half into an S3 store."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

ROWS = 400
TASKS = 4


def main(folder: str) -> None:
    def slow(part: int, rows: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The first attempt on the first task is slow to end, when all its rows are sent and staged."""
        yield from ((n, 3600 if n % 2 else 9 * 86_400) for n in rows)
        context = TaskContext.get()
        assert context is not None
        if part == 0 and context.attemptNumber() == 0:
            while not Path(folder, "copied").exists():
                time.sleep(0.05)
        elif part == 0:
            Path(folder, "copied").touch()

    builder = SparkSession.builder.master("local-cluster[2,2,1024]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.sparkContext.parallelize(range(ROWS), TASKS).mapPartitionsWithIndex(slow)
    table = spark.createDataFrame(rows, "id long, delay_seconds long").selectExpr(
        "id", "concat('body ', id) body", "delay_seconds"
    )
    given = {"endpoint": "orders", "key": "id", "job": "copied", "store": "s3://parked/delays"}
    given |= {"summary": f"{folder}/summary.json", "receipts": f"{folder}/receipts"}
    table.write.format("sqsdelay").options(**given).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
