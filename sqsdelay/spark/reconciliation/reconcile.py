"""What was planned, sent, released and delivered of one job: a row for each message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sqsdelay.errors import ConfigurationError
from sqsdelay.ledger.events import EventKind
from sqsdelay.spark.reconciliation.planned import job_start_ms, planned, receipts
from sqsdelay.spark.report.messages import (
    CANCELLED,
    DELIVERED,
    HANDED_OVER,
    KEY,
    LOST,
    PENDING,
    REJECTED,
    UNKNOWN,
    gathered,
    judged,
)
from sqsdelay.spark.report.read_ledger import read_ledger
from sqsdelay.spark.report.requests import event_is, reaches_destination
from sqsdelay.spark.report.write import DEFAULT_GRACE_SECONDS
from sqsdelay.spark.sink.columns import Columns, checked_columns
from sqsdelay.spark.sink.options import Options

NOT_SENT: Final = "not-sent"
"""In the table, and neither in the receipts nor in the ledger."""

STATUSES: Final = (
    LOST, PENDING, UNKNOWN, NOT_SENT, DELIVERED, HANDED_OVER, REJECTED, CANCELLED
)  # fmt: skip


def reconcile(
    rows: DataFrame,
    ledger: str | DataFrame,
    *,
    ledger_format: str | None = None,
    as_of_ms: int | None = None,
    grace_seconds: int = DEFAULT_GRACE_SECONDS,
    **options: Any,
) -> DataFrame:
    """What became of each message of a job that was sent by `send` or ``format("sqsdelay")``.

    Args:
        rows: the job's table, as it was sent.
        ledger: see `write_report`.
        ledger_format: see `write_report`.
        as_of_ms: the instant it describes, epoch milliseconds: later events are left out. The newest
            event's if left out, so that a ledger that ends early loses nothing.
        grace_seconds: a message is lost when it was due longer ago and has not arrived.
        options: ``endpoint``, ``key``, ``job`` and ``receipts``, as they were for the send.

    Returns:
        A row for each message of the table or the receipts; docs/reconciliation.md has the columns.

    Raises:
        ConfigurationError: no such ledger, no events in it, or no receipts of this job.
    """
    job = JobTable.of(rows, options)
    events = read_ledger(rows.sparkSession, ledger, ledger_format=ledger_format).events
    if as_of_ms is not None:
        events = events.where(F.col("at_ms") <= as_of_ms)
    recorded = _recorded(events)
    if not recorded:
        raise ConfigurationError(
            "the ledger has no events; name the one that the job's queues fill"
        )
    known = _Known(
        recorded=recorded,
        as_of_ms=max(each.newest_ms for each in recorded) if as_of_ms is None else as_of_ms,
        grace_ms=grace_seconds * 1000,
    )
    return _reconciled(job, events, known)


@dataclass(frozen=True, kw_only=True)
class JobTable:
    """A job's table, and the options it was sent with."""

    rows: DataFrame
    columns: Columns
    options: Options
    start_ms: int | None

    @classmethod
    def of(cls, rows: DataFrame, given: dict[str, Any]) -> JobTable:
        """Check that it is one.

        Raises:
            ConfigurationError: see `reconcile`.
        """
        if rows.isStreaming:
            raise ConfigurationError("reconcile() takes a table, and this is a stream")
        options = Options.parse({name: str(value) for name, value in given.items()})
        columns = checked_columns(rows.schema, options)
        return cls(
            rows=rows,
            columns=columns,
            options=options,
            start_ms=job_start_ms(options, columns),
        )


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What a ledger tells of its endpoints, and by when a message should have arrived."""

    recorded: Sequence[Any]
    as_of_ms: int
    grace_ms: int

    def endpoints(self, spark: SparkSession) -> DataFrame:
        found = [(each.endpoint, each.receptions, each.arrivals) for each in self.recorded]
        schema = "endpoint string, receptions_recorded boolean, arrivals_recorded boolean"
        return spark.createDataFrame(found, schema)


def _recorded(events: DataFrame) -> list[Any]:
    arrives = reaches_destination() | event_is(EventKind.RECEIVED)
    return (
        events.groupBy("endpoint")
        .agg(
            F.max("at_ms").alias("newest_ms"),
            F.bool_or(event_is(EventKind.RECEIVED)).alias("receptions"),
            F.bool_or(arrives).alias("arrivals"),
        )
        .collect()
    )


def _reconciled(job: JobTable, events: DataFrame, known: _Known) -> DataFrame:
    spark = job.rows.sparkSession
    messages = planned(job.rows, job.columns, job.options, job.start_ms)
    seen = gathered(events)
    if job.start_ms is None:
        rows = messages.join(seen, [*KEY], "left").withColumn("replays", F.lit(0))
    else:
        noted = receipts(spark, job.options, job.start_ms)
        rows = _with_receipts(messages.join(noted, [*KEY], "full").join(seen, [*KEY], "left"))
    became = judged(
        rows,
        as_of_ms=known.as_of_ms,
        grace_ms=known.grace_ms,
        recorded=known.endpoints(spark),
        also=("arrivals_recorded", "rescheduled_ms", "rows", "planned_due_ms", "replays"),
    )
    unseen = UNKNOWN if job.start_ms is None else NOT_SENT
    return became.withColumn("status", _status(unseen)).select(*_shown())


def _with_receipts(rows: DataFrame) -> DataFrame:
    """What the ledger does not tell of a message's sending, the receipts do."""
    return rows.withColumns(
        {
            "sent": F.coalesce("sent", "noted_sent"),
            "direct": F.coalesce("direct", "noted_direct"),
            "last": F.coalesce("last", "noted_last"),
            "last_sent_ms": F.greatest("last_sent_ms", "replayed_ms"),
        }
    )


def _status(unseen: str) -> Column:
    never_seen = F.col("sent_ms").isNull() & F.col("events").isNull()
    # Nobody records arrivals there: that none is recorded says nothing.
    unrecorded = (F.col("status") == LOST) & ~F.coalesce("arrivals_recorded", F.lit(False))
    return F.when(never_seen, unseen).when(unrecorded, UNKNOWN).otherwise(F.col("status"))


def _shown() -> list[Column | str]:
    return [
        *KEY,
        "status",
        F.col("rows").isNotNull().alias("planned"),
        F.coalesce("rows", F.lit(0)).alias("rows"),
        F.coalesce("due_ms", "planned_due_ms").alias("due_ms"),
        "sent_ms",
        "parked_ms",
        "released_ms",
        "at_destination_ms",
        "received_ms",
        "rejected_ms",
        "cancelled_ms",
        "rescheduled_ms",
        "late_ms",
        F.coalesce("duplicated", F.lit(False)).alias("duplicated"),
        F.coalesce("replays", F.lit(0)).alias("replays"),
        "last_seen",
        "reason",
    ]


def totals(table: DataFrame) -> list[dict[str, Any]]:
    """How many messages of each endpoint were planned, sent, released and delivered.

    ``at_destination``: shown by the destination queue, as far as is recorded.
    """
    counted = [
        F.count_if("planned").alias("planned"),
        F.count_if(F.col("rows") > 1).alias("repeated"),
        F.count_if(~F.col("planned")).alias("unplanned"),
        *[
            F.count(f"{name}_ms").alias(name)
            for name in ("sent", "parked", "released", "at_destination")
        ],
        *[
            F.count_if(F.col("status") == status).alias(status.replace("-", "_"))
            for status in STATUSES
        ],
        F.count_if(F.col("replays") > 0).alias("replayed"),
    ]
    return [
        row.asDict() for row in table.groupBy("endpoint").agg(*counted).sort("endpoint").collect()
    ]
