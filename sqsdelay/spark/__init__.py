"""sqsdelay on Spark: the data source ``sqsdelay``, and the report of a ledger.

Importing this does not import pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqsdelay.spark.report.write import write_report

__all__ = ["register", "write_report"]


def __getattr__(name: str) -> Any:
    """Load on first use: Spark may not be installed."""
    if name != "write_report":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sqsdelay.spark.report.write import write_report

    return write_report


def register(spark: SparkSession) -> None:
    """Make ``format("sqsdelay")`` known to a session.

    Needed only where Spark does not find it by itself; it does where the package
    ``pyspark_sqsdelay``, which comes with sqsdelay, lies in a folder of the driver's Python's path.
    """
    from sqsdelay.spark.sink.data_source import SqsDelayDataSource

    spark.dataSource.register(SqsDelayDataSource)
