"""Spark looks for packages of this name, and registers their ``DefaultSource`` by itself."""

from __future__ import annotations

from sqsdelay.spark.data_source import SqsDelayDataSource as DefaultSource

__all__ = ["DefaultSource"]
