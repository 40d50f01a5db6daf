"""Run by a Python that has pandas, over Spark Connect: a table sent, then a second time; what became of it,
and what was lost sent again; and the report of a ledger."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from sqsdelay.cost import shipped_prices
from sqsdelay.errors import ConfigurationError, StoreMissing
from sqsdelay.spark import reconcile, replay, send, write_report
from sqsdelay.spark.report.read import write_events
from tests.functional.spark.conftest import SETTINGS


def main(folder: str) -> None:
    builder = SparkSession.builder.remote("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
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
    sent = [send(rows, **given) for _ in range(2)]
    ledger = f"{folder}/events"
    events = write_events(spark, f"{folder}/job.jsonl", ledger)
    found = reconcile(rows, ledger, ledger_format="parquet", **given)
    statuses = {row.status: row["count"] for row in found.groupBy("status").count().collect()}
    again = replay(rows, ledger, ledger_format="parquet", **given)
    told = {"sent": sent, "events": events, "statuses": statuses, "again": again}
    try:
        send(rows, **given | {"job": "stored"}, store=f"sqlite:///{folder}/none.db")
    except StoreMissing as error:
        told["missing"] = str(error)
    sys.stdout.write(json.dumps(told | reported(spark, folder)) + "\n")
    spark.stop()


def bare(folder: str) -> None:
    """What a server tells whose workers have no sqsdelay."""
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
    rows = spark.range(1).selectExpr("'x' body", "id key", "86400 delay_seconds")
    store = f"sqlite:///{folder}/the-servers.db"
    try:
        send(rows, endpoint="orders", job="bare", rejects=f"{folder}/rejects", store=store)
    except ConfigurationError as error:
        sys.stdout.write(json.dumps(str(error)) + "\n")
    spark.stop()


def reported(spark: SparkSession, folder: str) -> dict[str, Any]:
    """A report; and one line of what cannot be read."""
    out, prices = f"{folder}/report", shipped_prices()
    figures = write_report(spark, f"{folder}/ledger.jsonl", out, prices=prices)
    try:
        write_report(spark, f"{folder}/none", out, prices=prices)
    except ConfigurationError as error:
        refused = str(error)
    return {"figures": figures, "refused": refused}


if __name__ == "__main__":
    (bare if sys.argv[2:] else main)(sys.argv[1])
