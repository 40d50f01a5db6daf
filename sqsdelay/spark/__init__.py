"""sqsdelay on Spark: the data source ``sqsdelay``, `send` for every Spark, and the report of a ledger,
a job's reconciliation and its replay.

Importing this does not import pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqsdelay.spark.reconciliation import reconcile, replay
    from sqsdelay.spark.report.write import write_report
    from sqsdelay.spark.sink.send import send

__all__ = ["reconcile", "register", "replay", "send", "write_report"]

_HOMES = {
    "reconcile": "sqsdelay.spark.reconciliation",
    "replay": "sqsdelay.spark.reconciliation",
    "send": "sqsdelay.spark.sink.send",
    "write_report": "sqsdelay.spark.report.write",
}


def __getattr__(name: str) -> Any:
    """Load on first use: Spark may not be installed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def register(spark: SparkSession) -> None:
    """Make ``format("sqsdelay")`` known to a session.

    Needed only where Spark does not find it by itself; it does where the package
    ``pyspark_sqsdelay``, which comes with sqsdelay, lies in a folder of the driver's Python's path.
    """
    from sqsdelay.spark.sink.data_source import SqsDelayDataSource

    spark.dataSource.register(SqsDelayDataSource)
