"""sqsdelay on Spark: the data source ``sqsdelay``. Importing this does not import pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make ``format("sqsdelay")`` known to a session.

    Needed only where Spark does not find it by itself; it does where the package
    ``pyspark_sqsdelay``, which comes with sqsdelay, lies in a folder of the driver's Python's path.
    """
    from sqsdelay.spark.sink.data_source import SqsDelayDataSource

    spark.dataSource.register(SqsDelayDataSource)
