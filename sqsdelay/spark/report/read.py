"""Reading a ledger: each line an event, or kept aside with the reason; and its events as a Parquet table."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from sqsdelay.core.limits import MAX_DUE_MS, MAX_MESSAGE_BYTES
from sqsdelay.core.message import Route
from sqsdelay.errors import ConfigurationError, InvalidSetting, MalformedEvent
from sqsdelay.ledger.events import LEDGER_VERSION, EventKind, Source, from_json
from sqsdelay.spark.session import cause, hadoop_uri

SPARK_ERRORS: Final = (PySparkException, Py4JJavaError)
"""Spark's own, and what Java has thrown."""
_MAX_KEPT_CHARS: Final = 10_000
"""Of a line that is kept aside."""
_MAX_BATCH: Final = 10_000
"""A larger batch of messages is nothing sqsdelay makes; SQS's is 10, stores have a few hundred."""
_FIELDS: Final = dict.fromkeys(
    ("event", "endpoint", "message_id", "source", "route", "reason", "sqs_message_id"), "string"
) | dict.fromkeys(
    ("v", "at_ms", "due_ms", "size", "batch", "receive_batch", "timer_seconds", "late_ms", "enqueued_ms"),
    "bigint",
)  # fmt: skip
"""An event's fields."""
_EVENT: Final = ", ".join(f"{name} {kind}" for name, kind in _FIELDS.items())
_CORRUPT: Final = "_corrupt"
_LINE: Final = f"{_EVENT}, ledger struct<{_EVENT}>, message string, {_CORRUPT} string"
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
    """The lines of a ledger: ``events``, what is none with ``file``, ``line`` and ``reason`` in ``aside``,
    and ``counts`` of ``lines`` and ``events``, once an action has gone through ``events``."""

    events: DataFrame
    aside: DataFrame
    counts: Observation

    @property
    def bad(self) -> int:
        """How many lines are no events, once they are counted."""
        return int(self.counts.get["lines"] - self.counts.get["events"])

    def bad_lines(self) -> DataFrame:
        """``aside``, once the lines are counted: the ledger need not be read once more to find none."""
        return self.aside if self.bad else self.aside.where(F.lit(False))


def read_ledger(
    spark: SparkSession, ledger: str | DataFrame, *, ledger_format: str | None = None
) -> Reading:
    """Read a ledger: JSON lines, plain or compressed, in a file, a folder with all below it, or a glob; the
    name of a table; or rows that this Spark loads by ``ledger_format``. A line may be of any shape that
    `sqsdelay.ledger.events.from_json` reads. Raises ConfigurationError."""
    if not isinstance(ledger, str):
        return _of_rows(ledger)
    if ledger_format is not None:
        # A table of Iceberg's has a name where others have a path.
        place = ledger if _TABLE.fullmatch(ledger) else hadoop_uri(spark, ledger, "ledger")
        try:
            loaded = spark.read.format(ledger_format).load(place)
            _ = loaded.columns  # Over Spark Connect nothing is looked at before it is needed.
        except SPARK_ERRORS as error:
            told = f"ledger {ledger} cannot be read as {ledger_format}: {cause(error)}"
            raise ConfigurationError(told) from error
        return _of_rows(loaded)
    is_table = False
    if _TABLE.fullmatch(ledger) and not Path(ledger).exists():
        with suppress(AnalysisException):
            is_table = spark.catalog.tableExists(ledger)
    if is_table:
        return _of_rows(spark.table(ledger))
    try:
        reader = spark.read.option("recursiveFileLookup", "true")
        text = reader.text(hadoop_uri(spark, ledger, "ledger")).where("trim(value) != ''")
        _ = text.columns
    except AnalysisException as error:
        raise InvalidSetting(
            f"ledger {ledger}: there is no such file, folder or match of a glob; "
            "name JSON lines as sqsdelay's ledger writes them"
        ) from error
    # The lines themselves are read once more if some are no events: to carry them along takes time.
    named = (F.col("_metadata.file_path").alias("file"), F.col("value").alias("line"))
    return _reading(_parsed(text), _parsed(text, *named))


def _reading(parsed: DataFrame, with_lines: DataFrame) -> Reading:
    counts = Observation("lines")
    sums = F.expr("count(1) AS lines"), F.expr("count_if(good) AS events")
    events = parsed.observe(counts, *sums).where("good").select(*_FIELDS)
    # Counted in vain: or Spark would ask for what is bad below all this, by one condition in which each
    # field stands for the whole of how it is read, and run out of memory.
    bad = with_lines.observe(Observation("lines"), *sums).where("NOT good")
    # Not an Arrow function: those ask for pandas.
    reason = F.udf(reason_of, useArrow=False)("line").alias("reason")
    aside = bad.select("file", F.substring("line", 1, _MAX_KEPT_CHARS).alias("line"), reason)
    return Reading(events=events, aside=aside, counts=counts)


def _of_rows(rows: DataFrame) -> Reading:
    names = {name.lower(): name for name in rows.columns}
    if missing := [name for name in _NEEDED if name not in names]:
        raise ConfigurationError(
            f"the ledger's rows have no column {', '.join(missing)}; there are "
            f"{', '.join(rows.columns)}: name a table of events, with a column for each field"
        )
    version = F.lit(LEDGER_VERSION)
    if "v" in names:  # Of its own type: text that is no number is a bad line, not a failed job.
        version = F.coalesce(names["v"], version.cast(rows.schema[names["v"]].dataType))
    rows = rows.withColumn(names.setdefault("v", "v"), version)
    known = {name: f"`{names[name]}`" if name in names else "NULL" for name in _FIELDS}
    fields = [f"try_cast({known[name]} AS {kind}) AS {name}" for name, kind in _FIELDS.items()]
    found = rows.selectExpr("'' AS file", "to_json(struct(*)) AS line", *fields)
    parsed = found.selectExpr("*", f"coalesce({_IS_EVENT}, false) AS good")
    return _reading(parsed, parsed)


def _parsed(text: DataFrame, *kept: Column) -> DataFrame:
    """The fields of the event that each line tells, and whether it is one."""
    known = f"value LIKE '{{%}}' AND NOT contains(value, '{_TWO_OBJECTS}')"
    bare = f"CASE WHEN {known} THEN value WHEN NOT contains(value, '{_TWO_OBJECTS}') "
    bare += f"THEN regexp_extract(value, r'{_OBJECT}', 1) END"
    read = text.select(*kept, F.from_json(F.expr(bare), _LINE, _STRICT).alias("read"))
    names = read.columns[:-1]
    nested = F.from_json("read.message", _EVENT, {"mode": "PERMISSIVE"})
    nested = F.when(F.expr("read.v IS NULL"), F.coalesce("read.ledger", nested))
    fields = [f"IF(read.v IS NULL, nested.{name}, read.{name}) AS {name}" for name in _FIELDS]
    told = read.select("*", nested.alias("nested")).selectExpr(
        *names, f"read.{_CORRUPT} IS NULL AS whole", *fields
    )
    return told.selectExpr(*names, *_FIELDS, f"coalesce(whole AND {_IS_EVENT}, false) AS good")


_RANGES: Final = {
    "due_ms": (0, MAX_DUE_MS), "enqueued_ms": (0, MAX_DUE_MS), "late_ms": (-MAX_DUE_MS, MAX_DUE_MS),
    "timer_seconds": (0, MAX_DUE_MS // 1000), "size": (0, MAX_MESSAGE_BYTES), "batch": (1, _MAX_BATCH),
    "receive_batch": (1, _MAX_BATCH),
}  # fmt: skip
_KINDS, _SOURCES, _ROUTES = (tuple(map(str, words)) for words in (EventKind, Source, Route))
_IS_EVENT: Final = " AND ".join(
    [
        f"v = {LEDGER_VERSION} AND event IN {_KINDS} AND source IN {_SOURCES}",
        f"coalesce(route IN {_ROUTES}, true) AND endpoint != '' AND message_id != ''",
        f"at_ms BETWEEN 0 AND {MAX_DUE_MS}",
        *[f"coalesce({n} BETWEEN {low} AND {high}, true)" for n, (low, high) in _RANGES.items()],
    ]
)
"""Whether the fields are those of an event that can be reckoned with."""


def reason_of(line: str) -> str:
    """Why a line is no event that can be reckoned with."""
    try:
        from_json(line)
    except MalformedEvent as error:
        return str(error)
    return "a number is out of range, or the line is JSON that not every reader takes"


def write_events(spark: SparkSession, ledger: str | DataFrame, folder: str) -> tuple[int, int]:
    """Append a ledger's events to a Parquet table, partitioned by the day (UTC) they happened. A report
    counts an event once that was appended twice. Lines that are not events are left out. ``folder`` is a path
    or URI that the executors see. Returns how many events were appended, and how many lines were left out.
    Raises ConfigurationError."""
    reading = read_ledger(spark, ledger)
    day = F.date_from_unix_date(F.floor(F.col("at_ms") / 86_400_000).cast("int"))
    try:
        # A day in one file, and a large day in some: adaptive execution splits it.
        dated = reading.events.withColumn("day", day).hint("rebalance", "day")
        dated.write.mode("append").partitionBy("day").parquet(hadoop_uri(spark, folder, "--out"))
    except SPARK_ERRORS as error:
        raise ConfigurationError(f"the events table {folder} failed: {cause(error)}") from error
    return int(reading.counts.get["events"]), reading.bad
