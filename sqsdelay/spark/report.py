"""The report of a ledger: tables in Parquet, and a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqsdelay.cost import Prices
from sqsdelay.delay import utc
from sqsdelay.errors import ConfigurationError
from sqsdelay.spark import tables
from sqsdelay.spark.figures import Figures, contents
from sqsdelay.spark.folder import MARK, replaced
from sqsdelay.spark.messages import KEY, gathered, judged
from sqsdelay.spark.page import PAGE, render
from sqsdelay.spark.reading import Reading, read_ledger
from sqsdelay.spark.waiting import SCHEMA, waiting

DEFAULT_GRACE_SECONDS: Final = 3600
"""How long after its due time a message that has not arrived counts as late, not as lost."""

_ROWS_A_FILE: Final = 1_000_000
_GATHERED: Final = "gathered"
_INSTANTS: Final = "spark.sql.parquet.outputTimestampType"


def write_report(
    spark: SparkSession,
    ledger: str,
    folder: Path,
    *,
    prices: Prices,
    as_of_ms: int | None = None,
    grace_seconds: int = DEFAULT_GRACE_SECONDS,
) -> Figures:
    """Write the report of a ledger into ``folder``, in place of the report that is there.

    The same lines in any order, some of them twice, give the same tables.

    Args:
        spark: a session whose executors see ``folder`` under the same path.
        ledger: see `read_ledger`.
        folder: new, empty, or an older report's.
        prices: what requests cost.
        as_of_ms: the instant the report speaks of: later events are left out. The newest event's
            if left out.
        grace_seconds: a message is lost when it was due longer ago and has not arrived.

    Raises:
        ConfigurationError: no ledger, no events in it, or a folder that holds something else.
    """
    if grace_seconds < 0:
        raise ConfigurationError(f"grace_seconds={grace_seconds}; use 0 or more")
    with replaced(folder) as new, _told_in_one_line(ledger), _instants(spark):
        reading = read_ledger(spark, ledger)
        rows = _gathered(reading, new / _GATHERED, as_of_ms)
        counts = reading.counts.get
        newest_ms = rows.agg(F.max("last.at_ms")).collect()[0][0]
        if newest_ms is None:
            raise _no_events(ledger, reading, counts["lines"], as_of_ms)
        as_of_ms = newest_ms if as_of_ms is None else as_of_ms
        messages = _write_messages(
            judged(rows, as_of_ms=as_of_ms, grace_ms=grace_seconds * 1000), new / "messages"
        )
        shutil.rmtree(new / _GATHERED)
        written = _write_tables(spark, messages, reading, new, prices, as_of_ms)
        figures = Figures.of(
            written["summary"],
            as_of=utc(as_of_ms).isoformat(timespec="milliseconds"),
            grace_seconds=grace_seconds,
            lines=counts["lines"],
            bad_lines=counts["lines"] - counts["events"],
        )
        page = render(contents(figures, messages, written, prices, ledger))
        (new / PAGE).write_text(page, encoding="utf-8")
        (new / MARK).write_text(json.dumps(asdict(figures), indent=2) + "\n", encoding="utf-8")
    return figures


def _gathered(reading: Reading, folder: Path, as_of_ms: int | None) -> DataFrame:
    """On disk, since it is read several times, and need not fit in memory."""
    events = reading.events
    if as_of_ms is not None:
        events = events.where(F.col("at_ms") <= as_of_ms)
    gathered(events).write.parquet(str(folder))
    return events.sparkSession.read.parquet(str(folder))


def _write_messages(messages: DataFrame, folder: Path) -> DataFrame:
    files = -(-messages.count() // _ROWS_A_FILE)
    ordered = messages.repartitionByRange(files, *KEY) if files > 1 else messages.coalesce(1)
    ordered.sortWithinPartitions(*KEY).write.parquet(str(folder))
    return messages.sparkSession.read.parquet(str(folder))


def _write_tables(
    spark: SparkSession,
    messages: DataFrame,
    reading: Reading,
    folder: Path,
    prices: Prices,
    as_of_ms: int,
) -> dict[str, DataFrame]:
    made = {
        "summary": tables.summary(messages),
        "lateness": tables.lateness(messages),
        "cost": tables.cost(messages, prices, as_of_ms=as_of_ms),
        "waiting": spark.createDataFrame(waiting(messages, as_of_ms=as_of_ms), SCHEMA),
        "bad_lines": reading.aside.sort("file", "line"),
    }
    for name, table in made.items():
        table.coalesce(1).write.parquet(str(folder / name))
    return {name: spark.read.parquet(str(folder / name)) for name in made}


def _no_events(
    ledger: str, reading: Reading, lines: int, as_of_ms: int | None
) -> ConfigurationError:
    before = "" if as_of_ms is None else f" up to {utc(as_of_ms).isoformat()}"
    first = reading.aside.first() if lines else None
    told = "" if first is None else f"; one of them: {first.reason}"
    return ConfigurationError(f"ledger {ledger} has no events{before} in {lines} lines{told}")


@contextmanager
def _told_in_one_line(ledger: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        told = str(error).strip().splitlines()
        cause = next((line for line in told if "Caused by:" in line), told[0] if told else "")
        raise ConfigurationError(f"the report of {ledger} failed: {cause.strip()}") from error


@contextmanager
def _instants(spark: SparkSession) -> Iterator[None]:
    """Times in Parquet's own type, which every reader knows, not in Spark's old INT96."""
    before: Any = spark.conf.get(_INSTANTS)
    spark.conf.set(_INSTANTS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_INSTANTS, before)
