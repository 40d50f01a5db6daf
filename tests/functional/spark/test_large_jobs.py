"""Jobs as large as their guarantees speak of: millions of rows in the smallest driver, and copies by real
speculation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.support.sqs_stub import Stub
from sqsdelay.spark.sink.rows import derived_id
from sqsdelay.stores.s3 import S3Store
from sqsdelay.stores.s3.layout import parse
from tests.functional.spark.sent import due_ms, ids, message_id, on_the_stub
from tests.functional.spark.speculated import ROWS
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import ROOT, SQSDELAY, environment
from tests.services.s3_server import S3Server

pytestmark = pytest.mark.nightly


def settings(sqs: Stub, s3: S3Server, **more: str) -> dict[str, str]:
    return environment(on_the_stub(sqs, AWS_ENDPOINT_URL_S3=s3.url, **more))


def test_two_million_rows_in_a_driver_of_one_gigabyte(
    sqs: Stub, s3: S3Server, tmp_path: Path
) -> None:
    """Each is stored once, in few objects; the same job again stores none."""
    rows = 2_000_000
    days = pa.array(range(rows), pa.int64())
    table = {"id": days, "delay_seconds": pa.array(86_400 * (1 + n % 30) for n in range(rows))}
    bodies = pa.array(["a reminder of two hundred bytes".ljust(200, ".")] * rows)
    pq.write_table(pa.table({**table, "body": bodies}), tmp_path / "rows.parquet")
    command = [
        *SQSDELAY, "pipeline", "schedule", str(tmp_path / "rows.parquet"), "--endpoint", "orders",
        "--key", "id", "--job", "many", "--store", "s3://parked/delays", "--json",
    ]  # fmt: skip
    for sent in (rows, 0):
        done = subprocess.run(
            command,
            # Spark's own default, told aloud: a driver's heap.
            env=settings(sqs, s3, SPARK_DRIVER_MEMORY="1g"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        told = json.loads(done.stdout.splitlines()[-1])
        assert (told["sent"], told["already_sent"], told["rejected"]) == (sent, rows - sent, 0)
    slots = "delays/orders/v1/"
    names = [parse(key.removeprefix(slots)) for key in s3.s3.objects if key.endswith(".gz")]
    counts = [each[0].count for each in names if each is not None]
    assert sum(counts) == rows
    assert len(counts) < rows / 1000
    assert sqs.kept() == []


def test_copies_by_speculation_count_once(sqs: Stub, s3: S3Server, tmp_path: Path) -> None:
    """Both attempts on a task send and stage all its rows: the store holds each once, and copies in the
    queues have one id and one due time."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("speculated.py")), str(tmp_path)],
        env=settings(
            sqs,
            s3,
            PYTHONPATH=str(ROOT),
            PYSPARK_PYTHON=sys.executable,
            SPARK_LOCAL_IP="127.0.0.1",
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "copied").exists()
    told = json.loads((tmp_path / "summary.json").read_text())
    assert told["routes"] == {"delay-queue": ROWS // 2, "store": ROWS // 2}
    client: Any = s3.s3
    store = S3Store("parked", endpoint="orders", prefix="delays", client=client)
    stored = [message.message_id for message in store.pending(1000)]
    assert sorted(stored) == sorted(derived_id("copied", n) for n in range(0, ROWS, 2))
    sent = ids(sqs)
    assert set(sent) == {derived_id("copied", n) for n in range(1, ROWS, 2)}
    assert set(sent.values()) == {1, 2}
    assert len({(message_id(entry), due_ms(entry)) for entry in sqs.kept()}) == len(sent)
