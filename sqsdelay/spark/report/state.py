"""What earlier reports have read, so that the next one reads only files that are new or have changed, and
judges only messages of which something is new, or that may still change.

In a folder of its own are the events that were read, run by run, and, in two slots in turn, the files.
The messages are in the report, those that are settled in files of their own. The report names the run it
was made of: what a run that was killed left is written over by the next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from sqsdelay.errors import InvalidSetting
from sqsdelay.ledger.events import EventKind
from sqsdelay.spark.locations import hadoop_uri
from sqsdelay.spark.report.messages import DELIVERED, HANDED_OVER, KEY, OPEN, gathered
from sqsdelay.spark.report.output_folder import NewFolder
from sqsdelay.spark.report.read_ledger import Reading, read_ledger
from sqsdelay.spark.report.requests import event_is

VERSION: Final = 2
"""Increases when `gathered` and `judged` make other messages of the same events."""

MESSAGES: Final = "messages"
SUMMARY: Final = "summary"
MOST_FILES: Final = 100
"""Of settled messages. Of more, all are written anew, into as few as Spark needs."""

_FILE: Final = ("file", "size", "modified")
_RUN: Final = "run"
_SETTLED: Final = "settled"
_PREFIX: Final = f"{_SETTLED}-"
"""Of the names of files of settled messages."""
_JUDGED: Final = "judged"
_MOST_BROADCAST: Final = 1_000_000
"""Keys that every executor is handed; of more, both sides are shuffled."""


@dataclass(frozen=True, kw_only=True)
class ReadSoFar:
    """All that this run and those before it have read: as if the whole ledger had been read at once.

    Args:
        rows: what `gathered` makes of the messages that are to be judged.
        recorded: the endpoints of which receptions are recorded; if left out, ``rows`` tell them all.
        as_of_ms: the newest event's time, or the instant that was asked for; none without events.
        stay: messages that were judged, and are written once more.
        kept: files of the last report's messages that stay as they are.
    """

    rows: DataFrame
    bad_lines: DataFrame
    lines: int
    bad: int
    as_of_ms: int | None
    recorded: DataFrame | None = None
    stay: DataFrame | None = None
    kept: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a report.

    Args:
        spark: the session.
        folder: its URI.
        report: the report's.
        before: the number of the last run whose report is there; 0 if there is none.
        as_of_ms: the instant that the report speaks of.
        files: the names of its messages' files.
    """

    spark: SparkSession
    folder: str
    report: str
    before: int = 0
    as_of_ms: int | None = None
    files: Sequence[str] = ()

    @classmethod
    def of(cls, spark: SparkSession, folder: str, report: str, mark: str) -> State:
        """The state in a folder that the report there was made of, by its mark, or else an empty one.

        Raises:
            ConfigurationError: Spark knows no such file system.
        """
        uri = hadoop_uri(spark, folder, "--state").rstrip("/")
        out = hadoop_uri(spark, report, "--out").rstrip("/")
        empty = cls(spark=spark, folder=uri, report=out)
        try:
            told = json.loads(mark or "{}").get("state", {})
        except json.JSONDecodeError:  # None of ours.
            return empty
        if told.get("folder") != uri or told.get("version") != VERSION:
            return empty
        found = replace(
            empty, before=told["run"], as_of_ms=told["as_of_ms"], files=sorted(told["files"])
        )
        # Or the report was put in its place in part only.
        return found if found.is_whole() else empty

    def is_whole(self) -> bool:
        """Whether the messages of the last report are all there."""
        try:
            there = self._messages.inputFiles()
        except AnalysisException:
            return False
        return sorted(file.rpartition("/")[2] for file in there) == self.files

    def told(self, as_of_ms: int, files: Sequence[str]) -> Mapping[str, Any]:
        """What the report tells of the state it was made of."""
        return {
            "folder": self.folder,
            "version": VERSION,
            "run": self.before + 1,
            "as_of_ms": as_of_ms,
            "files": files,
        }

    def add(self, ledger: str, *, ledger_format: str | None) -> ReadSoFar:
        """Read what is new in a ledger.

        A file that has grown is read again, whole: what was known of it counts once.

        Raises:
            ConfigurationError: see `read_ledger`.
        """
        listed = self._listed(ledger)
        if self.before:
            listed = listed.join(self._files(self.before), [*_FILE], "left_anti")
        # Kept: a file that comes while the others are read must not count as read.
        listed = self._write(listed.coalesce(1), f"listed/{(self.before + 1) % 2}")
        names = [row.file for row in listed.select("file").collect()]
        reading = read_ledger(
            self.spark,
            ledger,
            ledger_format=ledger_format,
            by_file=True,
            only=names if self.before else None,
        )
        told_of = Observation()
        keys = F.approx_count_distinct(F.xxhash64(*KEY)).alias("keys")
        events = reading.events.observe(told_of, keys)
        fresh = self._write(events, f"events/{_RUN}={self.before + 1}")
        counted = reading.counts.get
        instants = [ms for ms in (self.as_of_ms, counted["newest_ms"]) if ms is not None]
        # Side by side: these are small jobs, and most of their time is Spark's planning.
        with ThreadPoolExecutor() as pool:
            lines = pool.submit(self._lines, reading, listed, fresh)
            changes = self._changes(fresh.drop("file"), told_of.get["keys"])
            bad_lines, good, bad = lines.result()
        return ReadSoFar(
            bad_lines=bad_lines,
            lines=good + bad,
            bad=bad,
            as_of_ms=max(instants, default=None),
            **changes,
        )

    def _lines(
        self, reading: Reading, listed: DataFrame, fresh: DataFrame
    ) -> tuple[DataFrame, int, int]:
        """The bad lines of all files, and how many of their lines are good and bad."""
        self._write(reading.bad_lines(), f"bad_lines/{_RUN}={self.before + 1}")
        files = self._write_files(listed, fresh)
        bad_lines = self._every("bad_lines").join(files, ["file", _RUN], "left_semi").drop(_RUN)
        good = files.agg(F.sum("events")).collect()[0][0] or 0
        return bad_lines, good, bad_lines.count()

    def write(self, judged: DataFrame, found: ReadSoFar, new: NewFolder) -> list[str]:
        """Write the messages of the next report; their files."""
        assert found.as_of_ms is not None, "messages have events"
        messages = judged if found.stay is None else judged.unionByName(found.stay)
        marked = messages.withColumn(_SETTLED, _is_settled(found.as_of_ms))
        ordered = marked.sortWithinPartitions(_SETTLED, *KEY)
        ordered.write.partitionBy(_SETTLED).parquet(new.uri(_JUDGED))
        # A task's files have one name in both folders.
        settled = new.take(f"{_JUDGED}/{_SETTLED}=true", MESSAGES, _PREFIX)
        others = new.take(f"{_JUDGED}/{_SETTLED}=false", MESSAGES, "open-")
        new.remove(_JUDGED)
        new.keep(MESSAGES, found.kept)
        return [*found.kept, *settled, *others]

    def _listed(self, ledger: str) -> DataFrame:
        # Lists files and reads none: their content is not asked for.
        reader = self.spark.read.format("binaryFile").option("recursiveFileLookup", True)
        try:
            found = reader.load(hadoop_uri(self.spark, ledger, "ledger"))
            _ = found.columns  # Over Spark Connect nothing is looked at before it is needed.
        except AnalysisException as error:
            raise InvalidSetting(
                f"ledger {ledger}: there is no such file, folder or match of a glob; with --state, "
                "name one, not a table"
            ) from error
        return found.select(
            F.col("_metadata.file_path").alias("file"),
            F.col("_metadata.file_size").alias("size"),
            F.col("_metadata.file_modification_time").alias("modified"),
        )

    def _write_files(self, listed: DataFrame, fresh: DataFrame) -> DataFrame:
        counted = fresh.groupBy("file").agg(F.count(F.lit(1)).alias("events"))
        run = F.lit(self.before + 1).alias(_RUN)
        files = listed.join(counted, "file", "left").select(*_FILE, "events", run)
        if self.before:
            unchanged = self._files(self.before).join(listed, "file", "left_anti")
            files = files.unionByName(unchanged)
        return self._write(files.coalesce(1), f"files/{(self.before + 1) % 2}")

    def _changes(self, fresh: DataFrame, number: int) -> dict[str, Any]:
        """The messages that are to be judged, made anew of all their events: those of which something is
        new, and those that may have changed since. The others stay."""
        received = fresh.where(event_is(EventKind.RECEIVED)).select("endpoint").distinct()
        if not self.before:
            return {"rows": gathered(fresh), "recorded": _recorded(received)}
        known = self._messages
        settled = [name for name in self.files if name.startswith(_PREFIX)]
        changed = self._changed(known, fresh, received, number)
        again = self._write(changed.select(*KEY, "file"), "again")
        touched = {row.file: row["count"] for row in again.groupBy("file").count().collect()}
        again = _handed_out(again, sum(touched.values()))
        kept = [name for name in settled if name not in touched]
        if len(kept) > MOST_FILES:
            kept = []
        rest = [name for name in settled if name not in kept]
        stay = known.where(F.col("_metadata.file_name").isin(rest)).join(again, [*KEY], "left_anti")
        events = self._every("events").where(F.col(_RUN) <= self.before).drop(_RUN, "file")
        earlier = events.join(again, [*KEY], "left_semi")
        of_endpoint = self.spark.read.parquet(f"{self.report}/{SUMMARY}")
        delivered = of_endpoint.where("endpoint IS NOT NULL AND delivered > 0").select("endpoint")
        return {
            "rows": gathered(earlier.unionByName(fresh) if touched else fresh),
            "recorded": _recorded(delivered.union(received).distinct()),
            "stay": stay if rest else None,
            "kept": kept,
        }

    def _changed(
        self, known: DataFrame, fresh: DataFrame, received: DataFrame, number: int
    ) -> DataFrame:
        """Of the messages that were judged, those that are to be judged anew, and their files."""
        file = F.col("_metadata.file_name").alias("file")
        told_of = fresh.select(*KEY).distinct().withColumn("told", F.lit(True))
        first = received.withColumn("received", F.lit(True))
        marked = known.select(*KEY, "status", file).join(
            _handed_out(told_of, number), [*KEY], "left"
        )
        is_open = ~F.col("file").startswith(_PREFIX)
        # Of the first reception at an endpoint it follows that what is handed over has yet to be received.
        first_received = (F.col("status") == HANDED_OVER) & F.col("received").isNotNull()
        return marked.join(F.broadcast(first), "endpoint", "left").where(
            is_open | F.col("told") | first_received
        )

    @cached_property
    def _messages(self) -> DataFrame:
        return self.spark.read.parquet(f"{self.report}/{MESSAGES}")

    def _every(self, name: str) -> DataFrame:
        """What this run and those before it have kept; a later one may have been killed."""
        found = self.spark.read.parquet(f"{self.folder}/{name}")
        return found.where(F.col(_RUN) <= self.before + 1)

    def _files(self, run: int) -> DataFrame:
        return self.spark.read.parquet(f"{self.folder}/files/{run % 2}")

    def _write(self, table: DataFrame, name: str) -> DataFrame:
        place = f"{self.folder}/{name}"
        table.write.mode("overwrite").parquet(place)
        return self.spark.read.schema(table.schema).parquet(place)


def _is_settled(as_of_ms: int) -> Column:
    """Whether nothing but an event of its own can change a message, however late a report is."""
    on_its_way = F.coalesce(F.col("at_destination_ms") > as_of_ms, F.lit(False))
    return (F.col("status") == DELIVERED) | ~(F.col("status").isin(*OPEN) | on_its_way)


def _recorded(endpoints: DataFrame) -> DataFrame:
    return endpoints.withColumn("receptions_recorded", F.lit(True))


def _handed_out(keys: DataFrame, number: int) -> DataFrame:
    return F.broadcast(keys) if number <= _MOST_BROADCAST else keys
