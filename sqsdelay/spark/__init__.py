"""sqsdelay on Spark: the data source ``sqsdelay``, `send` for every Spark, and the report of a ledger,
a job's reconciliation and its replay.

Importing this does not import pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqsdelay.core import on_first_use
from sqsdelay.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqsdelay.spark.reconciliation import reconcile, replay
    from sqsdelay.spark.report.write import write_report
    from sqsdelay.spark.sink.send import send

__all__ = ["reconcile", "register", "replay", "send", "write_report"]

# Load on first use: Spark may not be installed.
__getattr__ = on_first_use(
    __name__,
    {
        "sqsdelay.spark.reconciliation": "reconcile replay",
        "sqsdelay.spark.sink.send": "send",
        "sqsdelay.spark.report.write": "write_report",
    },
)


def register(spark: SparkSession) -> None:
    """Make ``format("sqsdelay")`` known to a session.

    Needed only where Spark does not find it by itself; it does where the package
    ``pyspark_sqsdelay``, which comes with sqsdelay, lies in a folder of the driver's Python's path. Raises
    ConfigurationError before Spark 4.1."""
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 1):
        needed = f"format('sqsdelay') needs Spark 4.1 or newer, and this is {spark.version}"
        raise ConfigurationError(f"{needed}: use sqsdelay.spark.send(rows, …)")
    from sqsdelay.spark.sink.data_source import SqsDelayDataSource

    spark.dataSource.register(SqsDelayDataSource)
