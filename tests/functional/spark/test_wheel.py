"""Rows due far ahead go into an S3 store's wheel: each once, whatever Spark and the driver do."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from benchmarks.support.sqs_stub import Stub
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.spark.sink import send
from sqsdelay.stores import S3Store
from sqsdelay.testing import ManualClock
from tests.functional.spark import sent
from tests.functional.spark.sent import ids
from tests.functional.spark.test_resume import kill_all, workers
from tests.functional.spark.test_sink import arrive, stream
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import SQSDELAY, environment
from tests.services.s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE = "s3://parked/delays"
DAY = 86_400
HOSTILE = ['"\\', "a\nb\rc\td", "\u2028é😀\x7f", '{"a": "\\u0000"}', "]]>&lt;"]


def save(rows: DataFrame, **options: Any) -> dict[str, Any]:
    return sent.save(rows, store=STORE, **options)


def table(spark: SparkSession, days: Sequence[int], **columns: str) -> DataFrame:
    """A row due on each of these days."""
    more = [f"{text} {name}" for name, text in columns.items()]
    return spark.createDataFrame([(n,) for n in days], "id long").selectExpr(
        "id", "concat('body ', id) body", f"id * {DAY} delay_seconds", *more
    )


def store_of(
    s3: S3Server, clock: ManualClock | None = None, *, endpoint: str = "orders"
) -> S3Store:
    client: Any = s3.s3
    return S3Store("parked", endpoint=endpoint, prefix="delays", client=client, clock=clock)


def waiting(s3: S3Server) -> Counter[str]:
    return Counter(message.body.decode() for message in store_of(s3).pending(10_000))


def released(s3: S3Server, until: datetime) -> list[tuple[StoredMessage, int]]:
    """What a dispatcher releases up to then, each with the time at which it got it."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    store, found = store_of(s3, clock), []
    while clock.now_ms() < until.timestamp() * 1000:
        with store.claim(500, due_by_ms=clock.now_ms()) as claim:
            found += [(message, clock.now_ms()) for message in claim.messages]
            claim.remove([message.message_id for message in claim.messages])
        if not claim.messages:
            clock.advance(DAY / 2)
    return found


def test_each_row_is_released_when_it_is_due(
    spark: SparkSession, sqs: Stub, s3: S3Server, tmp_path: Path
) -> None:
    """Hostile ids and bodies and attributes as they are; what is due soon goes to the queues, and what
    cannot be sent to the rejects."""
    now = datetime.now(UTC)
    rows: list[tuple[Any, ...]] = [
        (body, f"id-{n}\"\\'", now + timedelta(days=n + 1), {"k": body.strip()}, None)
        for n, body in enumerate(HOSTILE)
    ]
    rows += [
        ("soon", "soon", now + timedelta(hours=1), None, None),
        ("group", "group", now + timedelta(days=9), None, "g"),
        ("", "empty", now + timedelta(days=9), None, None),
        ("\ufffe", "forbidden", now + timedelta(days=9), None, None),
        ("x", "no id\n", now + timedelta(days=9), None, None),
        ("x", "eleven years", now + timedelta(days=11 * 365), None, None),
        ("x" * 2**20, "too large", now + timedelta(days=9), None, None),
    ]
    schema = (
        "body string, message_id string, due_at timestamp, attributes map<string,string>, "
        "message_group_id string"
    )
    found = spark.createDataFrame(rows, schema).selectExpr(
        "*", "if(message_id = 'group', 'other', 'orders') endpoint"
    )
    summary = save(found.coalesce(2), rejects=tmp_path)
    assert summary["routes"] == {"store": 6, "delay-queue": 1}
    rejected = spark.read.parquet(str(tmp_path)).collect()
    assert {row.message_id for row in rejected} == {
        "empty", "forbidden", "no id\n", "eleven years", "too large",
    }  # fmt: skip
    assert set(ids(sqs)) == {"soon"}
    got = released(s3, now + timedelta(days=11))
    assert {m.message_id: m.body.decode() for m, _ in got} == {
        **{row[1]: row[0] for row in rows[: len(HOSTILE)]}
    }
    assert len(got) == len(HOSTILE)
    due = {row[1]: row[2] for row in rows}
    for message, at_ms in got:
        assert message.due_ms == -(-due[message.message_id].timestamp() * 1000 // 1)
        assert 0 <= at_ms - message.due_ms <= DAY * 1000
        assert message.attributes["k"]["StringValue"] == message.body.decode().strip()
    (other,) = store_of(s3, endpoint="other").pending(10)
    assert (other.message_id, other.group_id) == ("group", "g")


def test_a_task_that_ran_twice_counts_once(spark: SparkSession, sqs: Stub, s3: S3Server) -> None:
    """All workers are killed when the first task has staged its objects; the second attempts count."""
    killed: list[int] = []

    def kill(_: str, key: str) -> None:
        if key.endswith(".marks") and not killed:
            killed.extend(worker.pid for worker in workers(spark))
            for worker in workers(spark):
                worker.kill()

    s3.before = kill
    save(table(spark, range(1, 41)).repartition(2), key="id", job="twice")
    assert killed
    assert waiting(s3) == Counter(f"body {n}" for n in range(1, 41))
    written = sum(key.endswith(".gz") for key in s3.s3.objects)
    released(s3, datetime.now(UTC) + timedelta(days=42))
    assert written > 0
    assert not any(key.endswith(".gz") for key in s3.s3.objects)
    assert sqs.kept() == []


def kill_a_driver(sqs: Stub, s3: S3Server, tmp_path: Path) -> None:
    """In a process of its own, between staging and commit: nothing counts."""
    rows = [{"id": n, "body": f"body {n}", "delay_seconds": n * DAY} for n in range(1, 31)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = sqs.environment(AWS_ENDPOINT_URL_S3=s3.url)
    reached: list[str] = []

    def stop(_: str, key: str) -> None:
        if key.endswith("record.json") and _ == "PUT":
            reached.append(key)
            time.sleep(PATIENCE_SECONDS)

    s3.before = stop
    command = [
        *SQSDELAY, "pipeline", "schedule", str(file), "--endpoint", "orders", "--key", "id",
        "--job", "killed", "--store", STORE, "--receipts", str(tmp_path / "receipts"),
    ]  # fmt: skip
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, env=environment(settings), cwd=tmp_path, stdout=log, stderr=log
        ) as process,
    ):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached:
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        kill_all(process)
    s3.before = lambda _, __: None
    assert waiting(s3) == Counter()


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_job_run_again_stores_what_is_missing(
    sqs: Stub, s3: S3Server, tmp_path: Path, spark: SparkSession, killed: bool
) -> None:
    """Each row once, and the next time none. A row that has changed is rejected, a new one is stored."""
    if killed:
        kill_a_driver(sqs, s3, tmp_path)
    given = {
        "key": "id", "job": "killed", "receipts": str(tmp_path / "receipts"),
        "rejects": str(tmp_path / "rejects"),
    }  # fmt: skip
    summaries = []
    every = table(spark, range(1, 31))
    changed = table(spark, [*range(2, 31), 31]).union(
        table(spark, [1]).selectExpr("id", "'other' body", "delay_seconds")
    )
    for each in (every, every, changed):
        summary = save(each.repartition(2), **given)
        summaries.append((summary["sent"], summary["already_sent"], summary["rejected"]))
    assert summaries == [(30, 0, 0), (0, 30, 0), (1, 29, 1)]
    assert waiting(s3) == Counter(f"body {n}" for n in range(1, 32))
    noted = spark.read.parquet(str(tmp_path / "receipts" / "killed")).collect()
    assert len({row.message_id for row in noted}) == len(noted) == 31
    assert {row.route for row in noted} == {"store"}


def test_a_job_run_again_reads_its_share(
    spark: SparkSession, sqs: Stub, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the marks of a run that was shared out by ids, each task reads those of the task before it."""
    monkeypatch.setattr(send, "STAGED_PER_TASK", 25)
    asked: list[str] = []
    s3.before = lambda method, key: asked.append(key) if method == "GET" else None
    options: Any = {"endpoint": "orders", "store": STORE, "key": "id", "job": "again"}
    for days, new in ((201, 200), (211, 10)):
        asked.clear()
        counts = send.save(table(spark, range(1, days)), **options)
        assert (counts["sent"], counts["already_sent"]) == (new, days - 1 - new)
    marks = [key for key in asked if key.endswith(".marks")]
    assert len(marks) == len(set(marks)) == 8
    assert store_of(s3).pending_count() == 210


@pytest.mark.nightly
def test_two_million_rows_of_a_small_driver(spark: SparkSession, sqs: Stub, s3: S3Server) -> None:
    """Of 1 GiB: it is told of tasks, not of rows."""
    assert spark.conf.get("spark.driver.memory") == "1g"
    rows = spark.range(0, 2_000_000, 1, 8).selectExpr(
        "id", "concat('body ', id) body", f"(id % 300 + 1) * {DAY} delay_seconds"
    )
    save(rows, key="id", job="large")
    assert store_of(s3).pending_count() == 2_000_000
    assert sqs.kept() == []


def test_rows_of_a_named_job_are_few_objects(
    spark: SparkSession, sqs: Stub, s3: S3Server, tmp_path: Path
) -> None:
    """One for a slot and task, not one for a row; and the ledger is told of each message."""
    save(table(spark, [40] * 300, message_id="uuid()").drop("id").coalesce(1))
    assert sum(key.endswith(".gz") for key in s3.s3.objects) == 1
    assert store_of(s3).pending_count() == 300
    save(table(spark, range(41, 44)), key="id", job="told", ledger=str(tmp_path / "ledger"))
    files = (tmp_path / "ledger").iterdir()
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert [json.loads(line)["route"] for line in lines] == ["store"] * 3
    assert store_of(s3).pending_count() == 303
    assert sqs.kept() == []


def test_a_stream_that_is_started_again(
    spark: SparkSession, sqs: Stub, s3: S3Server, tmp_path: Path
) -> None:
    """Its micro-batch was published, and failed then: run again, it stores nothing twice."""
    rows = [{"body": f"body {n}", "key": n, "delay_seconds": n * DAY} for n in range(1, 21)]
    arrive(tmp_path, "1.json", *rows, {"body": "", "key": 99, "delay_seconds": DAY})
    with pytest.raises(PySparkException, match="1 of 21 rows could not be sent"):
        stream(spark, tmp_path, store=STORE).start().awaitTermination()
    kept = {"rejects": tmp_path / "rejects", "summary": tmp_path / "summary", "store": STORE}
    stream(spark, tmp_path, **kept).start().awaitTermination()
    summary = json.loads((kept["summary"] / "0.json").read_text())  # type: ignore[operator]
    assert (summary["sent"], summary["already_sent"], summary["rejected"]) == (0, 20, 1)
    arrive(tmp_path, "2.json", {"body": "body 21", "key": 21, "delay_seconds": 21 * DAY})
    stream(spark, tmp_path, **kept).start().awaitTermination()
    assert waiting(s3) == Counter(f"body {n}" for n in range(1, 22))
    assert sqs.kept() == []


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, sqs: Stub, s3: S3Server) -> None:
    """Rows that do not come at all fail the job; what was staged does not count and is deleted."""
    rows = table(spark, range(1, 9)).repartition(2)
    bad = rows.selectExpr("if(id = 8, raise_error('no row'), body) body", "id", "delay_seconds")
    with pytest.raises(PySparkException):
        save(bad, key="id", job="failing", retry_seconds=1)
    assert waiting(s3) == Counter()
    save(rows, key="id", job="failing")
    assert waiting(s3) == Counter(f"body {n}" for n in range(1, 9))
    assert sqs.kept() == []


def test_slow_and_refusing_s3_loses_nothing(spark: SparkSession, sqs: Stub, s3: S3Server) -> None:
    """503s and lost answers while objects and decisions are written."""
    calls = Counter[str]()

    def refuse(method: str, key: str) -> None:
        calls[key] += 1
        if method == "PUT" and calls[key] == 1 and hash(key) % 2:
            raise OSError("slow down")

    s3.before = refuse
    s3.after = lambda method, key: refuse(method, f"{key} answered")
    save(table(spark, range(1, 31)).repartition(2), key="id", job="refused")
    assert sqs.kept() == []
    s3.before = s3.after = lambda _, __: None
    assert waiting(s3) == Counter(f"body {n}" for n in range(1, 31))
