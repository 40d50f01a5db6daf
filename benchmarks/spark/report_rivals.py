"""What others make of a ledger with code written for it alone: DuckDB, polars, and Spark SQL by hand.

Each makes the tables of messages, lateness and summary. The report makes five more, looks at each line
whether it is an event, and draws the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FIGURES = ("messages", "delivered", "lost", "pending", "duplicated")
COLUMNS = {
    "v": "INT", "event": "VARCHAR", "at_ms": "BIGINT", "endpoint": "VARCHAR", "message_id": "VARCHAR",
    "source": "VARCHAR", "due_ms": "BIGINT", "size": "BIGINT", "batch": "BIGINT",
    "receive_batch": "BIGINT", "route": "VARCHAR", "timer_seconds": "BIGINT", "late_ms": "BIGINT",
    "sqs_message_id": "VARCHAR",
}  # fmt: skip
LOST_AFTER_MS = 3_600_000

MESSAGES = """
SELECT endpoint, message_id, min(at_ms) FILTER (WHERE event = 'sent') AS sent_ms,
  max_by(due_ms, at_ms) AS due_ms, min(at_ms) FILTER (WHERE event = 'received') AS received_ms,
  min_by(late_ms, at_ms) FILTER (WHERE event = 'received') AS late_ms,
  min_by(late_ms, at_ms) FILTER (WHERE event = 'handed-over') AS hand_over_late_ms,
  max(size) AS size, count(*) AS events,
  count(*) FILTER (WHERE event IN ('hop', 'handed-over')) AS hops,
  count(DISTINCT sqs_message_id) FILTER (WHERE event = 'received') AS copies,
  sum(CASE WHEN event = 'sent' THEN 1.0 / batch WHEN event = 'hop' THEN 1.0 / batch + 2.0 / receive_batch
      WHEN event = 'handed-over' THEN 2.0 / receive_batch END) AS fifo_requests,
  max(at_ms) AS last_ms
FROM line GROUP BY endpoint, message_id
"""
JUDGED = f"""
SELECT *, CASE WHEN received_ms IS NOT NULL THEN 'delivered'
  WHEN due_ms + {LOST_AFTER_MS} < (SELECT max(last_ms) FROM message) THEN 'lost' ELSE 'pending' END AS status
FROM message
"""
LATENESS = """
SELECT endpoint, cast(floor(due_ms / 3600000) AS BIGINT) AS hour, count(*) AS messages,
  {late} AS late, {handed} AS handed
FROM judged GROUP BY endpoint, hour ORDER BY endpoint, hour
"""
SUMMARY = """
SELECT endpoint, count(*) AS messages,
  count(*) FILTER (WHERE status = 'delivered') AS delivered,
  count(*) FILTER (WHERE status = 'lost') AS lost,
  count(*) FILTER (WHERE status = 'pending') AS pending,
  count(*) FILTER (WHERE copies > 1) AS duplicated,
  sum(fifo_requests) AS fifo_requests, {late} AS late
FROM judged GROUP BY ROLLUP (endpoint)
"""


def _with(query: str, percentiles: str) -> str:
    late, handed = (percentiles.format(name) for name in ("late_ms", "hand_over_late_ms"))
    return query.format(late=late, handed=handed)


def with_duckdb(ledger: Path, out: Path) -> dict[str, int]:
    """By DuckDB."""
    import duckdb

    out.mkdir()
    connection = duckdb.connect(str(out / "database"))
    connection.execute(
        f"CREATE TABLE line AS SELECT DISTINCT * FROM read_json('{ledger}/*.jsonl', "
        f"format = 'newline_delimited', columns = {COLUMNS})"
    )
    percentiles = "quantile_cont({}, [0.5, 0.9, 0.99, 1])"
    tables = {
        "message": MESSAGES,
        "judged": JUDGED,
        "lateness": _with(LATENESS, percentiles),
        "summary": _with(SUMMARY, percentiles),
    }
    for name, query in tables.items():
        connection.execute(f"CREATE TABLE {name} AS {query}")
    connection.execute(
        f"COPY (FROM judged ORDER BY endpoint, message_id) TO '{out}/messages.parquet'"
    )
    for name in ("lateness", "summary"):
        connection.execute(f"COPY {name} TO '{out}/{name}.parquet'")
    row = connection.execute(
        f"SELECT {', '.join(FIGURES)} FROM summary WHERE endpoint IS NULL"
    ).fetchone()
    assert row is not None
    return dict(zip(FIGURES, row, strict=True))


def with_spark_sql(ledger: Path, out: Path) -> dict[str, int]:
    """By Spark, whose session is the report's."""
    from sqsdelay.spark.session import session

    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()).replace(
        "VARCHAR", "STRING"
    )
    percentiles = "percentile({}, array(0.5, 0.9, 0.99, 1))"
    with session("Spark SQL by hand") as spark:
        lines = spark.read.schema(schema).json(f"file://{ledger}").distinct()
        lines.createOrReplaceTempView("line")
        spark.sql(MESSAGES).write.parquet(f"file://{out}/gathered")
        spark.read.parquet(f"file://{out}/gathered").createOrReplaceTempView("message")
        judged = spark.sql(JUDGED).sort("endpoint", "message_id")
        judged.write.parquet(f"file://{out}/messages")
        spark.read.parquet(f"file://{out}/messages").createOrReplaceTempView("judged")
        for name, query in (("lateness", LATENESS), ("summary", SUMMARY)):
            table = spark.sql(_with(query, percentiles)).coalesce(1)
            table.write.parquet(f"file://{out}/{name}")
        summary = spark.read.parquet(f"file://{out}/summary")
        (row,) = summary.where("endpoint IS NULL").select(*FIGURES).collect()
        return dict(row.asDict())


def with_polars(ledger: Path, out: Path) -> dict[str, int]:
    """By polars, streaming."""
    import polars as pl

    out.mkdir()
    kinds = {"INT": pl.Int64, "BIGINT": pl.Int64, "VARCHAR": pl.String}
    lines = pl.scan_ndjson(
        f"{ledger}/*.jsonl", schema={name: kinds[kind] for name, kind in COLUMNS.items()}
    ).unique()
    event, at_ms, late_ms = pl.col("event"), pl.col("at_ms"), pl.col("late_ms")
    received = event == "received"

    def first(kind: str) -> pl.Expr:
        return late_ms.filter(event == kind).sort_by(at_ms.filter(event == kind)).first()

    batch, received_together = pl.col("batch"), pl.col("receive_batch")
    requests = (
        pl.when(event == "sent")
        .then(1.0 / batch)
        .when(event == "hop")
        .then(1.0 / batch + 2.0 / received_together)
        .when(event == "handed-over")
        .then(2.0 / received_together)
    )
    gathered = lines.group_by("endpoint", "message_id").agg(
        at_ms.filter(event == "sent").min().alias("sent_ms"),
        pl.col("due_ms").sort_by(at_ms).last(),
        at_ms.filter(received).min().alias("received_ms"),
        first("received").alias("late_ms"),
        first("handed-over").alias("hand_over_late_ms"),
        pl.col("size").max(),
        pl.len().alias("events"),
        event.is_in(["hop", "handed-over"]).sum().alias("hops"),
        pl.col("sqs_message_id").filter(received).n_unique().alias("copies"),
        requests.sum().alias("fifo_requests"),
        at_ms.max().alias("last_ms"),
    )
    message = gathered.collect(engine="streaming")
    lost = pl.col("due_ms") + LOST_AFTER_MS < pl.col("last_ms").max()
    status = pl.when(pl.col("received_ms").is_not_null()).then(pl.lit("delivered"))
    judged = message.with_columns(
        status.when(lost).then(pl.lit("lost")).otherwise(pl.lit("pending")).alias("status")
    ).sort("endpoint", "message_id")
    judged.write_parquet(out / "messages.parquet")

    def percentiles(name: str) -> list[pl.Expr]:
        return [
            pl.col(name).quantile(q, "linear").alias(f"{name}_{q}") for q in (0.5, 0.9, 0.99, 1)
        ]

    by_hour = judged.group_by("endpoint", pl.col("due_ms") // 3_600_000).agg(
        pl.len(), *percentiles("late_ms"), *percentiles("hand_over_late_ms")
    )
    by_hour.sort("endpoint", "due_ms").write_parquet(out / "lateness.parquet")
    counts = [
        pl.len().alias("messages"),
        *[
            (pl.col("status") == name).sum().alias(name)
            for name in ("delivered", "lost", "pending")
        ],
        (pl.col("copies") > 1).sum().alias("duplicated"),
        pl.col("fifo_requests").sum(),
        *percentiles("late_ms"),
    ]
    every = judged.select(pl.lit(None, pl.String).alias("endpoint"), *counts)
    summary = pl.concat([every, judged.group_by("endpoint").agg(*counts)])
    summary.write_parquet(out / "summary.parquet")
    (row,) = every.select(*FIGURES).to_dicts()
    return row


RIVALS: Mapping[str, Callable[[Path, Path], dict[str, int]]] = {
    "Spark SQL": with_spark_sql,
    "DuckDB": with_duckdb,
    "polars": with_polars,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="One of them alone; prints its figures as JSON.")
    parser.add_argument("rival", choices=RIVALS)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("out", type=Path)
    given: Any = parser.parse_args()
    print(json.dumps(RIVALS[given.rival](given.ledger, given.out)))


if __name__ == "__main__":
    main()
