"""A report with a state: what was read is not read again, and the tables are those of all that was ever
read."""

from __future__ import annotations

import gzip
import json
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sqsdelay.cost import shipped_prices
from sqsdelay.errors import ConfigurationError
from sqsdelay.ledger.events import to_json
from sqsdelay.spark.report import state, write
from sqsdelay.spark.report.events_table import write_events
from sqsdelay.spark.report.figures import Figures
from sqsdelay.spark.report.output_folder import _ArrowFolder
from sqsdelay.spark.report.read_ledger import Reading, read_ledger
from tests.functional.spark import told
from tests.functional.spark.test_report import TABLES, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRICES = shipped_prices()
EXPECTED = {
    event.message_id: status for status, events in told.everything().items() for event in events
}


def statuses(report: Path) -> dict[str, str]:
    return {row["message_id"]: row["status"] for row in table(report, "messages")}


class Reports:
    """A ledger that grows, and its report with a state."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.folder = folder
        self.ledger = folder / "ledger"
        self.ledger.mkdir()

    def add(self, name: str, lines: Sequence[str]) -> Path:
        with (self.ledger / name).open("a") as file:
            file.writelines(line + "\n" for line in lines)
        return self.ledger / name

    def report(self, out: str = "out", **more: Any) -> Figures:
        known = {"state": str(self.folder / "state")} | more
        return write.write_report(
            self._spark, str(self.ledger), self.folder / out, prices=PRICES, **known
        )

    def killed(self) -> None:
        """A run that ends when it has read all, and half its report is there."""

        def kill(*_: Any) -> str:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(write, "render", kill)
            patch.setattr(_ArrowFolder, "drop", lambda _: None)
            with pytest.raises(KeyboardInterrupt):
                self.report()
        assert (self.folder / ".out.new/messages").exists()

    def reading(self, lines: Sequence[str]) -> Callable[..., Reading]:
        """A ledger to which a file comes when its files have been listed."""

        def read(*arguments: Any, **named: Any) -> Reading:
            self.add("3.jsonl", lines)
            return read_ledger(*arguments, **named)

        return read

    @property
    def run(self) -> int:
        told = json.loads((self.folder / "out/report.json").read_text())
        return int(told["state"]["run"])

    @property
    def settled(self) -> set[str]:
        """The files of messages that are written once."""
        return {path.name for path in (self.folder / "out/messages").glob("settled-*")}

    def is_whole(self) -> None:
        """The report is the one of all that is there."""
        figures = self.report("whole", state=None)
        mark = json.loads((self.folder / "out/report.json").read_text())
        assert asdict(figures) == {name: mark[name] for name in asdict(figures)}
        for name in TABLES:
            of_all, of_state = (table(self.folder / out, name) for out in ("whole", "out"))
            if name == "messages":  # In more files.
                of_state.sort(key=itemgetter("endpoint", "message_id"))
            assert of_state == of_all, name


@pytest.fixture
def reports(spark: SparkSession, tmp_path: Path) -> Reports:
    return Reports(spark, tmp_path)


def last_run(spark: SparkSession, known: str, out: Path) -> int:
    """The number of the last run that a report tells of, if its state is this one."""
    mark = out / "report.json"
    told = mark.read_text() if mark.exists() else ""
    return state.State.of(spark, known, str(out), told).before


def garbled(file: Path) -> None:
    """Another content of the same size and time: who reads it sees it."""
    known = file.stat()
    file.write_bytes(b"#" * known.st_size)
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))


def test_each_run_reads_what_is_new_and_tells_of_all(reports: Reports) -> None:
    """Lines that come twice, late events, bad lines, a file that grows, one that comes meanwhile, a run that
    is killed: the tables are those of the whole ledger. Of what has not changed nothing is read."""
    lines = told.lines()
    first = reports.add("1.jsonl", lines[::3] + told.BAD[:2])
    reports.report()
    # Events of known messages, earlier and later ones; lines of the day before again.
    reports.add("2 [b].jsonl", lines[1::3] + lines[:9:3])
    reports.killed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "read_ledger", reports.reading(lines[2::3]))
        reports.report()
    reports.add("2 [b].jsonl", told.BAD[:1])
    reports.report()
    assert reports.run == 3
    # The first reception at an endpoint: what was handed over there has not arrived.
    heard = told.sent("heard", endpoint="silent")
    reports.add("4.jsonl", [to_json(heard), to_json(told.received(heard))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_MOST_BROADCAST", 0)
        figures = reports.report()
    reports.is_whole()
    garbled(first)
    settled = reports.settled
    late = told.received(told.sent("lost"), late_ms=told.HOUR)
    reports.add("5.jsonl", [to_json(late)])
    found = reports.report()
    assert (found.lost, found.delivered) == (figures.lost - 1, figures.delivered + 1)
    assert (found.lines, found.bad_lines) == (figures.lines + 1, figures.bad_lines)
    assert settled < reports.settled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "MOST_FILES", 0)
        assert reports.report() == found
    assert not settled & reports.settled


def test_rows_by_day(spark: SparkSession, tmp_path: Path) -> None:
    """Of a table that `pipeline events` appends to, the new files are read, and those that are gone stay;
    of a state whose report is another, or not whole, everything is read."""
    lines, folder, out = told.lines(), str(tmp_path / "events"), tmp_path / "out"
    known = str(tmp_path / "state")
    for run in range(2):
        (tmp_path / f"{run}.jsonl").write_text("\n".join(lines[run::2]))
        write_events(spark, str(tmp_path / f"{run}.jsonl"), folder)
        assert last_run(spark, known, out) == run
        write.write_report(spark, folder, out, ledger_format="parquet", prices=PRICES, state=known)
        for file in (tmp_path / "events").rglob("*.parquet"):
            file.unlink()
    assert statuses(out) == EXPECTED
    assert last_run(spark, str(tmp_path / "another"), out) == 0
    assert last_run(spark, known, tmp_path / "elsewhere") == 0
    next((out / "messages").glob("*.parquet")).unlink()
    assert last_run(spark, known, out) == 0


def test_what_has_no_files_has_no_state(spark: SparkSession, reports: Reports) -> None:
    """A DataFrame, a table's name, an instant of the past: one line each, and nothing is left."""
    given: dict[str, Any] = {"prices": PRICES, "state": str(reports.folder / "state")}
    refused: list[tuple[Any, dict[str, Any]]] = [(spark.range(1), {}), ("x", {"as_of_ms": 1})]
    for ledger, more in refused:
        with pytest.raises(ConfigurationError, match="a report with a state reads files"):
            write.write_report(spark, ledger, reports.folder / "out", **(given | more))
    with pytest.raises(ConfigurationError, match="name one, not a table"):
        write.write_report(spark, "events", reports.folder / "out", **given)
    reports.add("1.jsonl", ["x"])
    with pytest.raises(ConfigurationError, match="has no events; 1 lines are not events"):
        reports.report()
    assert [path.name for path in reports.folder.iterdir() if path.name != "state"] == ["ledger"]


def test_objects_of_a_stream_by_day(spark: SparkSession, tmp_path: Path) -> None:
    """As Firehose writes them into S3, some of it twice, beside logs of the time before: read by S3's own
    name, where Spark has only Hadoop's; of each run the objects that are new; an event counts once."""
    context: Any = spark._jsc
    settings = context.hadoopConfiguration()
    bucket = f"ledgers{uuid.uuid4().hex}"  # Hadoop keeps one file system for each
    views = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
    before = settings.get("fs.s3a.impl")
    settings.set("fs.s3a.impl", views)
    settings.set(
        "fs.viewfs.overload.scheme.target.file.impl", "org.apache.hadoop.fs.LocalFileSystem"
    )
    folder, out, known = tmp_path / "bucket", tmp_path / "out", str(tmp_path / "state")
    folder.mkdir()
    settings.set(f"fs.viewfs.mounttable.{bucket}.link./ledger", folder.as_uri())
    good = told.lines()[: -len(told.BAD)]

    def put(name: str, lines: Sequence[str]) -> None:
        path = folder / "orders" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(line + "\n" for line in lines).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    put("day=2026-09-21/events-1-2026-09-21-09-00-00-1.gz", good[::3])
    put("logs/exported.log", [line for each in good[1:2] for line in told.wrapped(each)])
    try:
        read = []
        for run in range(2):
            assert last_run(spark, known, out) == run
            found = write.write_report(
                spark, f"s3://{bucket}/ledger/", out, prices=PRICES, state=known
            )
            read.append((found.lines, found.bad_lines))
            put("day=2026-09-21/events-1-2026-09-21-09-15-00-2.gz", [*good[::3], *good[1::3]])
            put("day=2026-09-22/events-1-2026-09-22-00-00-00-3.gz", good[2::3])
    finally:
        settings.set("fs.s3a.impl", before)
    first = len(good[::3])
    assert read == [(first + 4, 0), (first + 4 + len(good), 0)]
    assert statuses(out) == EXPECTED
