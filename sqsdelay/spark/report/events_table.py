"""A ledger's lines as a table: Parquet, in a folder for each day."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.failure import cause
from sqsdelay.spark.locations import hadoop_uri
from sqsdelay.spark.report.read_ledger import read_ledger

DAY: Final = "day"
_DAY_MS: Final = 86_400_000


def write_events(
    spark: SparkSession,
    ledger: str | DataFrame,
    folder: str,
    *,
    ledger_format: str | None = None,
) -> tuple[int, int]:
    """Append a ledger's events to a Parquet table, partitioned by the day (UTC) they happened.

    A report counts an event once that was appended twice. Lines that are not events are left out.

    Args:
        spark: a session whose executors see ``folder``.
        ledger: see `read_ledger`.
        folder: a path, or a URI of any file system that this Spark knows.
        ledger_format: see `read_ledger`.

    Returns:
        How many events were appended, and how many lines were left out.

    Raises:
        ConfigurationError: there is no such ledger, or the folder cannot be written.
    """
    reading = read_ledger(spark, ledger, ledger_format=ledger_format)
    day = F.date_from_unix_date(F.floor(F.col("at_ms") / _DAY_MS).cast("int"))
    try:
        # A day in one file, and a large day in some: adaptive execution splits it.
        dated = reading.events.withColumn(DAY, day).hint("rebalance", DAY)
        place = hadoop_uri(spark, folder, "--out")
        dated.write.mode("append").partitionBy(DAY).parquet(place)
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigurationError(f"the events table {folder} failed: {cause(error)}") from error
    return int(reading.counts.get["events"]), reading.bad
