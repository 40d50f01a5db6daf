"""A cluster whose default file system is another than this machine's disk, as HDFS is on EMR."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from benchmarks.support.sqs_stub import Stub
from sqsdelay.cli import app
from sqsdelay.errors import SqsDelayError
from sqsdelay.spark.sink.rows import derived_id
from tests.functional.spark.sent import ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def other(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The default of all who give no scheme; it has one folder, ``/data``."""
    context: Any = spark._jsc
    settings = context.hadoopConfiguration()
    host = f"other{uuid.uuid4().hex}"
    (tmp_path / "other").mkdir()
    settings.set(f"fs.viewfs.mounttable.{host}.link./data", (tmp_path / "other").as_uri())
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", f"viewfs://{host}/")
    monkeypatch.chdir(tmp_path)
    yield f"viewfs://{host}/data"
    settings.set("fs.defaultFS", before)


def schedule(*arguments: str) -> Result:
    told = ["pipeline", "schedule", *arguments, "--endpoint", "orders", "--key", "id", "--json"]
    return CliRunner().invoke(app, told, catch_exceptions=False)


@pytest.mark.parametrize("by_uri", [False, True])
def test_a_path_is_this_machines_and_a_uri_the_clusters(
    sqs: Stub, tmp_path: Path, other: str, by_uri: bool
) -> None:
    """Input by either; what the job keeps is on the disk that its path names, and nothing elsewhere."""
    table = pa.table({"id": [1, 2, 3], "body": ["x", "", "z"], "delay_seconds": [86_400] * 3})
    pq.write_table(table, tmp_path / ("other/rows.parquet" if by_uri else "rows.parquet"))
    given = f"{other}/rows.parquet" if by_uri else "rows.parquet"
    kept = ["--rejects", f"{tmp_path}/rejects", "--receipts", f"{tmp_path}/receipts", "--job", "j"]
    done = schedule(given, *kept)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, told["sent"], told["rejected"]) == (1, 2, 1), done.output
    again = json.loads(schedule(given, *kept).stdout.splitlines()[-1])
    assert (again["sent"], again["already_sent"]) == (0, 2)
    assert ids(sqs) == {derived_id("j", n): 1 for n in (1, 3)}
    assert {row["id"] for row in pq.read_table(tmp_path / "rejects").to_pylist()} == {2}
    assert (tmp_path / "receipts/j/_job.json").exists()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["rows.parquet"] * by_uri


def test_what_workers_cannot_reach_is_refused_before_anything_is_sent(
    sqs: Stub, tmp_path: Path, other: str
) -> None:
    """Java knows the cluster's file system here, and Python's workers do not."""
    (tmp_path / "rows.jsonl").write_text('{"id": "1", "body": "x", "delay_seconds": 9}\n')
    for option in ("--rejects", "--receipts"):
        with pytest.raises(SqsDelayError, match=f"option {option[2:]}='{other}/kept' cannot be"):
            schedule("rows.jsonl", "--job", "j", option, f"{other}/kept")
    assert sqs.kept() == []
