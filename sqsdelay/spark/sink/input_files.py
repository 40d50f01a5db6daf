"""Files of messages, read as a table that the data source ``sqsdelay`` takes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    DataType,
    DoubleType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sqsdelay.spark.locations import hadoop_uri
from sqsdelay.spark.sink.columns import ATTRIBUTES, CORRUPT, DELAY, DUE_AT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Format(StrEnum):
    """How a file holds its rows."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


def read_table(spark: SparkSession, path: str, file_format: Format) -> DataFrame:
    """The rows of a file, a folder or a glob.

    CSV has a header and doubled quotes (RFC 4180), and fields may hold line breaks; JSON lines are
    read once more beforehand, for the names of their fields. A line that cannot be read is a row
    with the whole line in ``_corrupt_record``. Timestamps without an offset, in Parquet too, are
    read in the session's time zone.

    Args:
        path: a URI that Hadoop knows, or a path of this machine's, whatever the default file system is.

    Raises:
        PySparkException: no such file, or none of this format.
        ConfigurationError: Hadoop knows no such file system here.
    """
    path = hadoop_uri(spark, path, "INPUT")
    if file_format is Format.PARQUET:
        return _zoned(spark.read.parquet(path))
    reader = spark.read.option("columnNameOfCorruptRecord", CORRUPT)
    if file_format is Format.JSONL:
        names = reader.option("primitivesAsString", True).json(path).columns
        return reader.schema(_schema(names)).json(path)
    csv = reader.options(header=True, multiLine=True, escape='"')
    names = csv.csv(path).columns
    # With enforceSchema Spark would go by the columns' order, not by their names.
    return csv.option("enforceSchema", False).schema(_schema(names)).csv(path)


def _zoned(rows: DataFrame) -> DataFrame:
    for field in rows.schema.fields:
        if field.name.lower() == DUE_AT and isinstance(field.dataType, TimestampNTZType):
            return rows.withColumn(field.name, rows[field.name].cast(TimestampType()))
    return rows


def _schema(names: list[str]) -> StructType:
    fields = [StructField(name, _type(name.lower())) for name in names if name != CORRUPT]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def _type(name: str) -> DataType:
    if name == DELAY:
        return DoubleType()
    if name == DUE_AT:
        return TimestampType()
    return MapType(StringType(), StringType()) if name == ATTRIBUTES else StringType()
