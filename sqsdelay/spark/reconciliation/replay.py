"""What was lost of a job, sent again: the same ids and due times, and nothing else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sqsdelay.core.clock import SystemClock
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.spark.reconciliation.planned import identified
from sqsdelay.spark.reconciliation.reconcile import NOT_SENT, JobTable, reconcile
from sqsdelay.spark.report.messages import LOST, PENDING, UNKNOWN
from sqsdelay.spark.report.write import DEFAULT_GRACE_SECONDS
from sqsdelay.spark.sink.save import save

REPLAYABLE: Final = (LOST, PENDING, UNKNOWN, NOT_SENT)
"""What has arrived, was cancelled or lies in the error queue is not sent again."""


def replay(
    rows: DataFrame,
    ledger: str | DataFrame,
    *,
    include: Collection[str] = (LOST,),
    ledger_format: str | None = None,
    as_of_ms: int | None = None,
    grace_seconds: int = DEFAULT_GRACE_SECONDS,
    **options: Any,
) -> dict[str, Any]:
    """Send again what a job has lost, with the same message ids and due times.

    A message that arrives after all arrives twice, with one id: receivers drop the second. A row that
    is no longer as it was sent is rejected. What is sent again is noted beside the job's receipts: it
    is pending, and not replayed once more, until the grace has passed.

    Args:
        rows: the job's table, as it was sent.
        ledger: see `reconcile`.
        include: the statuses to send again: ``lost``, and if you say so ``pending``, ``unknown`` and
            ``not-sent``. What was rescheduled is sent again only when it is lost.
        ledger_format: see `reconcile`.
        as_of_ms: see `reconcile`.
        grace_seconds: see `reconcile`.
        options: as for the send; ``receipts`` are required.

    Returns:
        The counts, as of `send`, and how many messages were ``chosen``.

    Raises:
        ConfigurationError: see `reconcile`.
        NotAllSent: rows were rejected, and there is no rejects table.
    """
    if unknown := sorted(set(include) - set(REPLAYABLE)):
        raise InvalidSetting(
            f"include={unknown[0]!r} is not replayed; use some of {', '.join(REPLAYABLE)}"
        )
    job = JobTable.of(rows, options)
    if job.start_ms is None:
        raise ConfigurationError(
            "a replay compares rows with the job's receipts: give option('receipts', …); "
            "without receipts, send the lost rows of reconcile() as a job of their own"
        )
    table = reconcile(
        rows,
        ledger,
        ledger_format=ledger_format,
        as_of_ms=as_of_ms,
        grace_seconds=grace_seconds,
        **options,
    )
    moved = F.col("rescheduled_ms").isNotNull() & (F.col("status") != LOST)
    wanted = F.col("status").isin(*include) & F.col("planned") & ~moved
    # Kept: the ledger grows, and what is chosen should not change under the sending.
    chosen = table.where(wanted).select(
        F.col("endpoint").alias("_endpoint"), F.col("message_id").alias("_id")
    )
    chosen = chosen.cache()
    try:
        number = chosen.count()
        named = identified(rows, job.columns, job.options)
        again = named.join(chosen, ["_endpoint", "_id"], "left_semi").select(*rows.columns)
        begun = {"replay": SystemClock().now_ms()}
        return {"chosen": number, **save(again, **(begun | options | {"past_due": "send"}))}
    finally:
        chosen.unpersist()
