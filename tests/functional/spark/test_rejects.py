"""The rejects table, on a local disk and in S3."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.sink.job import RejectsFolder, Sink
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.run import Attempt, Counts, TaskReport
from sqsdelay.spark.sink.task import rejected
from sqsdelay.testing.local_aws import LocalAws

KEPT = rejected(pa.RecordBatch.from_pydict({"body": ["x", "y"]}), [1], ["bad"])


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


def write(folder: RejectsFolder, *attempts: Attempt) -> dict[Attempt, str]:
    """Reject a row in each."""
    for attempt in attempts:
        with folder.open(attempt, KEPT.schema) as file:
            file.write_batch(KEPT)
    return {each: f"part-{each.write_id}-{each.partition:05d}.parquet" for each in attempts}


def left(path: str) -> list[str]:
    """All that is in the folder."""
    system, root = fs.FileSystem.from_uri(path.replace("s3a:", "s3:"))
    return sorted(e.base_name for e in system.get_file_info(fs.FileSelector(root, recursive=True)))


def test_only_committed_attempts_count(path: str) -> None:
    """Of two attempts on a task one is committed; the other's rows are gone, and nothing is left of them, nor
    of a write that failed: the job is to be run again, with all its rows."""
    folder = RejectsFolder(path)
    folder.system.create_dir(folder.root)
    write(folder, Attempt("failed"))
    folder.drop(["failed", "write-without-rejects"])
    assert left(path) == []
    attempts = [Attempt("write", 3, task_id=number) for number in (7, 8)]
    names = write(folder, *attempts)
    folder.commit({attempts[1]: names[attempts[1]]}, ["write"])
    assert left(path) == ["part-write-00003.parquet"]
    system, root = fs.FileSystem.from_uri(path.replace("s3a:", "s3:"))
    assert pq.read_table(root, filesystem=system).to_pylist() == [{"body": "y", "reason": "bad"}]


def test_rejects_are_kept_though_the_summary_cannot_be(tmp_path: Path) -> None:
    """Other rows are sent by then; of a write that failed, nothing is left."""
    folder, summary = RejectsFolder(str(tmp_path)), tmp_path / "summary"
    summary.mkdir()
    options = Options(rejects=str(tmp_path), summary=str(summary))
    sink = Sink(options=options, columns=Columns(names=frozenset()))
    attempt = Attempt("write")
    report = TaskReport(attempt, Counts(), write(folder, attempt)[attempt])
    with pytest.raises(ConfigurationError, match="give a file that can be written"):
        sink.commit([report])
    write(folder, attempt)
    with pytest.raises(ConfigurationError, match="give a file that can be written"):
        sink.abort([report], ["write"])
    assert left(str(tmp_path)) == ["part-write-00000.parquet", "summary"]


def test_a_write_that_is_run_again_replaces_its_parts(path: str) -> None:
    """Though it has fewer tasks now, or rejects fewer rows; other writes' parts stay."""
    folder = RejectsFolder(path)
    folder.system.create_dir(folder.root)
    for name, partitions in (("query-1", (0, 3)), ("query-11", (0,)), ("query-1", (2,))):
        folder.commit(write(folder, *[Attempt(name, number) for number in partitions]), [name])
    assert left(path) == ["part-query-1-00002.parquet", "part-query-11-00000.parquet"]
