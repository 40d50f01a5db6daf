"""A report's folder over Spark Connect, where no Java of ours reaches: on a real S3, and on a disk of which
Spark's server has another. The server's part, the tables, is done by the test."""

from __future__ import annotations

import json
import resource
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock, call

import boto3
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.report.write import MARK, NewReport, _ByArrow
from sqsdelay.testing.local_aws import LocalAws

REMOTE: Any = object()
"""A session without a Java context."""


class Bucket:
    """A bucket of its own."""

    def __init__(self, url: str) -> None:
        self.name = f"reports-{uuid.uuid4().hex[:12]}"
        self._s3 = boto3.client("s3", endpoint_url=url)
        self._s3.create_bucket(Bucket=self.name)
        self.fs = S3FileSystem(endpoint_override=url)

    def put(self, key: str) -> None:
        self._s3.put_object(Bucket=self.name, Key=key, Body=b"x")

    def keys(self) -> list[str]:
        every = self.fs.get_file_info(FileSelector(self.name, recursive=True))
        return sorted(each.path.partition("/")[2] for each in every if each.is_file)

    def tables(self) -> str:
        found = self._s3.get_object(Bucket=self.name, Key=f"a/orders/{MARK}")
        name: str = json.load(found["Body"])["tables"]
        return name


@pytest.fixture
def bucket(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", local_aws.endpoint_url)
    return Bucket(local_aws.endpoint_url)


def write(bucket: Bucket, part: str, *, whole: bool = True) -> None:
    with NewReport(REMOTE, f"s3a://{bucket.name}/a/orders/") as new:
        uri = f"{new._uri}/{new._tables}/messages"
        scheme, _, key = uri.partition(f"{bucket.name}/")
        assert scheme == "s3a://"
        bucket.put(f"{key}/{part}.parquet")
        bucket.put(f"{key.removesuffix('messages')}gathered/1.parquet")
        new.remove("gathered")
        if not whole:
            raise KeyError
        new.publish("<title>", {"lost": 0})


def report(tables: str, part: str) -> list[str]:
    names = "report.html", "report.json", f"{tables}/messages/{part}.parquet"
    return [f"a/orders/{name}" for name in names]


def test_in_s3_a_report_takes_the_place_of_another(bucket: Bucket) -> None:
    """Whole; one that fails leaves the other as it was, and what one that was killed has left goes. So does
    a report of an earlier version, whose tables were in the folder itself."""
    write(bucket, "1")
    assert bucket.keys() == report("tables-1", "1")
    bucket.put("a/orders/messages/0.parquet")
    bucket.put("a/orders/tables-7/messages/killed.parquet")
    with pytest.raises(KeyError):
        write(bucket, "2", whole=False)
    assert bucket.tables() == "tables-1"
    write(bucket, "3")
    assert bucket.tables() == "tables-8"
    assert bucket.keys() == report("tables-8", "3")


def test_what_failed_first_leaves_nothing(bucket: Bucket) -> None:
    """And killed on its way, it is no reason to refuse the next one."""
    with pytest.raises(KeyError):
        write(bucket, "1", whole=False)
    assert bucket.keys() == []
    bucket.put("a/orders/tables-1/messages/killed.parquet")
    write(bucket, "2")
    assert bucket.keys() == report("tables-2", "2")


def test_a_table_that_the_pointer_names_stays(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though what the report before has left cannot be deleted; the next one does that."""
    kept, delete = ["tables-1"], _ByArrow.delete

    def refuse(files: _ByArrow, name: str) -> None:
        if name in kept:
            raise OSError(name)
        delete(files, name)

    monkeypatch.setattr(_ByArrow, "delete", refuse)
    write(bucket, "1")
    with pytest.raises(OSError, match="tables-1"):
        write(bucket, "2")
    assert bucket.tables() == "tables-2"
    assert set(report("tables-2", "2")) < set(bucket.keys())
    kept.clear()
    write(bucket, "3")
    assert bucket.keys() == report("tables-3", "3")


def test_in_s3_something_else_is_left_alone(bucket: Bucket) -> None:
    """As on any disk: a folder, and a file."""
    bucket.put("thesis/1.txt")
    for name, told in (
        ("thesis", "is not empty and holds no report"),
        ("thesis/1.txt", "is a file"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            NewReport(REMOTE, f"s3://{bucket.name}/{name}")
    assert bucket.keys() == ["thesis/1.txt"]


def test_a_pointer_that_is_cut_off_does_not_count(tmp_path: Path) -> None:
    """A disk that is full, or a process that is killed, leaves the report before readable."""
    files = _ByArrow(str(tmp_path))
    files.write(MARK, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            files.write(MARK, b"n" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / MARK).read_bytes() == b"old"
    files._fs = Mock(type_name="hdfs", open_output_stream=MagicMock())
    # HDFS moves no file over another, and Azure without its hierarchical namespace none.
    files.write(MARK, b"new")
    assert files._fs.method_calls == [call.open_output_stream(f"{tmp_path}/{MARK}")]


def test_a_disk_that_the_server_does_not_share(tmp_path: Path) -> None:
    """The page would stand alone."""
    with (
        pytest.raises(ConfigurationError, match="is another folder to Spark's server"),
        NewReport(REMOTE, str(tmp_path / "out")) as new,
    ):
        new.publish("x", {})
    assert not list(tmp_path.iterdir())
