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
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.spark.failure import cause
from sqsdelay.spark.report import tables
from sqsdelay.spark.report.figures import Figures, contents
from sqsdelay.spark.report.messages import KEY, gathered, judged
from sqsdelay.spark.report.output_folder import MARK, NewFolder, replaced
from sqsdelay.spark.report.page import PAGE, render
from sqsdelay.spark.report.read_ledger import read_ledger
from sqsdelay.spark.report.state import ReadSoFar, State
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
    state: str | None = None,
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
        as_of_ms: the instant the report describes: later events are left out. The newest event's
            if left out.
        grace_seconds: a message is lost when it was due longer ago and has not arrived.
        state: a path or URI that keeps what is read: the next report in ``folder`` reads only files that
            are new or have changed. ``ledger`` must be a path, and ``as_of_ms`` left out.

    Raises:
        ConfigurationError: no ledger, no events in it, or a folder that holds something else.
    """
    if grace_seconds < 0:
        raise InvalidSetting(f"grace_seconds={grace_seconds}; use 0 or more")
    if state is not None and (as_of_ms is not None or not isinstance(ledger, str)):
        raise InvalidSetting(
            "a report with a state reads files, and describes the newest event: give a path, and no "
            "as_of; or leave the state out"
        )
    name = ledger if isinstance(ledger, str) else "the DataFrame"
    with _told_in_one_line(name), replaced(spark, str(folder)) as new, _instants(spark):
        kept = None if state is None else State.of(spark, state, str(folder))
        if kept is None:
            found = _read_once(
                spark,
                ledger,
                new.uri(_GATHERED),
                ledger_format=ledger_format,
                as_of_ms=as_of_ms,
            )
        else:
            found = kept.add(str(ledger), ledger_format=ledger_format)
        span = _span(found.rows, as_of_ms)
        if span is None:
            raise _no_events(name, found, as_of_ms)
        known = judged(found.rows, as_of_ms=span.as_of_ms, grace_ms=grace_seconds * 1000)
        messages = _write_messages(known, span.messages, new.uri("messages"))
        new.remove(_GATHERED)
        written = _write_tables(messages, new, prices, span)
        bad_lines = found.bad_lines.sort("file", "line").coalesce(1)
        written["bad_lines"] = _written(bad_lines, new.uri("bad_lines"))
        figures = Figures.of(
            written,
            as_of=utc(span.as_of_ms).isoformat(timespec="milliseconds"),
            grace_seconds=grace_seconds,
            lines=found.lines,
            bad_lines=found.bad,
        )
        page = render(contents(figures, messages, written, prices, name, as_of_ms=span.as_of_ms))
        new.write_text(PAGE, page)
        told = asdict(figures) | ({} if kept is None else kept.told())
        new.write_text(MARK, json.dumps(told, indent=2) + "\n")
    return figures


def _read_once(
    spark: SparkSession,
    ledger: str | DataFrame,
    folder: str,
    *,
    ledger_format: str | None,
    as_of_ms: int | None,
) -> ReadSoFar:
    """Messages' rows are written, since they are read several times, and need not fit in memory."""
    reading = read_ledger(spark, ledger, ledger_format=ledger_format)
    events = reading.events
    if as_of_ms is not None:
        events = events.where(F.col("at_ms") <= as_of_ms)
    rows = _written(gathered(events), folder)
    lines, good = (reading.counts.get[name] for name in ("lines", "events"))
    return ReadSoFar(rows=rows, bad_lines=reading.bad_lines(), lines=lines, bad=lines - good)


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


def _written(table: DataFrame, folder: str) -> DataFrame:
    table.write.parquet(folder)
    return table.sparkSession.read.schema(table.schema).parquet(folder)


def _no_events(ledger: str, found: ReadSoFar, as_of_ms: int | None) -> ConfigurationError:
    until = "" if as_of_ms is None else f" up to {utc(as_of_ms).isoformat()}"
    first = found.bad_lines.first()
    unreadable = (
        "" if first is None else f"; {found.bad} lines are not events, the first: {first.reason}"
    )
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
