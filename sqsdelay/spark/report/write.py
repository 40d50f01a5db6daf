"""The report of a ledger: tables in Parquet, and a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqsdelay.core.delay import utc
from sqsdelay.cost import Prices
from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.failure import cause
from sqsdelay.spark.report import tables
from sqsdelay.spark.report.figures import Figures, contents
from sqsdelay.spark.report.messages import KEY, gathered, judged
from sqsdelay.spark.report.output_folder import MARK, NewFolder, replaced
from sqsdelay.spark.report.page import PAGE, render
from sqsdelay.spark.report.read_ledger import Reading, read_ledger
from sqsdelay.spark.report.waiting import waiting

DEFAULT_GRACE_SECONDS: Final = 3600
"""How long after its due time a message that has not arrived counts as late, not as lost."""

_ROWS_A_FILE: Final = 1_000_000
_GATHERED: Final = "gathered"
_INSTANTS: Final = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """How many messages there are, when the first was sent, and the instant the report speaks of."""

    messages: int
    first_ms: int | None
    as_of_ms: int


def write_report(
    spark: SparkSession,
    ledger: str | DataFrame,
    folder: str | Path,
    *,
    ledger_format: str | None = None,
    prices: Prices,
    as_of_ms: int | None = None,
    grace_seconds: int = DEFAULT_GRACE_SECONDS,
) -> Figures:
    """Write the report of a ledger into ``folder``, in place of the report that is there.

    The same lines in any order, some of them twice, give the same tables.

    Args:
        spark: a session whose executors see ``folder`` under the same path.
        ledger: see `read_ledger`.
        folder: a path, or a URI of any file system that this Spark knows; new, empty, or an older
            report's.
        ledger_format: see `read_ledger`.
        prices: what requests cost.
        as_of_ms: the instant the report speaks of: later events are left out. The newest event's
            if left out.
        grace_seconds: a message is lost when it was due longer ago and has not arrived.

    Raises:
        ConfigurationError: no ledger, no events in it, or a folder that holds something else.
    """
    if grace_seconds < 0:
        raise ConfigurationError(f"grace_seconds={grace_seconds}; use 0 or more")
    name = ledger if isinstance(ledger, str) else "the DataFrame"
    with _told_in_one_line(name), replaced(spark, str(folder)) as new, _instants(spark):
        reading = read_ledger(spark, ledger, ledger_format=ledger_format)
        rows = _write_gathered(reading, new.uri(_GATHERED), as_of_ms)
        span = _span(rows, as_of_ms)
        if span is None:
            raise _no_events(name, reading, as_of_ms)
        lines = reading.counts.get["lines"]
        bad_lines = lines - reading.counts.get["events"]
        known = judged(rows, as_of_ms=span.as_of_ms, grace_ms=grace_seconds * 1000)
        messages = _write_messages(known, span.messages, new.uri("messages"))
        new.remove(_GATHERED)
        written = _write_tables(messages, new, prices, span)
        written["bad_lines"] = _write_bad_lines(reading, bad_lines, new.uri("bad_lines"))
        figures = Figures.of(
            written,
            as_of=utc(span.as_of_ms).isoformat(timespec="milliseconds"),
            grace_seconds=grace_seconds,
            lines=lines,
            bad_lines=bad_lines,
        )
        page = render(contents(figures, messages, written, prices, name, as_of_ms=span.as_of_ms))
        new.write_text(PAGE, page)
        new.write_text(MARK, json.dumps(asdict(figures), indent=2) + "\n")
    return figures


def _write_gathered(reading: Reading, folder: str, as_of_ms: int | None) -> DataFrame:
    """On disk, since it is read several times, and need not fit in memory."""
    events = reading.events
    if as_of_ms is not None:
        events = events.where(F.col("at_ms") <= as_of_ms)
    return _written(gathered(events), folder)


def _span(rows: DataFrame, as_of_ms: int | None) -> _Span | None:
    (found,) = rows.agg(
        F.count(F.lit(1)).alias("messages"),
        F.min("sent.at_ms").alias("first_ms"),
        F.max("last.at_ms").alias("newest_ms"),
    ).collect()
    if not found.messages:
        return None
    return _Span(
        messages=found.messages,
        first_ms=found.first_ms,
        as_of_ms=found.newest_ms if as_of_ms is None else as_of_ms,
    )


def _write_messages(messages: DataFrame, count: int, folder: str) -> DataFrame:
    files = -(-count // _ROWS_A_FILE)
    ordered = messages.repartitionByRange(files, *KEY) if files > 1 else messages.coalesce(1)
    return _written(ordered.sortWithinPartitions(*KEY), folder)


def _write_tables(
    messages: DataFrame, folder: NewFolder, prices: Prices, span: _Span
) -> dict[str, DataFrame]:
    made = {
        "summary": tables.summary(messages, as_of_ms=span.as_of_ms),
        "last_seen": tables.last_seen(messages),
        "lateness": tables.lateness(messages, as_of_ms=span.as_of_ms),
        "cohorts": tables.cohorts(messages, as_of_ms=span.as_of_ms),
        "cost": tables.cost(messages, prices, as_of_ms=span.as_of_ms),
        "waiting": waiting(messages, first_ms=span.first_ms, as_of_ms=span.as_of_ms),
    }
    return {name: _written(table.coalesce(1), folder.uri(name)) for name, table in made.items()}


def _write_bad_lines(reading: Reading, count: int, folder: str) -> DataFrame:
    aside = reading.aside
    if not count:
        # The ledger need not be read once more to find none.
        aside = aside.sparkSession.createDataFrame([], aside.schema)
    return _written(aside.sort("file", "line").coalesce(1), folder)


def _written(table: DataFrame, folder: str) -> DataFrame:
    table.write.parquet(folder)
    return table.sparkSession.read.schema(table.schema).parquet(folder)


def _no_events(ledger: str, reading: Reading, as_of_ms: int | None) -> ConfigurationError:
    until = "" if as_of_ms is None else f" up to {utc(as_of_ms).isoformat()}"
    first, bad_lines = reading.aside.first(), reading.aside.count()
    unreadable = "" if first is None else f"; {bad_lines} lines are none, the first: {first.reason}"
    return ConfigurationError(f"ledger {ledger} has no events{until}{unreadable}")


@contextmanager
def _told_in_one_line(ledger: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigurationError(f"the report of {ledger} failed: {cause(error)}") from error


@contextmanager
def _instants(spark: SparkSession) -> Iterator[None]:
    """Times in Parquet's own type, which every reader knows, not in Spark's old INT96."""
    before: Any = spark.conf.get(_INSTANTS)
    spark.conf.set(_INSTANTS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_INSTANTS, before)
