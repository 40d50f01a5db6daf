"""`sqsdelay pipeline schedule`: files of three formats become delayed messages; also on a cluster whose
default file system is another than this machine's disk, as HDFS is on EMR."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from benchmarks.support.sqs_stub import Stub
from sqsdelay.cli import app
from sqsdelay.errors import InvalidSetting, SqsDelayError
from sqsdelay.ledger.events import EventKind, from_json
from sqsdelay.spark.sink.rows import derived_id
from tests.functional.spark.sent import due_ms, ids, message_id
from tests.functional.spark.test_resume import QUIET
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import run, typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


IN_UTC = datetime(2035, 7, 1, 9, tzinfo=UTC)


def schedule(*arguments: str | Path) -> Result:
    """The command in this process, on the tests' session, which it finds and uses."""
    told = ["pipeline", "schedule", *map(str, arguments), "--endpoint", "orders"]
    return CliRunner().invoke(app, told, catch_exceptions=False)


@pytest.fixture(autouse=True)
def running(spark: object, sqs: Stub) -> None:
    """A session, and an SQS that has been sent nothing."""


def test_csv(sqs: Stub, tmp_path: Path) -> None:
    """Quoted line breaks and doubled quotes are text; a line that cannot be read is kept whole."""
    table, rejects = tmp_path / "rows.csv", tmp_path / "rejects"
    table.write_text(
        "order_id,due_at,body\n"
        '1,2035-07-01T09:00:00Z,"two\nlines, ""quoted"""\n'
        "2,2035-07-01 11:00:00,x\n"
        "3,soon,y\n"
    )
    more = "--rejects", rejects, "--time-zone", "Europe/Berlin"
    done = schedule(table, "--key", "order_id", "--job", "j", *more)
    assert done.exit_code == 1
    assert "2 sent (2 delay-queue)" in done.stdout
    assert f"1 not sent: kept in {rejects}" in done.stdout.splitlines()
    assert "could not read due_at of this line: 3,soon,y" in done.stdout
    found = {message_id(e): (e["MessageBody"], due_ms(e)) for e in sqs.kept()}
    at = int(IN_UTC.timestamp() * 1000)
    assert found == {
        derived_id("j", 1): ('two\nlines, "quoted"', at),
        derived_id("j", 2): ("x", at),
    }
    (rejected,) = pq.read_table(rejects).to_pylist()
    assert rejected["_corrupt_record"] == "3,soon,y"


def test_json_lines(sqs: Stub, tmp_path: Path) -> None:
    """Objects are sent as JSON text; fields may first appear in a late line; events are recorded."""
    table, ledger = tmp_path / "rows.jsonl", tmp_path / "ledger"
    lines = [
        {"body": {"a": [1, 2]}, "delay_seconds": 1000.5, "message_id": f"m{n}"} for n in range(50)
    ]
    lines.append(lines.pop() | {"attributes": {"kind": "late", "n": 5}})
    table.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = schedule(table, "--ledger", ledger, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["sent"] == 50
    entries = {message_id(entry): entry for entry in sqs.kept()}
    assert set(entries) == {f"m{n}" for n in range(50)}
    assert {entry["MessageBody"] for entry in entries.values()} == {'{"a": [1, 2]}'}
    attributes = entries["m49"]["MessageAttributes"]
    assert attributes["kind"]["StringValue"] == "late"
    assert attributes["n"]["StringValue"] == "5"
    written = [line for file in ledger.glob("*.jsonl") for line in file.read_text().splitlines()]
    events = [from_json(line) for line in written]
    assert sorted(event.message_id for event in events) == sorted(ids(sqs))
    assert {event.kind for event in events} == {EventKind.SENT}


def test_parquet(sqs: Stub, tmp_path: Path) -> None:
    """Times without a zone, as pandas writes them, are read in --time-zone."""
    naive = pa.array([IN_UTC.replace(tzinfo=None)], pa.timestamp("us"))
    table = pa.table({"body": ["x"], "message_id": ["m"], "due_at": naive})
    pq.write_table(table, tmp_path / "rows.parquet")
    done = schedule(tmp_path / "rows.parquet")
    assert (done.exit_code, len(sqs.kept())) == (0, 1)
    assert due_ms(sqs.kept()[0]) == IN_UTC.timestamp() * 1000


def test_what_cannot_be_run_is_told_in_one_line(sqs: Stub, tmp_path: Path) -> None:
    """sqsdelay's own message, or Spark's first line; nothing is sent."""
    (tmp_path / "rows.csv").write_text("body,delay_seconds\nx,1\n")
    words = r"\Arows have no message id .*job .e.g. renewals-2027.\Z"
    with pytest.raises(SqsDelayError, match=words):
        schedule(tmp_path / "rows.csv")
    with pytest.raises(InvalidSetting, match=r"\A\[PATH_NOT_FOUND\].*nope.csv"):
        schedule(tmp_path / "nope.csv")
    for name in ("broken.csv.gz", "broken.parquet"):
        (tmp_path / name).write_bytes(b"\x1f\x8b nothing of the kind")
        form = name.split(".")[1]
        with pytest.raises(SqsDelayError, match=r"\A[^\n]+\Z"):
            schedule(tmp_path / name, "--format", form, "--key", "body", "--job", "j")
    with pytest.raises(SqsDelayError, match="time zone 'Nowhere/City' is not known to Spark"):
        schedule(tmp_path / "rows.csv", "--time-zone", "Nowhere/City")
    assert sqs.kept() == []


def test_a_key_that_is_not_unique(sqs: Stub, tmp_path: Path) -> None:
    """Refused before anything is sent, if asked; else copies are counted, and others rejected."""
    lines = [f"{n % 80},86400,text {n % 80}" for n in range(100)] + ["7,86400,another text"]
    (tmp_path / "rows.csv").write_text("\n".join(["Order_ID,DELAY_SECONDS,Body", *lines]) + "\n")
    given = (tmp_path / "rows.csv", "--key", "order_id", "--job", "j")
    with pytest.raises(SqsDelayError, match=r"20 ids occur more than once, in 41 rows .*'7' in 3"):
        schedule(*given, "--unique")
    assert sqs.kept() == []
    done = schedule(*given, "--rejects", tmp_path / "rejects", "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["sent"], told["repeated"], told["rejected"]) == (80, 21, 1)
    assert set(ids(sqs).values()) == {1}


def test_a_plan_sends_nothing(sqs: Stub, tmp_path: Path) -> None:
    """Rejects, repeated ids, routes, costs and time, of the table as it would be sent."""
    month = 30 * 86_400
    lines = [f"{n % 290},{month},x" for n in range(300)] + ["400,60,x", f"500,{month},"]
    (tmp_path / "rows.csv").write_text("\n".join(["id,delay_seconds,body", *lines]) + "\n")
    given = (tmp_path / "rows.csv", "--key", "id", "--job", "j", "--plan", "--receipts", tmp_path)
    done = schedule(*given, "--json")
    told = json.loads(done.stdout.splitlines()[-1])
    assert sqs.kept() == []
    assert not list(tmp_path.glob("j/*"))
    assert (told["sent"], told["repeated"], told["rejected"]) == (291, 10, 1)
    assert told["routes"] == {"delay-queue": 290, "direct": 1}
    plan = told["plan"]
    assert (plan["way"], plan["relayed"], plan["seconds_at_quota"]) == ("hops, in tens", 290, 1)
    assert float(plan["costs"]["hops, one by one"]) > float(plan["costs"][plan["way"]]) > 0
    assert "1 not sent" in schedule(*given).stdout.splitlines()


def test_a_master_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    """After what Spark's launcher prints; no trace."""
    done = run(
        "pipeline", "--master", "no", "schedule", str(tmp_path / "rows.csv"), "--endpoint", "o",
        env={},
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("sqsdelay: Spark does not start on no: ")
    assert "Traceback" not in done.stderr


def test_a_name_that_tells_no_format_needs_one(tmp_path: Path) -> None:
    """The message names the option."""
    done = schedule(tmp_path / "rows.txt")
    assert done.exit_code == 2
    assert "give --format parquet, csv or jsonl" in done.stderr


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_guides_command(sqs: Stub, tmp_path: Path, own: bool) -> None:
    """It prints one line; in a process of its own it starts Spark by itself, quietly."""
    (tmp_path / "renewals.csv").write_text(
        "order_id,delay_seconds,body\n" + "".join(f"{n},86400,renew {n}\n" for n in range(100))
    )
    guide = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    command, *_ = [line for line in guide.splitlines() if line.startswith("sqsdelay pipeline")]
    arguments = [
        str(tmp_path / word) if word in ("renewals.csv", "rejects") else word
        for word in command.split()[1:]
    ]
    if own:
        done = run(*arguments, env=sqs.environment())
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code, out, err = typed(*arguments)
    assert (code, set(err.splitlines()) - QUIET) == (0, set()), err
    assert out.startswith("100 sent (100 delay-queue) in ")
    assert set(ids(sqs)) == {derived_id("renewals-2027", n) for n in range(100)}


@pytest.fixture
def other(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The default of all who give no scheme; it has one folder, ``/data``."""
    context: Any = spark._jsc
    settings = context.hadoopConfiguration()
    host = f"other{uuid.uuid4().hex}"
    (tmp_path / "other").mkdir()
    settings.set(f"fs.viewfs.mounttable.{host}.link./data", (tmp_path / "other").as_uri())
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", f"viewfs://{host}/")
    monkeypatch.chdir(tmp_path)
    yield f"viewfs://{host}/data"
    settings.set("fs.defaultFS", before)


@pytest.mark.parametrize("by_uri", [False, True])
def test_a_path_is_this_machines_and_a_uri_the_clusters(
    sqs: Stub, tmp_path: Path, other: str, by_uri: bool
) -> None:
    """Input by either; what the job keeps is on the disk that its path names, and nothing elsewhere."""
    table = pa.table({"id": [1, 2, 3], "body": ["x", "", "z"], "delay_seconds": [86_400] * 3})
    pq.write_table(table, tmp_path / ("other/rows.parquet" if by_uri else "rows.parquet"))
    given = f"{other}/rows.parquet" if by_uri else "rows.parquet"
    kept = ["--rejects", f"{tmp_path}/rejects", "--receipts", f"{tmp_path}/receipts", "--job", "j"]
    kept += ["--key", "id", "--json"]
    done = schedule(given, *kept)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, told["sent"], told["rejected"]) == (1, 2, 1), done.output
    again = json.loads(schedule(given, *kept).stdout.splitlines()[-1])
    assert (again["sent"], again["already_sent"]) == (0, 2)
    assert ids(sqs) == {derived_id("j", n): 1 for n in (1, 3)}
    assert {row["id"] for row in pq.read_table(tmp_path / "rejects").to_pylist()} == {2}
    assert (tmp_path / "receipts/j/_job.json").exists()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["rows.parquet"] * by_uri


def test_what_workers_cannot_reach_is_refused_before_anything_is_sent(
    sqs: Stub, tmp_path: Path, other: str
) -> None:
    """Java knows the cluster's file system here, and Python's workers do not."""
    (tmp_path / "rows.jsonl").write_text('{"id": "1", "body": "x", "delay_seconds": 9}\n')
    for option in ("--rejects", "--receipts"):
        with pytest.raises(SqsDelayError, match=f"option {option[2:]}='{other}/kept' cannot be"):
            schedule("rows.jsonl", "--job", "j", "--key", "id", option, f"{other}/kept")
    assert sqs.kept() == []
