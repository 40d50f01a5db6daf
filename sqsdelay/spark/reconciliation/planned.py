"""What a job was to send, and what its receipts show as sent: read by Spark alone, without a worker."""

from __future__ import annotations

from itertools import chain
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sqsdelay.core.message import Route
from sqsdelay.errors import ConfigurationError
from sqsdelay.ledger.events import EventKind
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.spark.locations import hadoop_uri
from sqsdelay.spark.report.messages import KEY
from sqsdelay.spark.sink.columns import DELAY, DUE_AT, ENDPOINT, MESSAGE_ID, Columns
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.receipts import Receipts, job_folder

_RECEIPT: Final = "message_id string, endpoint string, route string, due_at timestamp"
_REPLAY: Final = "/replay=([0-9]+)/[^/]*$"
_PLACES: Final = {
    Route.DIRECT.value: "destination queue",
    Route.DELAY_QUEUE.value: "delay queue",
    Route.DUE_QUEUE.value: "due queue",
    Route.STORE.value: "store",
}
"""Where a message is that was just sent, as `sqsdelay.spark.report.requests.place` calls it."""


def job_start_ms(options: Options, columns: Columns) -> int | None:
    """The instant of a job's first run, by its receipts.

    Raises:
        ConfigurationError: it has none there; or it is given none, and its due times depend on it.
    """
    if options.receipts is None:
        if columns.has(DELAY):
            raise ConfigurationError(
                "delay_seconds count from the job's first run, which only its receipts record: "
                "give option('receipts', …), or a table with due_at"
            )
        return None
    start_ms = Receipts(options.receipts, str(options.job)).kept_start_ms()
    if start_ms is None:
        raise ConfigurationError(
            f"job {options.job!r} has no receipts in {options.receipts}; name the job and the folder "
            "as they were when it was sent"
        )
    return start_ms


def identified(rows: DataFrame, columns: Columns, options: Options) -> DataFrame:
    """The rows, each with its message's ``_endpoint`` (its name) and ``_id``, as the sink gives them."""
    return rows.select(
        "*",
        _name_of(_endpoint(columns, options)).alias("_endpoint"),
        _message_id(columns, options).alias("_id"),
    )


def planned(rows: DataFrame, columns: Columns, options: Options, start_ms: int | None) -> DataFrame:
    """A row for each message that the table holds: when it is due, and how many rows have its id."""
    due_ms = _due_ms(columns, start_ms).alias("_due_ms")
    named = identified(rows, columns, options).select("_endpoint", "_id", due_ms)
    return named.groupBy(
        F.col("_endpoint").alias("endpoint"), F.col("_id").alias("message_id")
    ).agg(F.count(F.lit(1)).alias("rows"), F.min("_due_ms").alias("planned_due_ms"))


def receipts(spark: SparkSession, options: Options, start_ms: int) -> DataFrame:
    """A row for each message that the job noted as sent: as `gathered` would make it of events.

    When a message was sent is not noted: the job's first instant stands for it, or the replay's.

    Raises:
        ConfigurationError: Spark cannot read them.
    """
    assert options.receipts is not None, "checked by job_start_ms"
    folder = job_folder(options.receipts, str(options.job))
    reader = spark.read.schema(_RECEIPT).option("recursiveFileLookup", True)
    # A file that was cut off when the job was killed counts as none, as for the sink.
    reader = reader.option("pathGlobFilter", "part-*.parquet").option("ignoreCorruptFiles", True)
    try:
        found = reader.parquet(hadoop_uri(spark, folder, "receipts"))
    except (AnalysisException, Py4JJavaError) as error:
        raise ConfigurationError(f"receipts {folder} cannot be read: {error}") from error
    replay = F.expr(f"try_cast(regexp_extract(_metadata.file_path, '{_REPLAY}', 1) AS bigint)")
    noted = found.select(
        _name_of(F.col("endpoint")).alias("endpoint"),
        "message_id",
        "route",
        F.unix_millis("due_at").alias("due_ms"),
        replay.alias("replay"),
        F.coalesce(replay, F.lit(start_ms)).alias("at_ms"),
    )
    sent = F.struct(*_moment(), "route", "due_ms", _timer_seconds())
    direct = F.struct(*_moment(), _timer_seconds())
    place = F.element_at(F.create_map(*map(F.lit, chain(*_PLACES.items()))), F.col("route"))
    event = F.lit(EventKind.SENT.value).alias("event")
    return noted.groupBy(*KEY).agg(
        F.min(sent).alias("noted_sent"),
        F.min(F.when(F.col("route") == Route.DIRECT.value, direct)).alias("noted_direct"),
        F.max(F.struct(*_moment(), event, place.alias("place"))).alias("noted_last"),
        F.max("replay").alias("replayed_ms"),
        F.count_distinct("replay").alias("replays"),
    )


def _moment() -> list[Column]:
    """What `gathered` orders events by."""
    at_ms = F.col("at_ms")
    return [at_ms.alias("when"), F.lit(1).cast("bigint").alias("order"), at_ms.alias("at_ms")]


def _timer_seconds() -> Column:
    """Of a direct message: all that was left of its delay."""
    left = F.ceil((F.col("due_ms") - F.col("at_ms")) / 1000)
    timer = F.least(F.greatest(left, F.lit(0)), F.lit(MAX_MESSAGE_TIMER_SECONDS))
    is_direct = F.col("route") == Route.DIRECT.value
    return F.when(is_direct, timer).cast("bigint").alias("timer_seconds")


def _column(columns: Columns, name: str) -> Column:
    spelled = {ours: theirs for theirs, ours in columns.spelled.items()}
    return F.col(f"`{spelled.get(name, name)}`")


def _endpoint(columns: Columns, options: Options) -> Column:
    given = F.lit(options.endpoint).cast("string")
    if not columns.has(ENDPOINT):
        return given
    return F.coalesce(F.nullif(_column(columns, ENDPOINT), F.lit("")), given)


def _name_of(endpoint: Column) -> Column:
    """The queue's name of a name, a URL or an ARN."""
    return F.regexp_extract(endpoint, "([^/:]*)$", 1)


def _message_id(columns: Columns, options: Options) -> Column:
    """As `sqsdelay.spark.sink.rows.derived_id` makes it, where the row has none of its own."""
    own = _column(columns, MESSAGE_ID) if columns.has(MESSAGE_ID) else F.lit(None).cast("string")
    if columns.key is None:
        return own
    key = _column(columns, columns.key).cast("string")
    return F.coalesce(own, F.sha2(F.concat(F.lit(f"{options.job}\0"), key), 256))


def _due_ms(columns: Columns, start_ms: int | None) -> Column:
    """As `sqsdelay.spark.sink.rows.Rows` makes it: up to the next millisecond, never before 1970."""
    if columns.has(DELAY):
        delay_ms = F.ceil(_column(columns, DELAY).cast("double") * 1000)
        return F.lit(start_ms) + delay_ms.cast("bigint")
    due_at = _column(columns, DUE_AT)
    begun = F.when(F.pmod(F.unix_micros(due_at), F.lit(1000)) > 0, 1).otherwise(0)
    return F.greatest(F.unix_millis(due_at) + begun, F.lit(0))
