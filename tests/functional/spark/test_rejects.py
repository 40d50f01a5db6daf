"""The rejects table, on a local disk and in S3."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from sqsdelay.spark.sink.job import RejectsFolder
from sqsdelay.spark.sink.run import Attempt
from sqsdelay.spark.sink.task import rejected
from sqsdelay.testing.local_aws import LocalAws

ROWS = pa.RecordBatch.from_pydict({"body": ["x", "y"]})


@pytest.fixture(params=["local", "s3", "s3a"])
def path(
    request: pytest.FixtureRequest,
    local_aws: LocalAws,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A folder's path, and a machine whose AWS settings reach the bucket."""
    if request.param == "local":
        return str(tmp_path / "rejects")
    for name, value in local_aws.environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"rejects-{request.param}"
    local_aws.client("s3").create_bucket(Bucket=bucket)
    return f"{request.param}://{bucket}/{tmp_path.name}"


def test_only_committed_attempts_count(path: str) -> None:
    """Of two attempts on a task one is committed; the other's rows are gone, and nothing is left."""
    folder = RejectsFolder(path)
    folder.create()
    kept = rejected(ROWS, [1], ["bad"])
    attempts = [Attempt("write", 3, task_id=number) for number in (7, 8)]
    for attempt in attempts:
        with folder.open(attempt, kept.schema) as file:
            file.write_batch(kept)
    folder.commit(attempts[1:], ["write"])
    system, root = fs.FileSystem.from_uri(path.replace("s3a:", "s3:"))
    left = system.get_file_info(fs.FileSelector(root, recursive=True))
    assert [info.base_name for info in left] == ["part-write-00003.parquet"]
    assert pq.read_table(root, filesystem=system).to_pylist() == [{"body": "y", "reason": "bad"}]


def test_a_write_that_is_run_again_replaces_its_parts(path: str) -> None:
    """Though it has fewer tasks now, or rejects fewer rows; other writes' parts stay."""
    folder = RejectsFolder(path)
    folder.create()
    kept = rejected(ROWS, [1], ["bad"])
    for write, partitions in (("query-1", (0, 3)), ("query-11", (0,)), ("query-1", (2,))):
        attempts = [Attempt(write, number) for number in partitions]
        for attempt in attempts:
            with folder.open(attempt, kept.schema) as file:
                file.write_batch(kept)
        folder.commit(attempts, [write])
    system, root = fs.FileSystem.from_uri(path.replace("s3a:", "s3:"))
    left = sorted(info.base_name for info in system.get_file_info(fs.FileSelector(root)))
    assert left == ["part-query-1-00002.parquet", "part-query-11-00000.parquet"]


def test_a_write_that_failed_leaves_nothing(path: str) -> None:
    """Its finished tasks' rejects included: the job is to be run again, with all its rows."""
    folder = RejectsFolder(path)
    folder.create()
    kept = rejected(ROWS, [0], ["bad"])
    with folder.open(Attempt("write"), kept.schema) as file:
        file.write_batch(kept)
    folder.drop(["write", "write-without-rejects"])
    system, root = fs.FileSystem.from_uri(path.replace("s3a:", "s3:"))
    assert system.get_file_info(fs.FileSelector(root, recursive=True)) == []
