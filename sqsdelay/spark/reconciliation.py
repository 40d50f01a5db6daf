"""What was planned, sent, released and delivered of one job, a row for each message; and what was lost of
it, sent again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqsdelay.core.delay import SystemClock, check_range
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.spark.report import messages
from sqsdelay.spark.report.messages import KEY, OPEN, columns, gathered, judged
from sqsdelay.spark.report.read import SPARK_ERRORS, read_ledger
from sqsdelay.spark.session import GRACE_SECONDS, hadoop_uri
from sqsdelay.spark.sink.options import Options, checked_columns
from sqsdelay.spark.sink.receipts import Receipts, job_folder
from sqsdelay.spark.sink.send import message_id, save, spelled

_RECEIPT: Final = "message_id string, endpoint string, route string, due_at timestamp"
_NAME: Final = "regexp_extract(endpoint, '([^/:]*)$', 1)"
"""The queue's name of a name, a URL or an ARN."""
_NOTED: Final = columns(f"""
    {_NAME} AS endpoint; message_id; route; unix_millis(due_at) AS due_ms;
    try_cast(regexp_extract(_metadata.file_path, '/replay=([0-9]+)/', 1) AS bigint) AS replay;
    coalesce(replay, start_ms) AS at_ms; route = 'direct' AS is_direct;
    -- Of a direct message: all that was left of its delay.
    IF(is_direct, CAST(least(greatest(ceil((due_ms - at_ms) / 1000), 0), {MAX_MESSAGE_TIMER_SECONDS})
      AS bigint), NULL) AS timer_seconds;
    CASE route WHEN 'direct' THEN 'destination queue' WHEN 'delay-queue' THEN 'delay queue'
      WHEN 'due-queue' THEN 'due queue' WHEN 'store' THEN 'store' END AS place
""")
_AS_GATHERED: Final = columns("""
    min(struct(at_ms AS at, 1L AS rank, at_ms, route, due_ms, timer_seconds)) AS noted_sent;
    min(struct(at_ms AS at, 1L AS rank, at_ms, timer_seconds)) FILTER (WHERE is_direct) AS noted_direct;
    max(struct(at_ms AS at, 1L AS rank, at_ms, 'sent' AS event, place)) AS noted_last;
    max(replay) AS replayed_ms; count(DISTINCT replay) AS replays
""")
_RECORDED: Final = columns("""
    max(at_ms) AS newest_ms; bool_or(event = 'received') AS receptions_recorded;
    bool_or(event IN ('handed-over', 'received') OR event = 'released' AND NOT endpoint LIKE '%.fifo')
      AS arrivals_recorded
""")


def receipts(spark: SparkSession, options: Options, start_ms: int) -> DataFrame:
    """A row for each message that the job noted as sent: as `gathered` would make it of events. For when it
    was sent stands the job's first instant, or the replay's. Raises ConfigurationError."""
    folder = job_folder(str(options.receipts), str(options.job))
    reader = spark.read.schema(_RECEIPT).option("recursiveFileLookup", True)
    # A file that was cut off when the job was killed counts as none, as for the sink.
    reader = reader.option("pathGlobFilter", "part-*.parquet").option("ignoreCorruptFiles", True)
    try:
        found = reader.parquet(hadoop_uri(spark, folder, "receipts"))
    except SPARK_ERRORS as error:
        raise ConfigurationError(f"receipts {folder} cannot be read: {error}") from error
    noted = found.selectExpr(f"{start_ms}L AS start_ms", *_NOTED)
    return noted.groupBy(*KEY).agg(*map(F.expr, _AS_GATHERED))


REPLAYABLE: Final = (*OPEN, "not-sent")
"""What has arrived, was cancelled or lies in the error queue is not sent again. What was not sent is in the
table, and neither in the receipts nor in the ledger."""


def reconcile(
    rows: DataFrame,
    ledger: str | DataFrame,
    *,
    ledger_format: str | None = None,
    as_of_ms: int | None = None,
    grace_seconds: int = GRACE_SECONDS,
    **options: Any,
) -> DataFrame:
    """What became of each message of a job that was sent by `send` or ``format("sqsdelay")``.

    Args:
        rows: the job's table, as it was sent.
        ledger, ledger_format: see `write_report`.
        as_of_ms: the instant it describes, epoch milliseconds: later events are left out. The newest
            event's if left out, so that a ledger that ends early loses nothing.
        grace_seconds: a message is lost when it was due longer ago and has not arrived.
        options: ``endpoint``, ``key``, ``job`` and ``receipts``, as they were for the send.

    Returns:
        A row for each message of the table or the receipts; docs/fields.md has the columns.

    Raises:
        ConfigurationError: no such ledger, no events in it, or no receipts of this job.
    """
    check_range(0, grace_seconds=grace_seconds)
    job = JobTable(rows, options)
    events = read_ledger(rows.sparkSession, ledger, ledger_format=ledger_format).events
    if as_of_ms is not None:
        events = events.where(F.col("at_ms") <= as_of_ms)
    endpoints = events.groupBy("endpoint").agg(*map(F.expr, _RECORDED))
    recorded = endpoints.collect()
    if not recorded:
        raise ConfigurationError(
            "the ledger has no events; name the one that the job's queues fill"
        )
    found, due_ms, unseen = job.planned(), "planned_due_ms", "unknown"
    told = {"replays": F.lit(0)}
    if job.start_ms is not None:
        due_ms, unseen = "coalesce(planned_due_ms, noted_sent.due_ms)", "not-sent"
        found = found.join(receipts(rows.sparkSession, job.options, job.start_ms), [*KEY], "full")
        # What the ledger does not tell of a message's sending, the receipts do.
        told = {name: F.coalesce(name, f"noted_{name}") for name in ("sent", "direct", "last")}
        told["last_sent_ms"] = F.greatest("last_sent_ms", "replayed_ms")
    # Of an id that was used again: the life that the job began by its due time, or else the last.
    first = f"coalesce(sent.due_ms = {due_ms}, false) DESC, life DESC"
    choice = f"row_number() OVER (PARTITION BY {', '.join(KEY)} ORDER BY {first}) AS choice"
    lives = found.join(gathered(events), [*KEY], "left").selectExpr("*", choice)
    became = judged(
        lives.where("choice = 1").withColumns(told),
        as_of_ms=max(each.newest_ms for each in recorded) if as_of_ms is None else as_of_ms,
        grace_ms=grace_seconds * 1000,
        recorded=rows.sparkSession.createDataFrame(recorded, endpoints.schema).drop("newest_ms"),
        also=("arrivals_recorded", "rescheduled_ms", "rows", "planned_due_ms", "replays"),
    )
    return became.selectExpr(*KEY, _STATUS.format(unseen=unseen), *_SHOWN)


class JobTable:
    """A job's table, and the options it was sent with; ``start_ms`` is the instant of its first run, None
    without receipts. Raises ConfigurationError."""

    def __init__(self, rows: DataFrame, given: dict[str, Any]) -> None:
        if rows.isStreaming:
            raise ConfigurationError("reconcile() takes a table, and this is a stream")
        # A rate is the whole job's: the send finds out how many tasks share it.
        options = Options.parse({"tasks": 1} | given)
        self.rows, self.options = rows, options
        self.start_ms: int | None = None
        self.columns = checked_columns(rows.schema, options)
        if options.receipts is not None:
            self.start_ms = Receipts(options.receipts, str(options.job)).kept_start_ms()
            if self.start_ms is None:
                raise ConfigurationError(
                    f"job {options.job!r} has no receipts in {options.receipts}; name the job and the "
                    "folder as they were when it was sent"
                )
        elif self.columns.has("delay_seconds"):
            raise ConfigurationError(
                "delay_seconds count from the job's first run, which only its receipts record: "
                "give option('receipts', …), or a table with due_at"
            )

    def identified(self) -> DataFrame:
        """The rows, each with its message's ``_endpoint`` (its name) and ``_id``, as the sink gives them."""
        columns, endpoint = self.columns, F.lit(self.options.endpoint).cast("string")
        if columns.has("endpoint"):
            endpoint = F.coalesce(F.nullif(spelled(columns, "endpoint"), F.lit("")), endpoint)
        name = F.regexp_extract(endpoint, "([^/:]*)$", 1).alias("_endpoint")
        return self.rows.select("*", name, message_id(columns, self.options).alias("_id"))

    def planned(self) -> DataFrame:
        """A row for each message that the table holds: when it is due, and how many rows have its id."""
        # As `sqsdelay.spark.sink.rows.Rows` makes it: up to the next millisecond, never before 1970.
        if self.columns.has("delay_seconds"):
            delay_ms = F.ceil(spelled(self.columns, "delay_seconds").cast("double") * 1000)
            due_ms = F.lit(self.start_ms) + delay_ms.cast("bigint")
        else:
            upward = spelled(self.columns, "due_at") + F.expr("INTERVAL 999 MICROSECONDS")
            due_ms = F.greatest(F.unix_millis(upward), F.lit(0))
        by = F.col("_endpoint").alias("endpoint"), F.col("_id").alias("message_id")
        figures = F.expr("count(1) AS rows"), F.min(due_ms).alias("planned_due_ms")
        return self.identified().groupBy(*by).agg(*figures)


_STATUS: Final = """CASE WHEN sent_ms IS NULL AND events IS NULL THEN '{unseen}'
    -- Nobody records arrivals there: that none is recorded says nothing.
    WHEN status = 'lost' AND NOT coalesce(arrivals_recorded, false) THEN 'unknown' ELSE status
    END AS status"""
_SHOWN: Final = columns("""
    rows IS NOT NULL AS planned; coalesce(rows, 0L) AS rows;
    coalesce(due_ms, planned_due_ms) AS due_ms;
    sent_ms; parked_ms; released_ms; at_destination_ms; received_ms; rejected_ms; cancelled_ms;
    rescheduled_ms; late_ms; coalesce(duplicated, false) AS duplicated; coalesce(replays, 0L) AS replays;
    last_seen; reason
""")


def totals(table: DataFrame) -> list[dict[str, Any]]:
    """How many messages of each endpoint were planned, sent, released, shown by the destination queue (as far
    as is recorded) and delivered."""
    where = {"planned": "planned", "repeated": "rows > 1", "unplanned": "NOT planned"}
    where |= {n: f"{n}_ms IS NOT NULL" for n in ("sent", "parked", "released", "at_destination")}
    where |= {n.replace("-", "_"): f"status = '{n}'" for n in (*messages.STATUSES, "not-sent")}
    where["replayed"] = "replays > 0"
    counted = [F.expr(f"count_if({each})").alias(name) for name, each in where.items()]
    found = table.groupBy("endpoint").agg(*counted).sort("endpoint")
    return [row.asDict() for row in found.collect()]


def replay(
    rows: DataFrame,
    ledger: str | DataFrame,
    *,
    include: Collection[str] = ("lost",),
    ledger_format: str | None = None,
    as_of_ms: int | None = None,
    grace_seconds: int = GRACE_SECONDS,
    record: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Send again what a job has lost, with the same message ids and due times.

    A message that arrives after all arrives twice, with one id: receivers drop the second. A row that
    is no longer as it was sent is rejected. What is sent again is noted beside the job's receipts: it
    is pending, and not replayed once more, until the grace has passed.

    Args:
        rows, ledger, ledger_format, as_of_ms, grace_seconds: see `reconcile`.
        include: the statuses to send again: ``lost``, and if you say so ``pending``, ``unknown`` and
            ``not-sent``. What was rescheduled is sent again only when it is lost.
        record: the send's option ``ledger``: folder for a ledger of what is sent again.
        options: as for the send; ``receipts`` are required.

    Returns:
        The counts, as of `send`, and how many messages were ``chosen``.

    Raises:
        ConfigurationError: see `reconcile`.
        NotAllSent: rows were rejected, and there is no rejects table.
    """
    if unknown := sorted(set(include) - set(REPLAYABLE)):
        raise InvalidSetting(
            f"is not replayed; use some of {', '.join(REPLAYABLE)}", include=unknown[0]
        )
    job = JobTable(rows, options)
    if job.options.past_due != "send":
        raise InvalidSetting(
            "cannot be kept by a replay: what was lost is past due, and is sent at once; leave it out",
            past_due=job.options.past_due,
        )
    if job.start_ms is None:
        raise ConfigurationError(
            "a replay compares rows with the job's receipts: give option receipts; "
            "without receipts, send the lost rows of reconcile() as a job of their own"
        )
    given: dict[str, Any] = {"ledger_format": ledger_format, "as_of_ms": as_of_ms} | options
    found = reconcile(rows, ledger, grace_seconds=grace_seconds, **given)
    wanted = F.expr("planned AND (rescheduled_ms IS NULL OR status = 'lost')")
    found = found.where(wanted & F.col("status").isin(*include))
    # Kept: the ledger grows, and what is chosen should not change under the sending.
    chosen = found.selectExpr("endpoint AS _endpoint", "message_id AS _id").cache()
    try:
        number = chosen.count()
        again = job.identified().join(chosen, ["_endpoint", "_id"], "left_semi")
        noted: dict[str, Any] = {"replay": SystemClock().now_ms(), "ledger": record}
        return {"chosen": number} | save(again.select(*rows.columns), **noted | options)
    finally:
        chosen.unpersist()
