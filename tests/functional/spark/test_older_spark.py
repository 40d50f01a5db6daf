"""`sqsdelay.spark.send` on the Sparks that AWS runs, 3.5 (Glue 5) and 4.0 (EMR): a process each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.support.sqs_stub import REGION, Stub
from sqsdelay.spark.sink.rows import derived_id
from tests.functional.spark.sent import ids
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import ROOT, environment


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_send_on_older_sparks(version: str, one_stub: Stub, tmp_path: Path) -> None:
    """Rejects, receipts and counts as on the newest; run again, only what was not sent is tried."""
    folder = ROOT / "build" / f"pyspark-{version}"
    if not folder.exists():
        pytest.skip(f"no {folder}: make older-spark")
    one_stub.keep()
    settings = {
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "PYSPARK_PYTHON": sys.executable,
        "AWS_ENDPOINT_URL": one_stub.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("older_spark.py")), str(tmp_path)],
        env=environment(settings),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    used, first, second, rejected, streamed = json.loads(done.stdout.splitlines()[-1])
    assert used.startswith(version)
    assert (first["sent"], first["rejected"]) == (99, 1)
    assert (second["sent"], second["already_sent"], second["rejected"]) == (0, 99, 1)
    assert rejected == [7, 7]
    assert streamed == [1]
    older = {derived_id("older", n): 1 for n in range(100) if n != 7}
    assert ids(one_stub) == older | {derived_id("arrivals", 1): 1}
