"""spark-submit with the zip file and the data source, on a cluster of separate processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from benchmarks.support.sqs_stub import Stub
from sqsdelay.spark.sink.rows import derived_id
from sqsdelay.stores import S3Store
from sqsdelay.testing.local_aws import free_port
from tests.functional.spark.conftest import QUICK_CONF, QUICK_JAVA
from tests.functional.spark.sent import due_ms, ids
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import ROOT, environment, run
from tests.services.s3_server import S3Server

FILES, ROWS = 4, 1_000
JOB = "renewals-2027"
PROGRAM = f"""
from pyspark.sql import SparkSession

from sqsdelay.spark import register

spark = SparkSession.builder.getOrCreate()
register(spark)
rows = spark.read.parquet("renewals.parquet").write.format("sqsdelay").mode("append")
rows.options(endpoint="orders", key="order_id", job="{JOB}", rejects="rejects").save()
"""
DUE_AT = datetime(2035, 1, 1, tzinfo=UTC)


def write_table(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        keys = [f"{number}-{row}" for row in range(ROWS)]
        bodies = ["" if row == 500 else "x" for row in range(ROWS)]
        table = pa.table({"order_id": keys, "body": bodies, "due_at": [DUE_AT] * ROWS})
        pq.write_table(table, folder / f"{number}.parquet")


def kill_an_executor(submitted: subprocess.Popen[str], sqs: Stub) -> None:
    """Kill one of the executors while both are in the middle of a task.

    A task sends one file after the other, so two files that are begun and not finished are two tasks.
    """
    files = {derived_id(JOB, f"{n}-{row}"): n for n in range(FILES) for row in range(ROWS)}
    deadline = time.monotonic() + PATIENCE_SECONDS
    half_sent = 0
    while half_sent < 2:
        assert submitted.poll() is None, "spark-submit ended early"
        assert time.monotonic() < deadline, "the executors are not both sending"
        time.sleep(0.1)
        sent = Counter(files[sent] for sent in ids(sqs))
        half_sent = sum(ROWS / 10 <= rows <= ROWS * 0.97 for rows in sent.values())
    executors = []
    for process in psutil.Process(submitted.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                executors.append(process)
    assert len(executors) == 2
    executors[0].kill()
    sqs.set_latency(0)


def test_an_executor_killed_in_the_middle_of_a_write(
    sqs: Stub, tmp_path: Path, python_without_sqsdelay: Path
) -> None:
    """The job finishes; no message is lost; duplicates have one id and one due time; rejects are
    kept once. sqsdelay comes from the zip file alone."""
    write_table(tmp_path / "renewals.parquet")
    (tmp_path / "job.py").write_text(PROGRAM)
    archive = [sys.executable, "-m", "sqsdelay.spark.archive", "sqsdelay.zip"]
    subprocess.run(archive, cwd=tmp_path, env=plain(), check=True)
    # Slow enough to find both executors at work, and within the 5 s that a request may take.
    sqs.set_latency(3_000)
    command = [
        f"{Path(pyspark.__file__).parent}/bin/spark-submit",
        "--master", "local-cluster[2,1,1024]", *QUICK_CONF, "--py-files", "sqsdelay.zip", "job.py",
    ]  # fmt: skip
    settings = cluster_of(sqs, python_without_sqsdelay)
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, cwd=tmp_path, env=plain() | settings, stdout=log, stderr=log, text=True
        ) as submitted,
    ):
        try:
            kill_an_executor(submitted, sqs)
            code = submitted.wait(timeout=PATIENCE_SECONDS)
        finally:
            submitted.kill()
    assert code == 0, (tmp_path / "log").read_text()[-5000:]
    counted = ids(sqs)
    expected = {f"{n}-{row}" for n in range(FILES) for row in range(ROWS) if row != 500}
    assert set(counted) == {derived_id(JOB, key) for key in expected}
    duplicates = counted.total() - len(counted)
    assert 0 < duplicates < FILES * ROWS
    assert {due_ms(entry) for entry in sqs.kept()} == {int(DUE_AT.timestamp() * 1000)}
    rejects = pq.read_table(tmp_path / "rejects").to_pylist()
    assert sorted(row["order_id"] for row in rejects) == [f"{n}-500" for n in range(FILES)]


@pytest.mark.nightly
def test_the_command_ships_itself_to_a_cluster(
    sqs: Stub, tmp_path: Path, python_without_sqsdelay: Path
) -> None:
    """Executors without sqsdelay get it from the command."""
    table = {"message_id": ["m1", "m2"], "body": ["x", "y"], "due_at": [DUE_AT] * 2}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    done = run(
        "pipeline", "--master", "local-cluster[1,1,1024]",
        "schedule", str(tmp_path / "rows.parquet"), "--endpoint", "orders",
        env=cluster_of(sqs, python_without_sqsdelay),
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ids(sqs) == {"m1": 1, "m2": 1}


@pytest.mark.nightly
def test_copies_by_speculation_count_once(sqs: Stub, s3: S3Server, tmp_path: Path) -> None:
    """On a standalone master with workers on two hosts: Spark runs a copy of a slow task on the other one."""
    settings = cluster_of(sqs, Path(sys.executable)) | {
        "AWS_ENDPOINT_URL_S3": s3.url,
        "PYTHONPATH": str(ROOT),
    }
    settings.pop("SPARK_LOCAL_IP")
    program = f"{Path(pyspark.__file__).parent}/bin/spark-class"
    deploy, port = "org.apache.spark.deploy", str(free_port())
    master = f"spark://127.0.0.1:{port}"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", port]]
    for host in ("127.0.0.1", "127.0.0.2"):
        given = [
            "--host",
            host,
            "--cores",
            "2",
            "--memory",
            "1g",
            "--work-dir",
            str(tmp_path / host),
        ]
        commands.append([f"{deploy}.worker.Worker", *given, master])
    with ExitStack() as stack, (tmp_path / "log").open("w") as log:
        for command in commands:
            process = subprocess.Popen(
                [program, *command, "--webui-port", "0"],
                env=plain() | settings,
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        script = Path(__file__).with_name("speculated.py")
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path), master],
            env=plain() | settings, cwd=tmp_path, stdout=log, stderr=log,
            timeout=5 * PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode == 0, (tmp_path / "log").read_text()[-5000:]
    assert (tmp_path / "second").exists(), "no task was copied"
    client: Any = s3.s3
    store = S3Store("parked", endpoint="orders", prefix="delays", client=client)
    assert Counter(m.body.decode() for m in store.pending(1000)) == {
        f"body {n}": 1 for n in range(400)
    }
    assert sqs.kept() == []


def cluster_of(sqs: Stub, python: Path) -> dict[str, str]:
    """The environment of a driver, and so of its local cluster."""
    return sqs.environment(
        PYSPARK_PYTHON=str(python), SPARK_LOCAL_IP="127.0.0.1", JDK_JAVA_OPTIONS=QUICK_JAVA
    )


def plain() -> dict[str, str]:
    """An environment in which Python finds no sqsdelay by path."""
    return {k: v for k, v in environment({}).items() if k != "PYTHONPATH" and "SPARK" not in k}
