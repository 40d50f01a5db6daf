"""A job killed by SIGKILL and run again goes on where it was, with the due times of its first run; killed
workers lose nothing, and what came twice is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from typer.testing import CliRunner

from benchmarks.support.sqs_stub import Stub
from sqsdelay.cli import app
from tests.functional.spark.sent import due_ms, ids, message_id
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import SQSDELAY, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ROWS = 1_200
QUIET = {"WARNING: Using incubator modules: jdk.incubator.vector", ""}
"""What Java says where sqsdelay says nothing."""


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """The driver, its Java and all workers at once, as a machine that vanishes."""
    everyone = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in everyone:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait(timeout=PATIENCE_SECONDS)


@contextmanager
def begun(
    sqs: Stub, folder: Path, job: str, rows: int, *more: str, sent: int
) -> Iterator[tuple[list[str], subprocess.Popen[bytes]]]:
    """A job's command, in a process of its own that has sent so many rows; what it says is in ``log``."""
    table, log, before = folder / "rows.csv", folder / "log", sqs.requests()
    table.write_text("id,delay_seconds,body\n" + "".join(f"{n},86400,x\n" for n in range(rows)))
    arguments = [
        "pipeline", "schedule", str(table), "--endpoint", "orders", "--key", "id", "--job", job,
        "--receipts", str(folder / "receipts"), "--json", *more,
    ]  # fmt: skip
    with (
        log.open("w") as told,
        subprocess.Popen(
            [*SQSDELAY, *arguments],
            env=environment(sqs.environment()),
            cwd=folder,
            stdout=told,
            stderr=told,
            start_new_session=True,
        ) as process,
    ):
        deadline = time.monotonic() + PATIENCE_SECONDS
        # Requests first: all that is kept, twenty times a second, takes more time than the job.
        while 10 * (sqs.requests() - before)["SendMessageBatch"] < sent or len(sqs.kept()) < sent:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, "nothing is being sent"
            time.sleep(0.05)
        assert set(log.read_text().splitlines()) <= QUIET
        yield arguments, process


def run_again(arguments: list[str]) -> dict[str, Any]:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


@pytest.mark.usefixtures("spark")
def test_ctrl_c_is_an_end(sqs: Stub, tmp_path: Path) -> None:
    """What was sent is noted, one line says how to go on; run again it sends the rest, no row twice."""
    rows = 5 * ROWS
    sqs.set_latency(200)
    more = ("--concurrency", "2")
    with begun(sqs, tmp_path, "stopped", rows, *more, sent=ROWS) as (arguments, process):
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(timeout=PATIENCE_SECONDS)
    log = (tmp_path / "log").read_text()
    assert code == 130, log[-3000:]
    lines = [line for line in log.splitlines() if "WARNING" not in line]
    assert lines[-1] == "stopped: run the same command again, and it sends the rest"
    # Of its own pipe, which the end of the session breaks, Spark's daemon may tell.
    traced = [line for line in lines if line.lstrip().startswith('File "')]
    assert [line for line in traced if "pyspark/daemon.py" not in line] == [], log[-6000:]
    sqs.set_latency(0)
    assert ROWS <= len(sqs.kept()) < rows
    summary = run_again(arguments)
    assert summary["sent"] + summary["already_sent"] == rows
    assert ids(sqs).total() == len(ids(sqs)) == rows


@pytest.mark.nightly
@pytest.mark.usefixtures("spark")
def test_a_killed_job_sends_only_what_is_missing(sqs: Stub, tmp_path: Path) -> None:
    """At most the last seconds' messages twice, under the same ids and due times: copies to SQS."""
    sqs.set_latency(100)
    more = ("--concurrency", "1")
    with begun(sqs, tmp_path, "killed", ROWS, *more, sent=ROWS * 2 // 3) as (arguments, process):
        kill_all(process)
    sqs.set_latency(0)
    sent_before = len(sqs.kept())
    assert sent_before < ROWS
    summary = run_again(arguments)
    assert summary["sent"] + summary["already_sent"] == ROWS
    assert summary["already_sent"] >= 200
    counted = ids(sqs)
    assert len(counted) == ROWS
    assert counted.total() == sent_before + summary["sent"]
    assert len({(message_id(entry), due_ms(entry)) for entry in sqs.kept()}) == ROWS


def workers(spark: SparkSession) -> list[psutil.Process]:
    """The processes that run the tasks' Python: the children of Spark's daemon."""
    gateway: Any = spark.sparkContext._gateway
    java = psutil.Process(gateway.proc.pid)
    daemons = [p for p in java.children(recursive=True) if _is_daemon(p)]
    return [p for p in daemons if p.parent() in daemons]


def _is_daemon(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return "pyspark.daemon" in process.cmdline()
    return False


def kill_once(spark: SparkSession, sqs: Stub, *, after: int) -> list[psutil.Process]:
    """Kill the workers when so many messages were sent; returns them."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(sqs.kept()) < after:
        assert time.monotonic() < deadline, "nothing is being sent"
        time.sleep(0.05)
    killed = workers(spark)
    for worker in killed:
        worker.kill()
    sqs.set_latency(0)
    return killed


def test_killed_workers_lose_nothing(spark: SparkSession, sqs: Stub, tmp_path: Path) -> None:
    """The job finishes; every message was sent, some twice, with one id and one due time; and a
    row that cannot be sent is rejected once, though two attempts came across it."""
    rows = spark.range(ROWS, numPartitions=2).selectExpr(
        "if(id % 600 = 3, '', 'x') body", "id key", "86400 delay_seconds"
    )
    writer = rows.write.format("sqsdelay").mode("append")
    writer.options(endpoint="orders", job="killed", concurrency=1, rejects=str(tmp_path))
    sqs.set_latency(30)
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_once, spark, sqs, after=ROWS // 4)
        writer.save()
    assert killed.result()
    counted = ids(sqs)
    assert len(counted) == ROWS - 2
    duplicates = counted.total() - len(counted)
    assert ROWS // 4 - 20 <= duplicates < ROWS
    assert set(counted.values()) == {1, 2}
    assert len({(message_id(entry), due_ms(entry)) for entry in sqs.kept()}) == len(counted)
    rejected = spark.read.parquet(str(tmp_path)).collect()
    assert sorted(row.key for row in rejected) == [3, 603]
