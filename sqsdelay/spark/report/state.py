"""What earlier reports have read, so that the next one reads only files that are new or have changed.

In a folder of its own are the events that were read, run by run, and, in two slots in turn, the files
and each message's row. The report names the run it was made of: what a run that was killed left is
written over by the next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqsdelay.errors import InvalidSetting
from sqsdelay.spark.locations import hadoop_uri
from sqsdelay.spark.report.messages import KEY, gathered
from sqsdelay.spark.report.output_folder import MARK
from sqsdelay.spark.report.read_ledger import read_ledger

VERSION: Final = 1
"""Increases when `gathered` makes other rows of the same events."""

_FILE: Final = ("file", "size", "modified")
_RUN: Final = "run"
_MOST_BROADCAST: Final = 1_000_000
"""Keys that every executor is handed; of more, the events are shuffled."""


@dataclass(frozen=True, kw_only=True)
class ReadSoFar:
    """All that this run and those before it have read: as if the whole ledger had been read at once."""

    rows: DataFrame
    bad_lines: DataFrame
    lines: int
    bad: int


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a report.

    Args:
        spark: the session.
        folder: its URI.
        before: the number of the last run whose report is there; 0 if there is none.
    """

    spark: SparkSession
    folder: str
    before: int

    @classmethod
    def of(cls, spark: SparkSession, folder: str, report: str) -> State:
        """The state in a folder that the report there was made of, or else an empty one.

        Raises:
            ConfigurationError: Spark knows no such file system.
        """
        uri = hadoop_uri(spark, folder, "--state").rstrip("/")
        mark = f"{hadoop_uri(spark, report, '--out').rstrip('/')}/{MARK}"
        try:
            (found,) = spark.read.text(mark, wholetext=True).collect()
            told = json.loads(found.value).get("state", {})
        except (AnalysisException, json.JSONDecodeError):  # No report yet, or none of ours.
            told = {}
        same = told.get("folder") == uri and told.get("version") == VERSION
        return cls(spark=spark, folder=uri, before=told["run"] if same else 0)

    def told(self) -> dict[str, Any]:
        """What the report tells of the state it was made of."""
        return {"state": {"folder": self.folder, "version": VERSION, "run": self.before + 1}}

    def add(self, ledger: str, *, ledger_format: str | None) -> ReadSoFar:
        """Read what is new in a ledger.

        A file that has grown is read again, whole: what was known of it counts once.

        Raises:
            ConfigurationError: see `read_ledger`.
        """
        listed = self._listed(ledger)
        if self.before:
            listed = listed.join(self._slot("files", self.before), [*_FILE], "left_anti")
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
        fresh = self._write(reading.by_file, f"events/{_RUN}={self.before + 1}")
        self._write(reading.bad_lines(), f"bad_lines/{_RUN}={self.before + 1}")
        files = self._write_files(listed, fresh)
        bad_lines = self._every("bad_lines").join(files, ["file", _RUN], "left_semi").drop(_RUN)
        number = bad_lines.count()
        good = files.agg(F.sum("events")).collect()[0][0] or 0
        rows = self._write_rows(fresh.drop("file"))
        return ReadSoFar(rows=rows, bad_lines=bad_lines, lines=good + number, bad=number)

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
            unchanged = self._slot("files", self.before).join(listed, "file", "left_anti")
            files = files.unionByName(unchanged)
        return self._write(files.coalesce(1), f"files/{(self.before + 1) % 2}")

    def _write_rows(self, fresh: DataFrame) -> DataFrame:
        """Of messages that something new is told of, made anew of all their events; others stay."""
        place = f"rows/{(self.before + 1) % 2}"
        if not self.before:
            return self._write(gathered(fresh), place)
        keys = fresh.select(*KEY).distinct().cache()
        try:
            touched = F.broadcast(keys) if keys.count() <= _MOST_BROADCAST else keys
            known = self._every("events").where(F.col(_RUN) <= self.before).drop(_RUN, "file")
            anew = gathered(known.join(touched, [*KEY], "left_semi").unionByName(fresh))
            stay = self._slot("rows", self.before).join(touched, [*KEY], "left_anti")
            return self._write(anew.unionByName(stay), place)
        finally:
            keys.unpersist()

    def _every(self, name: str) -> DataFrame:
        """What this run and those before it have kept; a later one may have been killed."""
        found = self.spark.read.parquet(f"{self.folder}/{name}")
        return found.where(F.col(_RUN) <= self.before + 1)

    def _slot(self, name: str, run: int) -> DataFrame:
        return self.spark.read.parquet(f"{self.folder}/{name}/{run % 2}")

    def _write(self, table: DataFrame, name: str) -> DataFrame:
        place = f"{self.folder}/{name}"
        table.write.mode("overwrite").parquet(place)
        return self.spark.read.schema(table.schema).parquet(place)
