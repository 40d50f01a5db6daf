"""The report of a ledger: numbered folders of tables in Parquet, a page, and a file that points to the newest
tables.

Tables are written beside those of the report before, whose page and pointer are replaced when all else is
there: no folder is renamed, which stores of objects cannot do. One that fails leaves the other as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from pyarrow.fs import FileSelector, FileType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqsdelay.core.delay import check_range, utc
from sqsdelay.core.readable import instant
from sqsdelay.cost import Prices
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.spark.report import tables
from sqsdelay.spark.report.messages import KEY, gathered, judged
from sqsdelay.spark.report.page import figures_of, render
from sqsdelay.spark.report.read import SPARK_ERRORS, read_ledger
from sqsdelay.spark.session import GRACE_SECONDS, cause, configured, hadoop_uri, is_uri, opened

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
    grace_seconds: int = GRACE_SECONDS,
) -> dict[str, Any]:
    """Write the report of a ledger into ``folder``, in place of the report that is there.

    The same lines in any order, some of them twice, give the same tables.

    Args:
        spark: a session whose executors see ``folder`` under the same path.
        ledger, ledger_format: see `read_ledger`.
        folder: a path, or a URI of any file system that this Spark knows; new, empty, or an older
            report's.
        prices: what requests cost.
        store: the URL of the store that parked messages are in, or how it begins: ``dynamodb``, ``s3``,
            ``scheduler``, ``postgresql`` or ``sqlite``. The latter two are priced as nothing.
        as_of_ms: the instant the report describes: later events are left out. The newest event's
            if left out.
        grace_seconds: a message is lost when it was due longer ago and has not arrived.

    Returns:
        The figures, as ``report.json`` has them.

    Raises:
        ConfigurationError: no ledger, no events in it, or a folder that holds something else.
    """
    store = store.partition(":")[0]
    if store not in tables.NAMES:
        raise InvalidSetting(f"has no price; use one of {', '.join(tables.NAMES)}", store=store)
    check_range(0, grace_seconds=grace_seconds)
    name = ledger if isinstance(ledger, str) else "the DataFrame"
    try:
        with NewReport(spark, str(folder)) as new, configured(spark, _SETTINGS):
            reading = read_ledger(spark, ledger, ledger_format=ledger_format)
            events = reading.events
            if as_of_ms is not None:
                events = events.where(F.col("at_ms") <= as_of_ms)
            # Written, since they are read several times, and need not fit in memory.
            rows = new.table("gathered", gathered(events))
            number, newest_ms = rows.agg(F.count(F.lit(1)), F.max("last.at_ms")).collect()[0]
            if not number:
                told = "" if as_of_ms is None else f" up to {utc(as_of_ms).isoformat()}"
                if (first := reading.aside.first()) is not None:
                    bad = reading.aside.count()  # Spark's own is gone where a plan finds nothing.
                    told += f"; {bad} lines are not events, the first: {first.reason}"
                raise ConfigurationError(f"ledger {name} has no events{told}")
            as_of = newest_ms if as_of_ms is None else as_of_ms
            few = rows.coalesce(1) if number <= _ROWS_OF_ONE_FILE else rows
            known = judged(few, as_of_ms=as_of, grace_ms=grace_seconds * 1000)
            messages = new.table("messages", known.sortWithinPartitions(*KEY, "life"))
            new.remove("gathered")
            counted = new.tables(
                counts=lambda: tables.counts(messages, as_of_ms=as_of),
                spread=lambda: tables.spread(messages, as_of_ms=as_of),
            )
            hours = tables.hours_of_a_moment(counted["counts"])
            found = tables.arrivals(counted["counts"], counted["spread"], hours)
            arrivals = new.table("arrivals", found)
            written = new.tables(
                **{n: partial(tables.of_arrivals, arrivals, n) for n in tables.OF_ARRIVALS},
                last_seen=lambda: tables.last_seen(messages),
                cost=lambda: tables.cost(messages, arrivals, prices, as_of_ms=as_of, store=store),
                waiting=lambda: tables.waiting(messages, as_of_ms=as_of),
                bad_lines=lambda: reading.bad_lines().sort("file", "line").coalesce(1),
            )
            written |= counted | {"messages": messages, "arrivals": arrivals}
            figures: dict[str, Any] = {"as_of": instant(as_of), "grace_seconds": grace_seconds}
            figures |= {"lines": reading.counts.get["lines"], "bad_lines": reading.bad}
            figures |= figures_of(written)
            used = tables.NAMES[store]
            page = render(figures, written, prices, name, moment_hours=hours, store=used)
            for part in ("counts", "spread", "arrivals"):
                new.remove(part)
            new.publish(page, figures)
    except SPARK_ERRORS as error:
        raise ConfigurationError(f"the report of {name} failed: {cause(error)}") from error
    return figures


MARK: Final = "report.json"
"""The pointer, by which a report's folder is known: its ``tables`` names the folder that counts."""

PAGE: Final = "report.html"
_TABLES: Final = re.compile(r"tables-(\d+)")


class NewReport:
    """A report that is being written: it takes the place of the one in ``folder``, or goes if anything fails.
    Raises ConfigurationError."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._folder, self._may_be_named = folder, False
        self._uri = hadoop_uri(spark, folder, "--out").rstrip("/")
        by_java = is_uri(folder) and getattr(spark, "_jsc", None) is not None
        self._files: _ByHadoop | _ByArrow
        try:
            self._files = _ByHadoop(spark, self._uri) if by_java else _ByArrow(folder)
            if self._files.is_file:
                raise InvalidSetting(f"{folder} is a file; name a folder for the report")
            names = self._files.names()
            numbers = [int(known[1]) for known in map(_TABLES.fullmatch, names) if known]
            if MARK not in names and len(numbers) < len(names):
                raise InvalidSetting(
                    f"{folder} is not empty and holds no report ({MARK} is missing); "
                    "name another folder, or empty this one"
                )
            self._tables = f"tables-{max(numbers, default=0) + 1}"
            self._files.make(self._tables)
        except OSError as error:
            told = error.strerror or " ".join(str(error).split())
            raise ConfigurationError(f"{folder} cannot be written: {told}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Delete the tables of one that failed, unless the pointer may name them; and the folder, if there
        was nothing in it."""
        if kind is not None and not self._may_be_named:
            self._files.delete(self._tables)
            with suppress(OSError):
                if not self._files.names():
                    self._files.delete("")

    def table(self, name: str, rows: DataFrame) -> DataFrame:
        """Write a table; its rows as they are read from there."""
        uri = f"{self._uri}/{self._tables}/{name}"
        rows.write.parquet(uri)
        return rows.sparkSession.read.schema(rows.schema).parquet(uri)

    def tables(self, **made: Callable[[], DataFrame]) -> dict[str, DataFrame]:
        return tables.side_by_side(lambda name: self.table(name, made[name]()), made)

    def remove(self, name: str) -> None:
        self._files.delete(f"{self._tables}/{name}")

    def publish(self, page: str, figures: Mapping[str, Any]) -> None:
        """Let this report take the place of the one before, and delete what that has left. Raises
        ConfigurationError."""
        if not self._files.names(self._tables):
            raise ConfigurationError(
                f"{self._folder} is another folder to Spark's server, which writes the tables, than to this "
                "process, which writes the page; give --out a URI that both reach"
            )
        pointer = json.dumps({"tables": self._tables, **figures}, indent=2) + "\n"
        self._files.write(PAGE, page.encode())
        self._may_be_named = True
        self._files.write(MARK, pointer.encode())
        for name in self._files.names():
            if name not in (PAGE, MARK, self._tables):
                self._files.delete(name)


class _ByArrow:
    """A folder of this machine; over Spark Connect wherever its server and this process reach."""

    def __init__(self, folder: str) -> None:
        self._fs, self._root = opened(folder, "--out")
        self.is_file = self._fs.get_file_info(self._root).type is FileType.File

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def names(self, within: str = "") -> list[str]:
        """What is in it or in a folder of it, nothing if that does not exist."""
        found = self._fs.get_file_info(FileSelector(self._at(within), allow_not_found=True))
        return [each.base_name for each in found]

    def make(self, name: str) -> None:
        self._fs.create_dir(self._at(name))

    def write(self, name: str, content: bytes) -> None:
        # Of a disk's files, what is cut off is not to count. Not all others can move over one that is there.
        begun = f"_{name}" if self._fs.type_name == "local" else name
        with self._fs.open_output_stream(self._at(begun)) as stream:
            stream.write(content)
        if begun != name:
            self._fs.move(self._at(begun), self._at(name))

    def delete(self, name: str) -> None:
        found = self._fs.get_file_info(self._at(name)).type
        if found is not FileType.NotFound:
            delete = self._fs.delete_dir if found is FileType.Directory else self._fs.delete_file
            delete(self._at(name))


class _ByHadoop:
    """The same by the file systems that Spark itself uses: whatever it can write to is good for a report."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._uri = uri
        java: Any = spark
        self._path = java._jvm.org.apache.hadoop.fs.Path
        root = self._path(uri)
        self._fs = root.getFileSystem(java._jsc.hadoopConfiguration())
        self.is_file = bool(self._fs.exists(root) and self._fs.getFileStatus(root).isFile())

    def _at(self, name: str) -> Any:
        return self._path(f"{self._uri}/{name}".rstrip("/"))

    def names(self, within: str = "") -> list[str]:
        path = self._at(within)
        found = self._fs.listStatus(path) if self._fs.exists(path) else ()
        return [str(each.getPath().getName()) for each in found]

    def make(self, name: str) -> None:
        self._fs.mkdirs(self._at(name))

    def write(self, name: str, content: bytes) -> None:
        with closing(self._fs.create(self._at(name), True)) as stream:
            stream.write(bytearray(content))

    def delete(self, name: str) -> None:
        self._fs.delete(self._at(name), True)
