"""Paths and URIs of Spark jobs: one meaning everywhere, or refused in one line."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.locations import absolute, file_name, hadoop_uri, is_uri, opened


@pytest.mark.parametrize("path", ["{}/x", "file:{}/x", "file://{}/x", "FILE:{}/x"])
def test_a_file_uri_is_a_path_of_this_machine(path: str, tmp_path: Path) -> None:
    """Hadoop writes it with one slash, everybody else with three; the same folder."""
    given = path.format(tmp_path)
    assert absolute(given) == f"{tmp_path}/x"
    assert not is_uri(given)
    system, root = opened(given, "rejects")
    assert (system.type_name, root) == ("local", f"{tmp_path}/x")


def test_a_relative_path_is_of_the_drivers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers run in other folders."""
    monkeypatch.chdir(tmp_path)
    assert absolute("rejects") == f"{tmp_path}/rejects"
    assert absolute("s3://bucket/x") == "s3://bucket/x"


@pytest.mark.parametrize("uri", ["dbfs:/x", "ftp://h/x", "hdfs://127.0.0.1:1/x"])
def test_what_workers_cannot_reach_is_refused_in_one_line(uri: str) -> None:
    """With the option, the value and what can be given instead."""
    with pytest.raises(ConfigurationError, match=r"\Aoption rejects='.*' cannot be used: [^\n]+\Z"):
        opened(uri, "rejects")


def test_a_plain_path_stays_on_this_machine_whatever_the_clusters_default(tmp_path: Path) -> None:
    """fs.defaultFS=hdfs://… would make it a folder of the cluster's."""
    spark: Any = SimpleNamespace(_jsc=None)
    assert hadoop_uri(spark, str(tmp_path), "--out") == f"file://{tmp_path}"
    assert hadoop_uri(spark, "s3a://bucket/x", "--out") == "s3a://bucket/x"


def test_a_jobs_name_is_one_segment_of_a_path_and_no_other_jobs() -> None:
    """Whatever it holds; what no file system can hold is refused."""
    names = ["a/b", "a_b", "a%2Fb", "a%b", ".", "..", "a b", "a\nb", "a\0b", "ä", "*"]
    found = [file_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(re.fullmatch(r"[\w%.-]+", name, re.ASCII) and name.strip(".") for name in found)
    with pytest.raises(ConfigurationError, match=r"job=.*has 161 bytes.*limit is 160: shorten it"):
        file_name("x" * 161)
    with pytest.raises(ConfigurationError, match=r"job='\\ud800' is no text"):
        file_name("\ud800")
