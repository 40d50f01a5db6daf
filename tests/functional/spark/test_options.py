"""Every option of every `pipeline` command, in a run of that command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.support.sqs_stub import REGION, Stub
from sqsdelay.cli import app
from sqsdelay.ledger.events import to_json
from tests.functional.spark import told
from tests.functional.spark.sent import ids
from tests.services.s3_server import S3Server

AWS = ["--profile", "p", "--region", REGION, "--verbose"]
USED: dict[str, set[str]] = {}


def run(command: str, *arguments: str | Path, code: int = 0) -> Any:
    """What it prints as JSON."""
    given = [str(each) for each in arguments]
    USED.setdefault(command, set()).update(each for each in given if each.startswith("--"))
    done = CliRunner().invoke(
        app,
        [*AWS, "pipeline", "--master", "local[2]", command, *given, "--json"],
        catch_exceptions=False,
    )
    assert done.exit_code == code, done.output
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", autouse=True)
def all_of_them() -> Iterator[None]:
    """At the end each option of each command was given."""
    yield
    group: Any = typer.main.get_command(app)
    for name, command in group.commands["pipeline"].commands.items():
        known = {option for each in command.params for option in each.opts if option[:2] == "--"}
        assert known - {"--json"} <= USED.get(name, known), name


@pytest.fixture(autouse=True)
def profile(spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(f"[profile p]\nregion = {REGION}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def prices(folder: Path) -> Path:
    (folder / "prices.json").write_text((files("sqsdelay.cost") / "prices.json").read_text())
    return folder / "prices.json"


def test_a_job_from_its_plan_to_its_replay(sqs: Stub, s3: S3Server, tmp_path: Path) -> None:
    """Planned, sent, reconciled and replayed, each with all it can be told."""
    rows = tmp_path / "rows"
    rows.write_text("n,due_at,body\n1,2035-07-01 09:00:00,x\n2,2001-01-01 00:00:00,late\n")
    job: list[str | Path] = [
        "--endpoint", "orders", "--key", "n", "--job", "j", "--receipts", tmp_path / "receipts",
        "--format", "csv", "--time-zone", "Europe/Berlin",
    ]  # fmt: skip
    sends: list[str | Path] = [
        *job, "--rejects", tmp_path / "rejects", "--unique", "--past-due", "reject", "--rate", "100",
        "--store", "s3://parked/delays", "--park-after", "30d", "--ledger", tmp_path / "ledger",
        "--concurrency", "2", "--hop", "900", "--max-delay", "3650d",
    ]  # fmt: skip
    assert run("schedule", rows, *sends, "--plan", code=1)["routes"] == {"store": 1}
    assert s3.s3.requests["PutObject"] == 0
    assert run("schedule", rows, *sends, code=1)["routes"] == {"store": 1}
    assert s3.s3.requests["PutObject"] > 0
    heard = told.received(told.sent("another"))
    (tmp_path / "seen.jsonl").write_text(to_json(heard) + "\n")
    run("events", tmp_path / "seen.jsonl", "--out", tmp_path / "seen")
    known: list[str | Path] = [
        *job, "--ledger-format", "parquet", "--as-of", "2036-01-01T00:00:00Z", "--grace", "60",
    ]  # fmt: skip
    (counted,) = run("reconcile", rows, tmp_path / "seen", *known, "--out", tmp_path / "all")[
        "endpoints"
    ]
    assert (counted["planned"], counted["lost"], counted["not_sent"]) == (2, 1, 1)
    again = run(
        "schedule", rows, "--replay", tmp_path / "seen", *known, "--include", "lost", "--rate", "9",
        "--store", "s3://parked/again", "--ledger", tmp_path / "again", "--rejects", tmp_path / "r",
    )  # fmt: skip
    assert (again["chosen"], again["sent"]) == (1, 1)
    assert len(list((tmp_path / "again").iterdir())) > 0
    assert not ids(sqs)


def test_what_is_read(tmp_path: Path) -> None:
    """A report of a table of events at an instant, and the cost of a workload, by prices of one's own."""
    events = [told.sent("m"), told.received(told.sent("m"))]
    (tmp_path / "ledger.jsonl").write_text("".join(to_json(event) + "\n" for event in events))
    run("events", tmp_path / "ledger.jsonl", "--out", tmp_path / "events")
    more: list[str | Path] = ["--prices", prices(tmp_path)]
    found = run(
        "report", tmp_path / "events", "--out", tmp_path / "report", "--format", "parquet", "--as-of",
        "2036-01-01T00:00:00Z", "--grace", "60", "--store", "s3", *more,
    )  # fmt: skip
    assert found["delivered"] == 1
    (tmp_path / "work.csv").write_text("delay_seconds,size\n60,500\n")
    cost = run(
        "cost", tmp_path / "work.csv", "--park-after", "2h", "--out", tmp_path / "cost", *more
    )
    assert "DynamoDB, parked after 2 h" in {each["way"] for each in cost["estimates"]}
