"""The report of a ledger: tables in Parquet, and a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqsdelay.core.delay import utc
from sqsdelay.cost import Prices
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.spark.report import tables
from sqsdelay.spark.report.messages import KEY, gathered, judged
from sqsdelay.spark.report.output_folder import NewReport, replaced
from sqsdelay.spark.report.page import Figures, hours_of_a_moment, render
from sqsdelay.spark.report.read import Reading, read_ledger
from sqsdelay.spark.report.tables import NAMES, Counted, counts, spread, waiting
from sqsdelay.spark.session import cause

DEFAULT_GRACE_SECONDS: Final = 3600
"""How long after its due time a message that has not arrived counts as late, not as lost."""

_ROWS_OF_ONE_FILE: Final = 100_000
"""More messages are written by several tasks, each of which has files of its own order."""
_SETTINGS: Final = {
    # Times in Parquet's own type, which every reader knows, not in Spark's old INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Java never compiles a method of more bytes, and interprets what Spark makes of so many columns.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}


def write_report(
    spark: SparkSession,
    ledger: str | DataFrame,
    folder: str | Path,
    *,
    ledger_format: str | None = None,
    prices: Prices,
    store: str = "dynamodb",
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
        store: the URL of the store that parked messages are in, or how it begins: ``dynamodb``, ``s3``,
            ``scheduler``, ``postgresql`` or ``sqlite``. The latter two are priced as nothing.
        as_of_ms: the instant the report describes: later events are left out. The newest event's
            if left out.
        grace_seconds: a message is lost when it was due longer ago and has not arrived.

    Raises:
        ConfigurationError: no ledger, no events in it, or a folder that holds something else.
    """
    store = store.partition(":")[0]
    if store not in NAMES:
        raise InvalidSetting(f"has no price; use one of {', '.join(NAMES)}", store=store)
    if grace_seconds < 0:
        raise InvalidSetting("use 0 or more", grace_seconds=grace_seconds)
    name = ledger if isinstance(ledger, str) else "the DataFrame"
    with _told_in_one_line(name), replaced(spark, str(folder)) as new, _settings(spark):
        reading = read_ledger(spark, ledger, ledger_format=ledger_format)
        events = reading.events
        if as_of_ms is not None:
            events = events.where(F.col("at_ms") <= as_of_ms)
        # Written, since they are read several times, and need not fit in memory.
        rows = _written(gathered(events), new.uri("gathered"))
        (found,) = rows.agg(
            F.count(F.lit(1)).alias("messages"), F.max("last.at_ms").alias("newest_ms")
        ).collect()
        if not found.messages:
            raise _no_events(name, reading, as_of_ms)
        as_of = found.newest_ms if as_of_ms is None else as_of_ms
        known = judged(
            rows.coalesce(1) if found.messages <= _ROWS_OF_ONE_FILE else rows,
            as_of_ms=as_of,
            grace_ms=grace_seconds * 1000,
        )
        messages = _written(known.sortWithinPartitions(*KEY, "life"), new.uri("messages"))
        new.remove("gathered")
        counted = _counted(messages, new, as_of)
        moment_hours = hours_of_a_moment(counted.hours())
        arrivals = _written(counted.arrivals(moment_hours), new.uri("arrivals"))
        written = _write_tables(messages, arrivals, new, prices, as_of, store)
        written |= {"messages": messages, "spread": counted.spread, "arrivals": arrivals}
        bad_lines = reading.bad_lines().sort("file", "line").coalesce(1)
        written["bad_lines"] = _written(bad_lines, new.uri("bad_lines"))
        figures = Figures.of(
            written,
            as_of=utc(as_of).isoformat(timespec="milliseconds"),
            grace_seconds=grace_seconds,
            lines=reading.counts.get["lines"],
            bad_lines=reading.bad,
        )
        page = render(figures, written, prices, name, moment_hours=moment_hours, store=NAMES[store])
        for part in ("counts", "spread", "arrivals"):
            new.remove(part)
        new.publish(page, asdict(figures))
    return figures


def _counted(messages: DataFrame, folder: NewReport, as_of_ms: int) -> Counted:
    with ThreadPoolExecutor() as pool:
        of_counts = counts(messages, as_of_ms=as_of_ms)
        of_spread = spread(messages, as_of_ms=as_of_ms)
        counted = pool.submit(_written, of_counts, folder.uri("counts"))
        valued = pool.submit(_written, of_spread, folder.uri("spread"))
        return Counted(counts=counted.result(), spread=valued.result())


def _write_tables(
    messages: DataFrame,
    arrivals: DataFrame,
    folder: NewReport,
    prices: Prices,
    as_of_ms: int,
    store: str,
) -> dict[str, DataFrame]:
    tables_of: dict[str, Callable[[], DataFrame]] = {
        "summary": lambda: tables.summary(arrivals),
        "last_seen": lambda: tables.last_seen(messages),
        "lateness": lambda: tables.lateness(arrivals),
        "cohorts": lambda: tables.cohorts(arrivals),
        "cost": lambda: tables.cost(messages, arrivals, prices, as_of_ms=as_of_ms, store=store),
        "waiting": lambda: waiting(messages, as_of_ms=as_of_ms),
    }

    def write(name: str) -> DataFrame:
        return _written(tables_of[name]().coalesce(1), folder.uri(name))

    # Side by side: each is a row of small jobs, and most of their time is Spark's planning.
    with ThreadPoolExecutor() as pool:
        return dict(zip(tables_of, pool.map(write, tables_of), strict=True))


def _written(table: DataFrame, folder: str) -> DataFrame:
    table.write.parquet(folder)
    return table.sparkSession.read.schema(table.schema).parquet(folder)


def _no_events(ledger: str, reading: Reading, as_of_ms: int | None) -> ConfigurationError:
    until = "" if as_of_ms is None else f" up to {utc(as_of_ms).isoformat()}"
    first = reading.bad_lines().first()
    unreadable = (
        "" if first is None else f"; {reading.bad} lines are not events, the first: {first.reason}"
    )
    return ConfigurationError(f"ledger {ledger} has no events{until}{unreadable}")


@contextmanager
def _told_in_one_line(ledger: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigurationError(f"the report of {ledger} failed: {cause(error)}") from error


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    before: Any = {name: spark.conf.get(name) for name in _SETTINGS}
    try:
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
