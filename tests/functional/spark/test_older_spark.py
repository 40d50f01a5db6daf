"""`sqsdelay.spark.send` on the Sparks that AWS runs, 3.5 (Glue 5) and 4.0 (EMR); and it, the report and the
reconciliation over Spark Connect: a process each."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyarrow import parquet

from benchmarks.support.sqs_stub import Stub
from sqsdelay.ledger.events import Event, EventKind, Source, to_json
from sqsdelay.spark.sink.rows import derived_id
from sqsdelay.stores import S3Store
from tests.functional.spark import told
from tests.functional.spark.older_spark import JOBS
from tests.functional.spark.sent import ids, printed
from tests.services.processes import ROOT
from tests.services.s3_server import S3Server


def run(script: str, packages: Path, stub: Stub, tmp_path: Path, *told: str, **more: str) -> Any:
    """What a script of this folder prints, with other packages before those of this Python."""
    stub.keep()
    settings = stub.environment(PYTHONPATH=f"{packages}{os.pathsep}{ROOT}")
    settings |= {"PYSPARK_PYTHON": sys.executable} | more
    command = [sys.executable, str(Path(__file__).with_name(script)), str(tmp_path), *told]
    return json.loads(printed(command, tmp_path, settings))


@pytest.mark.parametrize("version", ["3.5", pytest.param("4.0", marks=pytest.mark.nightly)])
def test_send_on_older_sparks(version: str, one_stub: Stub, s3: S3Server, tmp_path: Path) -> None:
    """Rejects, receipts and counts as on the newest; run again, only what was not sent is tried. Into an
    S3 store likewise."""
    folder = ROOT / "build" / f"pyspark-{version}"
    if not folder.exists():
        pytest.skip(f"no {folder}: make older-spark")
    used, refused, first, second, rejected, streamed, stored, named = run(
        "older_spark.py", folder, one_stub, tmp_path, AWS_ENDPOINT_URL_S3=s3.url
    )
    assert used.startswith(version)
    assert f"needs Spark 4.1 or newer, and this is {used}: use sqsdelay.spark.send(" in refused
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
    assert named == [[2, 0, rejects] for rejects in range(1, len(JOBS) + 1)]
    assert {path.name for path in (tmp_path / "named").iterdir()} == {"receipts", "rejects"}
    named_ids = {derived_id(job, n): 1 for job in JOBS for n in (0, 2)}
    older = {derived_id("older", n): 1 for n in range(100) if n != 7}
    assert ids(one_stub) == older | {derived_id("arrivals", 1): 1} | named_ids


@pytest.fixture(scope="module")
def over_connect(
    one_stub: Stub, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Counter[str], Path]:
    """What the newest Spark tells behind a server of its own, with pandas, which Connect needs, of an older
    one; how often each message was sent; and where the report is."""
    folder = tmp_path_factory.mktemp("connect")
    packages = with_pandas(folder)
    (folder / "ledger.jsonl").write_text("\n".join(told.lines()))
    arrived = [replace(LATE, message_id=derived_id("connect", n)) for n in range(3, 20)]
    (folder / "job.jsonl").write_text("\n".join(to_json(event) for event in arrived))
    return run("over_connect.py", packages, one_stub, folder), ids(one_stub), folder / "report"


def with_pandas(folder: Path) -> Path:
    """Connect's, of an older Spark."""
    older = ROOT / "build" / "pyspark-4.0"
    if not older.exists():
        pytest.skip(f"no {older}: make older-spark")
    packages = folder / "packages"
    packages.mkdir()
    for name in ("pandas", "pytz"):
        (packages / name).symlink_to(older / name)
    return packages


@pytest.mark.nightly
def test_a_server_without_the_package_is_one_line(
    one_stub: Stub, tmp_path: Path, python_without_sqsdelay: Path
) -> None:
    """With the remedy, not the trace of a worker. The client has not opened the store, the server's."""
    packages, bare = with_pandas(tmp_path), tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {python_without_sqsdelay} "$@"\n')
    bare.chmod(0o755)
    told = run("over_connect.py", packages, one_stub, tmp_path, "bare", PYSPARK_PYTHON=str(bare))
    assert told.startswith("Spark's workers have no sqsdelay: python -m sqsdelay.spark.archive")
    assert "\n" not in told
    assert not (tmp_path / "the-servers.db").exists()
    assert one_stub.kept() == []


LATE: Final = Event(
    kind=EventKind.RECEIVED,
    at_ms=2_100_000_000_000,
    endpoint="orders",
    message_id="",
    source=Source.RECEIVER,
)
"""After what the job sent was due."""


@pytest.mark.nightly
def test_send_over_spark_connect(over_connect: tuple[dict[str, Any], Counter[str], Path]) -> None:
    """Once, and what was lost once more; a store that is missing, which workers find out, is one line."""
    found, sent, _ = over_connect
    first, second = found["sent"]
    assert (first["sent"], first["rejected"]) == (19, 1)
    assert (second["sent"], second["already_sent"], second["rejected"]) == (0, 19, 1)
    assert found["events"] == [17, 0]
    assert "\n" not in found["missing"]
    assert found["statuses"] == {"delivered": 17, "lost": 3}
    assert (found["again"]["chosen"], found["again"]["sent"]) == (3, 3)
    assert sent == {derived_id("connect", n): 2 if n < 3 else 1 for n in range(20) if n != 7}


@pytest.mark.nightly
def test_the_report_over_spark_connect(
    over_connect: tuple[dict[str, Any], Counter[str], Path],
) -> None:
    """A page and tables, with the statuses of a classic session; a state is kept."""
    found, _, report = over_connect
    rows = parquet.read_table(told.tables(report) / "messages").to_pylist()
    assert {row["message_id"]: row["status"] for row in rows} == told.statuses()
    assert found["figures"]["bad_lines"] == len(told.BAD)
    assert (found["figures"]["messages"], found["figures"]["lost"]) == (13, 2)
    assert "<title>sqsdelay report" in (report / "report.html").read_text()
    assert "there is no such file, folder or match" in found["refused"]
    assert {path.name for path in report.iterdir()} == {"report.html", "report.json", "tables-1"}
