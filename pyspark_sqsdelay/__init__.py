"""Spark looks for packages of this name, and registers their ``DefaultSource`` by itself."""

from __future__ import annotations

from sqsdelay.spark.sink.data_source import SqsDelayDataSource as DefaultSource

__all__ = ["DefaultSource"]
