"""A report's folder over Spark Connect, where no Java of ours reaches: on a real S3, and on a disk of which
Spark's server has another. The server's part, the tables, is done by the test."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.report import output_folder
from sqsdelay.spark.report.output_folder import replaced
from sqsdelay.testing.local_aws import LocalAws

REMOTE: Any = object()
"""A session without a Java context."""


class Bucket:
    """A bucket of its own."""

    def __init__(self, url: str) -> None:
        self.name = f"reports-{uuid.uuid4().hex[:12]}"
        boto3.client("s3", endpoint_url=url).create_bucket(Bucket=self.name)
        self.fs = S3FileSystem(endpoint_override=url)

    def put(self, key: str) -> None:
        with self.fs.open_output_stream(f"{self.name}/{key}") as stream:
            stream.write(b"x")

    def keys(self) -> list[str]:
        every = self.fs.get_file_info(FileSelector(self.name, recursive=True))
        return sorted(each.path.partition("/")[2] for each in every if each.is_file)


@pytest.fixture
def bucket(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", local_aws.endpoint_url)
    return Bucket(local_aws.endpoint_url)


def write(bucket: Bucket, part: str, *, whole: bool = True) -> None:
    out = f"s3a://{bucket.name}/a/orders/"
    with replaced(REMOTE, out) as new:
        assert new.uri("messages") == f"s3a://{bucket.name}/a/.orders.new/messages"
        bucket.put(f"a/.orders.new/messages/{part}.parquet")
        bucket.put("a/.orders.new/gathered/1.parquet")
        new.remove("gathered")
        new.write_text("report.json", "{}")
        if not whole:
            raise KeyError


def report(part: str) -> list[str]:
    return [f"a/orders/messages/{part}.parquet", "a/orders/report.json"]


def test_in_s3_a_report_takes_the_place_of_another(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole; one that fails leaves the other as it was. If the last step is cut off, the next one can be
    done."""
    for part in ("1", "2"):
        write(bucket, part)
        assert bucket.keys() == report(part)
    with pytest.raises(KeyError):
        write(bucket, "3", whole=False)
    assert bucket.keys() == report("2")
    with monkeypatch.context() as patch:
        patch.setattr(output_folder, "copy_files", None)
        with pytest.raises(TypeError):
            write(bucket, "4")
    write(bucket, "5")
    assert bucket.keys() == report("5")


def test_in_s3_something_else_is_left_alone(bucket: Bucket) -> None:
    """As on any disk."""
    bucket.put("thesis/1.txt")
    with (
        pytest.raises(ConfigurationError, match="is not empty and holds no report"),
        replaced(REMOTE, f"s3://{bucket.name}/thesis"),
    ):
        pass
    assert bucket.keys() == ["thesis/1.txt"]


def test_a_disk_that_the_server_does_not_share(tmp_path: Path) -> None:
    """The page would stand alone."""
    out = tmp_path / "out"
    with (
        pytest.raises(ConfigurationError, match="is another folder to Spark's server"),
        replaced(REMOTE, str(out)) as new,
    ):
        new.write_text("report.html", "x")
    assert not list(tmp_path.iterdir())
