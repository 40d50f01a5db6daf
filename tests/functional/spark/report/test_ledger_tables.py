"""A ledger as a table: Parquet by day, a DataFrame, a table's name; and reports on other file systems."""

from __future__ import annotations

import gzip
import json
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from sqsdelay.cli import app
from sqsdelay.cost import shipped_prices
from sqsdelay.errors import ConfigurationError
from sqsdelay.spark import session
from sqsdelay.spark.report.messages import gathered, judged
from sqsdelay.spark.report.read import read_ledger
from sqsdelay.spark.report.write import write_report
from tests.functional.spark import told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> str:
    """A file system that is not this machine's, to all who ask for its scheme."""
    context: Any = spark._jsc
    host = f"lake{uuid.uuid4().hex}"  # Hadoop keeps one for each host
    (tmp_path / "lake").mkdir()
    name = f"fs.viewfs.mounttable.{host}.link./data"
    context.hadoopConfiguration().set(name, (tmp_path / "lake").as_uri())
    return f"viewfs://{host}/data"


def test_a_ledger_by_day_on_another_file_system(
    spark: SparkSession, lake: str, tmp_path: Path
) -> None:
    """Lines become a table, twice; the report of it, beside it, is the lines' and replaces its own."""
    (tmp_path / "ledger.jsonl").write_text("\n".join(told.lines()))
    for _ in range(2):
        command = ["pipeline", "events", str(tmp_path / "ledger.jsonl"), "--out", f"{lake}/events"]
        done = CliRunner().invoke(app, [*command, "--json"])
        assert done.exit_code == 0, done.output
    good = len(told.lines()) - len(told.BAD)
    assert json.loads(done.stdout.splitlines()[-1]) == {"events": good, "bad_lines": len(told.BAD)}
    days = sorted(path.name for path in (tmp_path / "lake/events").glob("day=*"))
    assert days == ["day=2026-09-21", "day=2026-09-22"]
    out = f"{lake}/report"
    (tmp_path / "lake/report").mkdir()
    (tmp_path / "lake/report/report.json").write_text("{}")
    events = f"{lake}/events"
    figures = write_report(spark, events, out, ledger_format="parquet", prices=shipped_prices())
    written = json.loads((tmp_path / "lake/report/report.json").read_text())
    rows = spark.read.parquet(f"{out}/{written['tables']}/messages").collect()
    assert {row.message_id: row.status for row in rows} == told.statuses()
    assert written["messages"] == figures["messages"] == len(told.statuses())
    assert "<title>sqsdelay report" in (tmp_path / "lake/report/report.html").read_text()
    names = [path.name for path in (tmp_path / "lake").iterdir() if not path.name.endswith(".crc")]
    assert sorted(names) == ["events", "report"]


def test_objects_of_a_stream_by_day(spark: SparkSession, tmp_path: Path) -> None:
    """As Firehose writes them into S3, some of it twice, beside logs of the time before: read by S3's own
    name, where Spark has only Hadoop's. All of it as a folder; some days by a glob; an event counts once."""
    context: Any = spark._jsc
    settings = context.hadoopConfiguration()
    bucket = f"ledgers{uuid.uuid4().hex}"  # Hadoop keeps one file system for each
    views = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
    before = settings.get("fs.s3a.impl")
    settings.set("fs.s3a.impl", views)
    local = "org.apache.hadoop.fs.LocalFileSystem"
    settings.set("fs.viewfs.overload.scheme.target.file.impl", local)
    folder = tmp_path / "bucket"
    settings.set(f"fs.viewfs.mounttable.{bucket}.link./ledger", folder.as_uri())
    good = told.lines()[: -len(told.BAD)]
    objects = {
        "day=2026-09-21/events-1-2026-09-21-09-00-00-1.gz": good[::3],
        "day=2026-09-21/events-1-2026-09-21-09-15-00-2.gz": [*good[::3], *good[1::3]],
        "day=2026-09-22/events-1-2026-09-22-00-00-00-3.gz": good[2::3],
        "logs/exported.log.gz": [line for each in good[1:2] for line in told.wrapped(each)],
    }
    for name, lines in objects.items():
        path = folder / "orders" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    first = len(good[::3])
    try:
        for ledger, number in (
            ("", first + len(good) + 4),
            ("orders/day=2026-09-2*", first + len(good)),
            ("orders/day=2026-09-22", len(good[2::3])),
        ):
            reading = read_ledger(spark, f"s3://{bucket}/ledger/{ledger}")
            assert (reading.events.count(), reading.aside.count()) == (number, 0)
        as_of_ms = max(e.at_ms for events in told.everything().values() for e in events)
        whole = gathered(read_ledger(spark, f"s3://{bucket}/ledger/").events)
        rows = judged(whole, as_of_ms=as_of_ms, grace_ms=told.HOUR).collect()
        assert {row.message_id: row.status for row in rows} == told.statuses()
    finally:
        settings.set("fs.s3a.impl", before)


def test_rows_are_events_or_set_aside(spark: SparkSession) -> None:
    """Of a DataFrame, or of a table by its name: columns in any case, of any kind, more than needed."""
    schema = "EVENT string, at_ms string, endpoint string, message_id string, source string, x int, V string"
    good = ("sent", str(told.T0), "orders", "m", "sender", 1, None)
    bad = [("vanished", *good[1:]), *((*good[:6], version) for version in ("2", "x"))]
    rows = spark.createDataFrame([good, *bad], schema)
    rows.createOrReplaceTempView("ledger_rows")
    for ledger in (rows, "ledger_rows"):
        reading = read_ledger(spark, ledger)
        (known,) = judged(gathered(reading.events), as_of_ms=told.T0, grace_ms=0).collect()
        assert (known.message_id, known.status) == ("m", "pending")
        aside = sorted(reading.aside.collect())
        for row, said in zip(aside, ('"V":"2"', '"V":"x"', "vanished"), strict=True):
            assert row.reason, said
            assert said in row.line
    with pytest.raises(ConfigurationError, match="no column event, at_ms, endpoint, message_id"):
        read_ledger(spark, spark.range(1))


def test_a_place_that_cannot_be_is_one_line(
    spark: SparkSession, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown file system; a folder of something else on another; a format that Spark lacks; a host that
    takes connections and never answers."""
    prices = shipped_prices()
    with pytest.raises(ConfigurationError, match="no file system for nowhere:"):
        write_report(spark, "x", "nowhere://bucket/report", prices=prices)
    (tmp_path / "lake/mine").mkdir()
    (tmp_path / "lake/mine/thesis.txt").write_text("years of work")
    known = {"mine": "is not empty and holds no report", "mine/thesis.txt": "is a file"}
    for out, words in known.items():
        with pytest.raises(ConfigurationError, match=words):
            write_report(spark, "x", f"{lake}/{out}", prices=prices)
    assert (tmp_path / "lake/mine/thesis.txt").exists()
    with pytest.raises(ConfigurationError, match=r"cannot be read as delta: [^\n]+$"):
        read_ledger(spark, str(tmp_path), ledger_format="delta")
    monkeypatch.setattr(session, "ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/x"
        for ledger, out in ((place, str(tmp_path / "out")), ("x", place)):
            with pytest.raises(
                ConfigurationError, match=r"^[^\n]+ not answer within 0.1 s; .*credentials$"
            ):
                write_report(spark, ledger, out, prices=prices)
