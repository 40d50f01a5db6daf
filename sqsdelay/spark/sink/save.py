"""A whole table sent by the data source where Spark has it, or else by `send`."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyspark.sql

from sqsdelay.spark.sink.columns import checked_columns
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.send import send
from sqsdelay.spark.sink.table import check_unique, shared_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def save(rows: DataFrame, *, unique: bool = False, **options: Any) -> dict[str, Any]:
    """Send each row of a table as a delayed message; the counts.

    Args:
        rows: see `send`.
        unique: see `send`.
        options: see `send`, without ``summary``.

    Raises:
        PySparkException, Py4JJavaError: Spark failed; `sqsdelay.spark.failure` tells why.
    """
    spark = rows.sparkSession
    context = getattr(spark, "_sc", None)
    if context is None or not _has_data_source():
        return send(rows, unique=unique, **options)
    from sqsdelay.spark.sink.data_source import SqsDelayDataSource

    spark.dataSource.register(SqsDelayDataSource)
    at_a_time = int(context.defaultParallelism)
    texts = {name: str(value) for name, value in ({"tasks": at_a_time} | options).items()}
    parsed = Options.parse(texts)
    columns = checked_columns(rows.schema, parsed)
    if unique:
        check_unique(rows, columns)
    rows = shared_out(rows, columns, tasks=at_a_time, options=parsed)
    with TemporaryDirectory(prefix="sqsdelay-") as folder:
        # Spark commits in a process of its own, on this machine.
        summary = Path(folder) / "summary.json"
        writer = rows.write.format("sqsdelay").options(**texts, summary=str(summary))
        writer.mode("append").save()
        return dict(json.loads(summary.read_text()))


def _has_data_source() -> bool:
    """Whether this Spark hands Arrow batches to Python data sources: from 4.1 on."""
    major, minor = pyspark.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (4, 1)
