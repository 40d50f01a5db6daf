"""Reading a ledger: each line an event, or kept aside with the reason; and its events as a Parquet table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sqsdelay.core.message import Route
from sqsdelay.errors import ConfigurationError, InvalidSetting, MalformedEvent
from sqsdelay.ledger.events import LEDGER_VERSION, EventKind, Source, from_json
from sqsdelay.limits import MAX_DUE_MS, MAX_MESSAGE_BYTES
from sqsdelay.spark.locations import hadoop_uri
from sqsdelay.spark.session import cause

MAX_KEPT_CHARS: Final = 10_000
"""Of a line that is kept aside."""

MAX_BATCH: Final = 10_000
"""A larger batch of messages is nothing sqsdelay makes; SQS's is 10, stores have a few hundred."""

_TEXTS: Final = ("event", "endpoint", "message_id", "source", "route", "reason", "sqs_message_id")
_NUMBERS: Final = (
    "v", "at_ms", "due_ms", "size", "batch", "receive_batch", "timer_seconds", "late_ms",
    "enqueued_ms",
)  # fmt: skip
EVENT: Final = StructType(
    [StructField(name, StringType()) for name in _TEXTS]
    + [StructField(name, LongType()) for name in _NUMBERS]
)
_CORRUPT: Final = "_corrupt"
_LINE: Final = (
    StructType(list(EVENT.fields))
    .add("ledger", EVENT)
    .add("message", StringType())
    .add(_CORRUPT, StringType())
)
_STRICT: Final = {"columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false"}
_NEEDED: Final = ("event", "at_ms", "endpoint", "message_id", "source")
_TABLE: Final = re.compile(r"[A-Za-z_]\w*(\.\w+){0,2}", re.ASCII)
"""A table's name in Spark's catalogs."""
_OBJECT: Final = r"^\s*(?:\d{4}-\d\d-\d\dT[\d:.,+Z-]+\s+)?(\{.*\})\s*$"
"""A JSON object, also with a timestamp before it, as in an exported CloudWatch log."""
_TWO_OBJECTS: Final = '}{"'
"""In no JSON text, not even inside a string; Spark would read the first object only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The lines of a ledger.

    ``events`` has a column for each field of an event; ``aside`` has ``file``, ``line`` and ``reason`` for
    each line that is none. ``counts`` tells ``lines`` and ``events`` once an action has gone through
    ``events``.
    """

    events: DataFrame
    aside: DataFrame
    counts: Observation

    @property
    def bad(self) -> int:
        """How many lines are no events, once they are counted."""
        found = self.counts.get
        return int(found["lines"] - found["events"])

    def bad_lines(self) -> DataFrame:
        """``aside``, once the lines are counted: the ledger need not be read once more to find none."""
        return self.aside if self.bad else self.aside.where(F.lit(False))


def read_ledger(
    spark: SparkSession,
    ledger: str | DataFrame,
    *,
    ledger_format: str | None = None,
) -> Reading:
    """Read a ledger, as lines or as rows.

    JSON lines, plain or compressed (``.gz``), are in a file, a folder with all below it, or a glob, on
    any file system that this Spark knows. Blank lines count as nothing. A line may be of any other
    shape that `sqsdelay.ledger.events.from_json` reads: an event under ``ledger`` or ``message``, or
    with a timestamp before it. Rows have a column for each field of an event that they know.

    Args:
        ledger: the path or URI of lines, the name of a table, or a DataFrame of rows.
        ledger_format: ``parquet``, ``delta``, ``iceberg`` or another that this Spark loads rows of.

    Raises:
        ConfigurationError: there is no such file, folder, match or format; rows that are no events.
    """
    if not isinstance(ledger, str):
        return _of_rows(ledger)
    if ledger_format is not None:
        return _of_rows(_loaded(spark, ledger, ledger_format))
    if _is_table(spark, ledger):
        return _of_rows(spark.table(ledger))
    # The lines themselves are read once more if some are no events: to carry them along takes time.
    text = _text(spark, ledger).where(F.trim("value") != "")
    named = (F.col("_metadata.file_path").alias("file"), F.col("value").alias("line"))
    return _reading(_parsed(text), _parsed(text, *named))


def _of_rows(rows: DataFrame) -> Reading:
    parsed = _rows(rows)
    return _reading(parsed, parsed)


def _reading(parsed: DataFrame, with_lines: DataFrame) -> Reading:
    counts, counted = _counted(parsed)
    return Reading(
        events=counted.where("good").select(*EVENT.names), aside=_aside(with_lines), counts=counts
    )


def _counted(parsed: DataFrame) -> tuple[Observation, DataFrame]:
    counts = Observation("lines")
    counted = parsed.observe(
        counts,
        F.count(F.lit(1)).alias("lines"),
        F.count_if("good").alias("events"),
    )
    return counts, counted


def _aside(parsed: DataFrame) -> DataFrame:
    # Counted in vain: or Spark would ask for what is bad below all this, by one condition in which each
    # field stands for the whole of how it is read, and run out of memory.
    _, counted = _counted(parsed)
    bad = counted.where(~F.col("good")).select("file", "line")
    # Not an Arrow function: those ask for pandas.
    reason = F.udf(reason_of, StringType(), useArrow=False)("line")
    return bad.select(
        "file", F.substring("line", 1, MAX_KEPT_CHARS).alias("line"), reason.alias("reason")
    )


def _loaded(spark: SparkSession, ledger: str, ledger_format: str) -> DataFrame:
    # A table of Iceberg's has a name where others have a path.
    place = ledger if _TABLE.fullmatch(ledger) else hadoop_uri(spark, ledger, "ledger")
    try:
        loaded = spark.read.format(ledger_format).load(place)
        _ = loaded.columns  # Over Spark Connect nothing is looked at before it is needed.
        return loaded
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigurationError(
            f"ledger {ledger} cannot be read as {ledger_format}: {cause(error)}"
        ) from error


def _is_table(spark: SparkSession, ledger: str) -> bool:
    if not _TABLE.fullmatch(ledger) or Path(ledger).exists():
        return False
    try:
        return spark.catalog.tableExists(ledger)
    except AnalysisException:
        return False


def _rows(rows: DataFrame) -> DataFrame:
    names = {name.lower(): name for name in rows.columns}
    if missing := [name for name in _NEEDED if name not in names]:
        raise ConfigurationError(
            f"the ledger's rows have no column {', '.join(missing)}; there are "
            f"{', '.join(rows.columns)}: name a table of events, with a column for each field"
        )
    fields = []
    for field in EVENT.fields:
        kind = field.dataType.simpleString()
        known = f"try_cast(`{names[field.name]}` AS {kind})" if field.name in names else "NULL"
        if field.name == "v":
            known = f"coalesce({known}, {LEDGER_VERSION})"
        fields.append(F.expr(f"CAST({known} AS {kind})").alias(field.name))
    version = [] if "v" in names else [F.lit(LEDGER_VERSION).alias("v")]
    found = rows.select(
        F.lit("").alias("file"),
        F.to_json(F.struct(*version, "*")).alias("line"),
        *fields,
    )
    return found.withColumn("good", F.coalesce(_is_event(), F.lit(False)))


def _text(spark: SparkSession, ledger: str) -> DataFrame:
    try:
        text = spark.read.option("recursiveFileLookup", "true").text(
            hadoop_uri(spark, ledger, "ledger")
        )
        _ = text.columns
    except AnalysisException as error:
        raise InvalidSetting(
            f"ledger {ledger}: there is no such file, folder or match of a glob; "
            "name JSON lines as sqsdelay's ledger writes them"
        ) from error
    return text


def _parsed(text: DataFrame, *kept: Column) -> DataFrame:
    """The fields of the event that each line tells, and whether it is one."""
    line = F.col("value")
    known = F.when(line.startswith("{") & line.endswith("}"), line)
    found = known.otherwise(F.regexp_extract(line, _OBJECT, 1))
    bare = F.when(~line.contains(_TWO_OBJECTS), found)
    read = text.select(*kept, F.from_json(bare, _LINE, _STRICT).alias("read"))
    nested = F.coalesce(
        F.col("read.ledger"), F.from_json(F.col("read.message"), EVENT, {"mode": "PERMISSIVE"})
    )
    is_bare = F.col("read.v").isNotNull()
    names = [name for name in read.columns if name != "read"]
    with_nested = read.select("*", F.when(~is_bare, nested).alias("nested"))
    told = with_nested.select(
        *names,
        F.col(f"read.{_CORRUPT}").isNull().alias("whole"),
        *[
            F.when(is_bare, F.col(f"read.{name}")).otherwise(F.col(f"nested.{name}")).alias(name)
            for name in EVENT.names
        ],
    )
    good = F.coalesce(F.col("whole") & _is_event(), F.lit(False))
    return told.select(*names, *EVENT.names, good.alias("good"))


def _is_event() -> Column:
    """Whether the fields are those of an event that can be reckoned with."""

    field = F.col

    def unless_null(name: str, fits: Column) -> Column:
        return field(name).isNull() | fits

    fits = field("v") == LEDGER_VERSION
    fits &= field("event").isin([kind.value for kind in EventKind])
    fits &= field("source").isin([source.value for source in Source])
    fits &= unless_null("route", field("route").isin([route.value for route in Route]))
    fits &= (field("endpoint") != "") & (field("message_id") != "")
    fits &= field("at_ms").between(0, MAX_DUE_MS)
    for name in ("due_ms", "enqueued_ms"):
        fits &= unless_null(name, field(name).between(0, MAX_DUE_MS))
    fits &= unless_null("late_ms", field("late_ms").between(-MAX_DUE_MS, MAX_DUE_MS))
    fits &= unless_null("timer_seconds", field("timer_seconds").between(0, MAX_DUE_MS // 1000))
    fits &= unless_null("size", field("size").between(0, MAX_MESSAGE_BYTES))
    for name in ("batch", "receive_batch"):
        fits &= unless_null(name, field(name).between(1, MAX_BATCH))
    return fits


def reason_of(line: str) -> str:
    """Why a line is no event that can be reckoned with."""
    try:
        from_json(line)
    except MalformedEvent as error:
        return str(error)
    return "a number is out of range, or the line is JSON that not every reader takes"


DAY: Final = "day"
_DAY_MS: Final = 86_400_000


def write_events(
    spark: SparkSession,
    ledger: str | DataFrame,
    folder: str,
) -> tuple[int, int]:
    """Append a ledger's events to a Parquet table, partitioned by the day (UTC) they happened.

    A report counts an event once that was appended twice. Lines that are not events are left out.

    Args:
        spark: a session whose executors see ``folder``.
        ledger: see `read_ledger`.
        folder: a path, or a URI of any file system that this Spark knows.

    Returns:
        How many events were appended, and how many lines were left out.

    Raises:
        ConfigurationError: there is no such ledger, or the folder cannot be written.
    """
    reading = read_ledger(spark, ledger)
    day = F.date_from_unix_date(F.floor(F.col("at_ms") / _DAY_MS).cast("int"))
    try:
        # A day in one file, and a large day in some: adaptive execution splits it.
        dated = reading.events.withColumn(DAY, day).hint("rebalance", DAY)
        place = hadoop_uri(spark, folder, "--out")
        dated.write.mode("append").partitionBy(DAY).parquet(place)
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigurationError(f"the events table {folder} failed: {cause(error)}") from error
    return int(reading.counts.get["events"]), reading.bad
