"""What others make of a ledger with code written for it alone: DuckDB, and Spark SQL by hand.

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


RIVALS: Mapping[str, Callable[[Path, Path], dict[str, int]]] = {
    "Spark SQL": with_spark_sql,
    "DuckDB": with_duckdb,
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
