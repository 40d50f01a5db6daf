"""`sqsdelay.spark.send` on the Sparks that AWS runs, 3.5 (Glue 5) and 4.0 (EMR), and over Spark Connect: a
process each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.sqs_stub import REGION, Stub
from sqsdelay.spark.sink.rows import derived_id
from sqsdelay.stores.s3 import S3Store
from tests.functional.spark.sent import ids
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import ROOT, environment
from tests.services.s3_server import S3Server


def run(script: str, packages: Path, stub: Stub, tmp_path: Path, **more: str) -> Any:
    """What a script of this folder prints, with other packages before those of this Python."""
    stub.keep()
    settings = {
        "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}",
        "PYSPARK_PYTHON": sys.executable,
        "AWS_ENDPOINT_URL": stub.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
        **more,
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), str(tmp_path)],
        env=environment(settings),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_send_on_older_sparks(version: str, one_stub: Stub, s3: S3Server, tmp_path: Path) -> None:
    """Rejects, receipts and counts as on the newest; run again, only what was not sent is tried. Into an
    S3 store likewise."""
    folder = ROOT / "build" / f"pyspark-{version}"
    if not folder.exists():
        pytest.skip(f"no {folder}: make older-spark")
    used, first, second, rejected, streamed, stored = run(
        "older_spark.py", folder, one_stub, tmp_path, AWS_ENDPOINT_URL_S3=s3.url
    )
    assert used.startswith(version)
    assert (first["sent"], first["rejected"]) == (99, 1)
    assert (second["sent"], second["already_sent"], second["rejected"]) == (0, 99, 1)
    assert rejected == [7, 7]
    assert stored == [[99, 0], [0, 99]]
    client: Any = s3.s3
    store = S3Store("parked", endpoint="orders", prefix="delays", client=client)
    assert {m.message_id for m in store.pending(200)} == {
        derived_id("stored", n) for n in range(100) if n != 7
    }
    assert streamed == [1]
    older = {derived_id("older", n): 1 for n in range(100) if n != 7}
    assert ids(one_stub) == older | {derived_id("arrivals", 1): 1}


def test_send_over_spark_connect(one_stub: Stub, tmp_path: Path) -> None:
    """The newest Spark, behind a server of its own; with pandas, which Connect needs, of an older one."""
    older = ROOT / "build" / "pyspark-4.0"
    if not older.exists():
        pytest.skip(f"no {older}: make older-spark")
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("pandas", "pytz"):
        (packages / name).symlink_to(older / name)
    first, second = run("over_connect.py", packages, one_stub, tmp_path)
    assert (first["sent"], first["rejected"]) == (19, 1)
    assert (second["sent"], second["already_sent"], second["rejected"]) == (0, 19, 1)
    assert ids(one_stub) == {derived_id("connect", n): 1 for n in range(20) if n != 7}
