"""Run by a Python that has pandas: `sqsdelay.spark.send` over Spark Connect, then a second time."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from sqsdelay.spark import send


def main(folder: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    rows = spark.range(20).selectExpr(
        "if(id = 7, '', 'x') body", "id order_id", "timestamp '2035-07-01T09:00:00Z' due_at"
    )
    given: dict[str, Any] = {
        "endpoint": "orders",
        "key": "order_id",
        "job": "connect",
        "receipts": f"{folder}/receipts",
        "rejects": f"{folder}/rejects",
    }
    sys.stdout.write(json.dumps([send(rows, **given) for _ in range(2)]) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
