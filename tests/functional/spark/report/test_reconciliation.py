"""A job's table beside its receipts and a ledger, and what was lost, sent again."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner, Result

from benchmarks.support.sqs_stub import Stub
from sqsdelay.cli import app
from sqsdelay.core.message import Route
from sqsdelay.errors import ConfigurationError
from sqsdelay.ledger.events import Event, EventKind, Source, from_json
from sqsdelay.spark import reconcile, replay
from sqsdelay.spark.sink.rows import derived_id
from sqsdelay.spark.sink.send import save
from tests.functional.spark.sent import due_ms, ids, message_id
from tests.functional.spark.told import written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DUE_MS: Final = int(datetime(2035, 7, 1, 9, tzinfo=UTC).timestamp() * 1000)
HOUR_MS: Final = 3_600_000
LATE_MS: Final = DUE_MS + 10 * HOUR_MS
"""When the ledgers of these tests end."""

NAMES: Final = ("fine", "lost", "silent", "moved", "stopped", "refused", "later", "empty")


def happened(name: str, kind: EventKind, at_ms: int = DUE_MS, **more: Any) -> Event:
    source = Source.RECEIVER if kind is EventKind.RECEIVED else Source.CONSUMER
    known = {"endpoint": "orders", "source": source, "message_id": derived_id("job", name)}
    return Event(kind=kind, at_ms=at_ms, **{**known, **more})


EVENTS: Final = [
    happened("fine", EventKind.HANDED_OVER, DUE_MS - 5000, timer_seconds=5),
    happened("fine", EventKind.RECEIVED, DUE_MS + 10, due_ms=DUE_MS, late_ms=10),
    happened("lost", EventKind.HOP, DUE_MS - 5000),
    happened("moved", EventKind.RESCHEDULED, DUE_MS - 9000, due_ms=LATE_MS),
    happened("stopped", EventKind.CANCELLED, DUE_MS - 9000),
    happened("refused", EventKind.REJECTED, DUE_MS - 9000, reason="no queue"),
    happened("another-job", EventKind.RECEIVED, LATE_MS),
]
STATUSES: Final = {
    "fine": "delivered",
    "lost": "lost",
    "silent": "lost",
    "moved": "pending",
    "stopped": "cancelled",
    "refused": "rejected",
    "later": "pending",
    "empty": "not-sent",
}


def table(spark: SparkSession, *names: str, body: str = "x") -> DataFrame:
    bodies, dues = {"empty": ""}, {"later": LATE_MS}
    rows = [(bodies.get(name, body), name, dues.get(name, DUE_MS)) for name in names]
    known = spark.createDataFrame(rows, "body string, key string, due bigint")
    return known.selectExpr("body", "key", "timestamp_millis(due) due_at")


@pytest.fixture
def job(sqs: Stub, tmp_path: Path) -> dict[str, Any]:
    folders = {name: str(tmp_path / name) for name in ("receipts", "rejects")}
    return {"endpoint": "orders", "job": "job", **folders}


def test_what_became_of_a_job(
    spark: SparkSession, sqs: Stub, job: dict[str, Any], tmp_path: Path
) -> None:
    """Run twice, with a row that comes twice, and one that is no longer in the table: one row for each
    message, and one status."""
    rows = table(spark, *NAMES, "fine")
    save(rows.where("key != 'empty'"), **job)
    save(rows, **job)
    rows = rows.where("key != 'lost'")
    found = reconcile(rows, written(tmp_path, EVENTS), **job).collect()
    named = {derived_id("job", name): name for name in NAMES}
    assert {named[row.message_id]: row.status for row in found} == STATUSES
    assert {named[row.message_id] for row in found if not row.planned} == {"lost"}
    told = {named[row.message_id]: row for row in found}
    fine = told["fine"]
    assert (fine.rows, fine.late_ms, fine.received_ms) == (2, 0, DUE_MS + 10)
    assert all(told[name].sent_ms for name in NAMES if name != "empty")
    assert told["empty"].sent_ms is None
    assert told["silent"].last_seen == told["lost"].last_seen == "delay queue"
    assert told["moved"].due_ms == LATE_MS


def test_exactly_what_was_lost_is_sent_again(
    spark: SparkSession, sqs: Stub, job: dict[str, Any], tmp_path: Path
) -> None:
    """With ids, due times and bodies as before; once, until the grace has passed anew."""
    rows = table(spark, *NAMES)
    save(rows, **job)
    before = {message_id(entry): entry for entry in sqs.kept()}
    ledger = written(tmp_path, EVENTS)
    sqs.keep()
    counts = replay(rows, ledger, replay=LATE_MS - HOUR_MS // 2, **job)
    assert (counts["chosen"], counts["sent"], counts["rejected"]) == (2, 2, 0)
    again = {message_id(entry): entry for entry in sqs.kept()}
    assert set(again) == {derived_id("job", "lost"), derived_id("job", "silent")}
    for identity, entry in again.items():
        assert due_ms(entry) == due_ms(before[identity]) == DUE_MS
        assert entry["MessageBody"] == before[identity]["MessageBody"]
        assert entry["MessageDeduplicationId"] == before[identity]["MessageDeduplicationId"]
    # The ledger has grown meanwhile: one of them arrived after all, the other may still.
    arrived = happened("lost", EventKind.RECEIVED, LATE_MS + 1000)
    ledger = written(tmp_path, [*EVENTS, arrived])
    assert replay(rows, ledger, **job)["chosen"] == 0
    found = reconcile(rows, ledger, **job).where("replays > 0").collect()
    assert {row.status for row in found} == {"delivered", "pending"}
    # An hour after it was sent again it is lost once more, and only it is sent a third time.
    end = happened("another-job", EventKind.RECEIVED, LATE_MS + HOUR_MS * 3 // 4)
    counts = replay(rows, written(tmp_path, [*EVENTS, arrived, end]), **job)
    assert counts["sent"] == 1
    assert ids(sqs)[derived_id("job", "silent")] == 2


def test_every_kind_of_trouble_is_counted(
    spark: SparkSession, tmp_path: Path, job: dict[str, Any]
) -> None:
    """Of 2,000 messages 50 never arrive, 30 arrive twice and 20 early; each is told by its id."""
    names = [f"n{number}" for number in range(2000)]
    events = [happened("another-job", EventKind.RECEIVED, LATE_MS)]
    sent: dict[str, Any] = {"source": Source.SENDER, "route": Route.DELAY_QUEUE, "due_ms": DUE_MS}
    events += [happened(name, EventKind.SENT, DUE_MS - 86_400_000, **sent) for name in names]
    for number, name in enumerate(names[50:], 50):
        late_ms = -1500 if number < 70 else 40
        got = happened(name, EventKind.RECEIVED, DUE_MS + late_ms, due_ms=DUE_MS, late_ms=late_ms)
        copies = ("one", "two") if number >= 1970 else ("one",)
        events += [replace(got, sqs_message_id=copy) for copy in copies]
    ledger = written(tmp_path, events)
    known = {name: job[name] for name in ("endpoint", "job")}
    found = reconcile(table(spark, *names), ledger, **known).collect()
    named = {derived_id("job", name): number for number, name in enumerate(names)}
    told = {named[row.message_id]: row for row in found}
    assert len(found) == len(told) == 2000
    assert {n for n, row in told.items() if row.status == "lost"} == set(range(50))
    assert {n for n, row in told.items() if (row.late_ms or 0) < 0} == set(range(50, 70))
    assert {n for n, row in told.items() if row.duplicated} == set(range(1970, 2000))


def test_what_may_still_arrive_is_sent_again_only_if_asked(
    spark: SparkSession, sqs: Stub, job: dict[str, Any], tmp_path: Path
) -> None:
    """And what was moved to a later time is not: its old due time is past. Of an endpoint whose arrivals
    nobody records, nothing is lost: it is unknown."""
    rows = table(spark, *NAMES)
    save(rows, **job)
    sqs.keep()
    ledger = written(tmp_path, EVENTS)
    assert replay(rows, ledger, include=["pending", "not-sent"], **job)["sent"] == 1
    assert set(ids(sqs)) == {derived_id("job", "later")}
    blind = written(tmp_path, [happened("lost", EventKind.HOP, LATE_MS)])
    assert replay(rows, blind, **job)["chosen"] == 0
    statuses = {row.status for row in reconcile(rows, blind, **job).collect()}
    assert statuses == {"unknown", "pending", "not-sent"}
    told = r"include='delivered' is not replayed; use some of"
    with pytest.raises(ConfigurationError, match=told):
        replay(rows, ledger, include=["delivered"], **job)


def test_a_row_that_is_another_by_now_is_rejected(
    spark: SparkSession, sqs: Stub, job: dict[str, Any], tmp_path: Path
) -> None:
    """Of two rows with one id, that which was sent is sent again, wherever it stands."""
    rows = table(spark, "lost", "silent")
    save(rows, **job)
    sqs.keep()
    mixed = table(spark, "lost", "silent", body="y").unionByName(table(spark, "lost"))
    counts = replay(mixed, written(tmp_path, EVENTS), **job)
    assert (counts["chosen"], counts["sent"], counts["rejected"]) == (2, 1, 2)
    assert [entry["MessageBody"] for entry in sqs.kept()] == ["x"]
    assert "is not the one that was sent" in counts["reasons"]["InvalidMessage"]["example"]


def test_fifo_messages_keep_their_groups(
    spark: SparkSession, sqs: Stub, job: dict[str, Any], tmp_path: Path
) -> None:
    """And an endpoint is the same by its URL, its ARN and its name."""
    arn = "arn:aws:sqs:us-east-1:000000000000:payments.fifo"
    rows = table(spark, "lost").selectExpr(
        "*", "'g' message_group_id", "'d' message_deduplication_id", f"'{arn}' endpoint"
    )
    counts = save(rows, **job)
    assert counts["sent"] == 1, str(counts["reasons"])
    (before,) = sqs.kept()
    sqs.keep()
    seen = happened("other", EventKind.RECEIVED, LATE_MS, endpoint="payments.fifo")
    assert replay(rows, written(tmp_path, [seen]), **job)["sent"] == 1
    (again,) = sqs.kept()
    varying = ("Id", "MessageAttributes")
    for entry in (before, again):
        assert entry["MessageAttributes"]
        for name in varying:
            entry.pop(name, None)
    assert before == again


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["pipeline", *map(str, arguments)], catch_exceptions=False)


def test_the_commands(spark: SparkSession, sqs: Stub, tmp_path: Path) -> None:
    """Delays count from the job's first run, by its receipts. What was due at once and sent again is in
    its destination queue; only receivers who record can miss it."""
    (tmp_path / "rows.csv").write_text("order_id,delay_seconds,body\n1,0,x\n2,0.5,y\n3,86400,z\n")
    receipts = str(tmp_path / "r")
    known = ["--endpoint", "orders", "--key", "order_id", "--job", "j", "--receipts", receipts]
    assert run("schedule", tmp_path / "rows.csv", *known).exit_code == 0
    (instant,) = (tmp_path / "r/j").glob("_job.json")
    start_ms = json.loads(instant.read_text())["delay_start_ms"]
    one = derived_id("j", 1)
    got = happened("", EventKind.RECEIVED, start_ms + 2 * HOUR_MS, message_id=one)
    ledger = written(tmp_path, [got])
    sqs.keep()
    compared: list[str | Path] = [tmp_path / "rows.csv", ledger, *known]
    for out in ([], ["--out", str(tmp_path / "out")]):
        shown = run("reconcile", *compared, *out).stdout.splitlines()
        assert ["lost", "1"] in [line.split() for line in shown]
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row.message_id: row.status for row in found} == {
        one: "delivered", derived_id("j", 2): "lost", derived_id("j", 3): "pending",
    }  # fmt: skip
    assert all(row.planned and row.sent_ms for row in found)
    dues = {row.message_id: row.due_ms - start_ms for row in found}
    assert dues == {one: 0, derived_id("j", 2): 500, derived_id("j", 3): 86_400_000}
    recorded = tmp_path / "recorded"
    replayed: list[str | Path] = [tmp_path / "rows.csv", "--replay", ledger, *known]
    more = ["--include", "lost", "--rate", "100", "--hop", "900", "--ledger", str(recorded)]
    done = run("schedule", *replayed, *more)
    assert done.exit_code == 0
    assert "1 lost" in done.stdout.splitlines()
    assert "1 sent (1 direct)" in done.stdout
    assert [entry["MessageBody"] for entry in sqs.kept()] == ["y"]
    (line,) = "".join(file.read_text() for file in recorded.iterdir()).splitlines()
    event = from_json(line)
    assert (event.kind, event.message_id) == (EventKind.SENT, derived_id("j", 2))


def test_what_cannot_be_compared_is_one_line(
    spark: SparkSession, job: dict[str, Any], tmp_path: Path
) -> None:
    """No receipts of such a job; delays without the instant they count from; nothing in the ledger."""
    rows = table(spark, "fine")
    with pytest.raises(ConfigurationError, match="job 'job' has no receipts in"):
        reconcile(rows, written(tmp_path, EVENTS), **job)
    delayed = rows.selectExpr("body", "key", "1 delay_seconds")
    plain: dict[str, Any] = {"endpoint": "orders", "job": "job"}
    with pytest.raises(ConfigurationError, match="delay_seconds count from the job's first run"):
        reconcile(delayed, written(tmp_path, EVENTS), **plain)
    with pytest.raises(ConfigurationError, match="a replay compares rows with the job's receipts"):
        replay(rows, written(tmp_path, EVENTS), **plain)
    told = r"past_due='reject' cannot be kept by a replay.*leave"
    with pytest.raises(ConfigurationError, match=told):
        replay(rows, written(tmp_path, EVENTS), past_due="reject", **plain)
    with pytest.raises(ConfigurationError, match="the ledger has no events"):
        reconcile(rows, written(tmp_path, []), **plain)
    (row,) = reconcile(rows, written(tmp_path, EVENTS), **plain).collect()
    assert row.status == "delivered"
