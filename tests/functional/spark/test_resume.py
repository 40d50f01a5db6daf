"""A job killed by SIGKILL and run again goes on where it was, with the due times of its first run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from benchmarks.support.sqs_stub import REGION, Stub
from sqsdelay.cli import app
from tests.functional.spark.sent import due_ms, ids, message_id
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import SQSDELAY, environment

ROWS = 1_200


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """The driver, its Java and all workers at once, as a machine that vanishes."""
    everyone = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in everyone:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait(timeout=PATIENCE_SECONDS)


@pytest.mark.usefixtures("spark")
def test_ctrl_c_is_an_end(sqs: Stub, tmp_path: Path) -> None:
    """What was sent is noted, one line says how to go on; run again it sends the rest, no row twice."""
    table, rows = tmp_path / "rows.csv", 20 * ROWS
    table.write_text("id,delay_seconds,body\n" + "".join(f"{n},86400,x\n" for n in range(rows)))
    arguments = [
        "pipeline", "schedule", str(table), "--endpoint", "orders", "--key", "id", "--job", "stopped",
        "--receipts", str(tmp_path / "receipts"), "--json",
    ]  # fmt: skip
    settings = {
        "AWS_ENDPOINT_URL": sqs.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
    }
    sqs.set_latency(20)
    log = tmp_path / "log"
    with (
        log.open("w") as told,
        subprocess.Popen(
            [*SQSDELAY, *arguments], env=environment(settings), cwd=tmp_path, stdout=told, stderr=told,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(sqs.kept()) < ROWS:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, "nothing is being sent"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=PATIENCE_SECONDS) == 130, log.read_text()[-3000:]
    told_lines = [line for line in log.read_text().splitlines() if "WARNING" not in line]
    assert told_lines[-1] == "stopped: run the same command again, and it sends the rest"
    assert "Traceback" not in log.read_text(), log.read_text()[-6000:]
    sqs.set_latency(0)
    assert ROWS <= len(sqs.kept()) < rows
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert summary["sent"] + summary["already_sent"] == rows
    assert ids(sqs).total() == len(ids(sqs)) == rows


@pytest.mark.usefixtures("spark")
def test_a_killed_job_sends_only_what_is_missing(sqs: Stub, tmp_path: Path) -> None:
    """At most the last seconds' messages twice, under the same ids and due times: copies to SQS."""
    table = tmp_path / "rows.csv"
    table.write_text("id,delay_seconds,body\n" + "".join(f"{n},86400,x\n" for n in range(ROWS)))
    arguments = [
        "pipeline", "schedule", str(table), "--endpoint", "orders", "--key", "id", "--job", "killed",
        "--receipts", str(tmp_path / "receipts"), "--concurrency", "1", "--json",
    ]  # fmt: skip
    settings = {
        "AWS_ENDPOINT_URL": sqs.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
    }
    sqs.set_latency(100)
    command = [*SQSDELAY, *arguments]
    log = tmp_path / "log"
    with (
        log.open("w") as told,
        subprocess.Popen(
            command, env=environment(settings), cwd=tmp_path, stdout=told, stderr=told
        ) as process,
    ):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(sqs.kept()) < ROWS * 2 // 3:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, "nothing is being sent"
            time.sleep(0.05)
        kill_all(process)
    sqs.set_latency(0)
    sent_before = len(sqs.kept())
    assert sent_before < ROWS

    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 0
    assert summary["sent"] + summary["already_sent"] == ROWS
    assert summary["already_sent"] >= 200
    counted = ids(sqs)
    assert len(counted) == ROWS
    assert counted.total() == sent_before + summary["sent"]
    assert len({(message_id(entry), due_ms(entry)) for entry in sqs.kept()}) == ROWS
