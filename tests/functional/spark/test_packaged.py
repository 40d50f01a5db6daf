"""The guide's zip file and job on an older Spark, whose Python has boto3 and pyarrow, and nothing of ours."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import venv
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.support.sqs_stub import Stub
from sqsdelay.spark.sink.rows import derived_id
from tests.functional.spark.conftest import QUICK_CONF, QUICK_JAVA
from tests.functional.spark.sent import ids, printed
from tests.services.processes import ROOT, environment

THEIRS = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "six.py", "urllib3")
ARROW = ("pyarrow", "pyarrow.libs", "numpy", "numpy.libs")
ROWS = 100


@pytest.fixture
def clusters_python(tmp_path: Path) -> Path:
    """A Python with what AWS's clusters have installed."""
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    for name in (*THEIRS, *ARROW):
        found = Path(sysconfig.get_path("purelib")) / name
        if found.exists():
            (packages / name).symlink_to(found)
    return folder / "bin" / "python"


def guide() -> tuple[str, list[str], str]:
    """The guide's commands and its job."""
    text = (ROOT / "docs" / "spark.md").read_text().partition("\n## On a cluster")[2]
    (commands,) = re.findall(r"```\n(python -m sqsdelay.spark.archive .*?)```", text, re.DOTALL)
    archive, submit = commands.strip().splitlines()
    (job,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return archive, submit.split(), job


@pytest.mark.nightly
def test_a_job_from_one_zip_file(sqs: Stub, tmp_path: Path, clusters_python: Path) -> None:
    """Driver and an executor of a cluster import sqsdelay and tenacity from it."""
    spark = ROOT / "build" / "pyspark-3.5"
    if not spark.exists():
        pytest.skip(f"no {spark}: make older-spark")
    archive, submit, job = guide()
    assert submit[:3] == ["spark-submit", "--py-files", "sqsdelay.zip"]
    (tmp_path / "job.py").write_text(job)
    keys = [f"r{n}" for n in range(ROWS)]
    bodies = ["" if n == 7 else "x" for n in range(ROWS)]
    dues = pa.array([datetime(2035, 1, 1, tzinfo=UTC)] * ROWS, pa.timestamp("us", "UTC"))
    table = pa.table({"order_id": keys, "body": bodies, "due_at": dues})
    pq.write_table(table, tmp_path / "renewals.parquet")
    made = [sys.executable, *archive.split()[1:]]
    subprocess.run(made, cwd=tmp_path, env=environment({"PYTHONPATH": str(ROOT)}), check=True)
    without = subprocess.run(
        [str(clusters_python), "-c", "import boto3, pyarrow; import tenacity"],
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'tenacity'" in without.stderr
    settings = sqs.environment(
        PYTHONPATH=str(spark),
        PYSPARK_PYTHON=str(clusters_python),
        SPARK_LOCAL_IP="127.0.0.1",
        JDK_JAVA_OPTIONS=QUICK_JAVA,
    )
    folders = ["rejects", "receipts"]
    command = [
        str(spark / "pyspark" / "bin" / "spark-submit"),
        "--master", "local-cluster[1,1,1024]", *QUICK_CONF, *submit[1:4], "renewals.parquet", *folders,
    ]  # fmt: skip
    told = ast.literal_eval(printed(command, tmp_path, settings))
    assert (told["sent"], told["rejected"]) == (99, 1)
    assert len(list((tmp_path / "receipts").rglob("part-*.parquet"))) > 0
    assert ids(sqs) == {derived_id("renewals-2027", key): 1 for key in keys if key != "r7"}
    assert {row["order_id"] for row in pq.read_table(tmp_path / "rejects").to_pylist()} == {"r7"}
