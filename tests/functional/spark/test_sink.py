"""The data source: rows of a table become delayed messages, each under an id of its own."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from benchmarks.spark import sink as spark_sink
from benchmarks.spark import throttled
from benchmarks.support.sqs_stub import Stub
from sqsdelay.core.message import DELAY_SECONDS, MESSAGE_ID
from sqsdelay.core.readable import parse_due_at
from sqsdelay.spark.sink.rows import derived_id
from sqsdelay.stores import open_store
from tests.functional.spark.sent import due_ms, ids, message_id, save

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


ROWS = """
    select concat('body ', id) body, concat('m', id) message_id, {due} from range({rows})
"""


def messages(spark: SparkSession, rows: int, due: str = "86400 delay_seconds") -> DataFrame:
    return spark.sql(ROWS.format(rows=rows, due=due))


def test_every_row_is_sent_once_in_full_batches(spark: SparkSession, sqs: Stub) -> None:
    """All rows, all columns, as few requests as SQS allows; and the counts are told."""
    rows = messages(spark, 500).selectExpr(
        "*", "map('kind', 'reminder') attributes", "'orders' endpoint"
    )
    before = sqs.requests()
    summary = save(rows.coalesce(2))
    entries = sqs.kept()
    assert {entry["queue"] for entry in entries} == {"orders-delay.fifo"}
    assert sorted(map(message_id, entries)) == sorted(f"m{i}" for i in range(500))
    assert {entry["MessageBody"] for entry in entries} == {f"body {i}" for i in range(500)}
    assert {entry["MessageAttributes"]["kind"]["StringValue"] for entry in entries} == {"reminder"}
    assert (sqs.requests() - before)["SendMessageBatch"] == 50
    none = ("tasks_failed", "rejected", "repeated", "already_sent", "throttled", "retried")
    assert summary == dict.fromkeys(none, 0) | {
        "committed": True, "tasks": 2, "sent": 500, "routes": {"delay-queue": 500}, "reasons": {},
    }  # fmt: skip


def test_a_relative_delay_counts_from_one_instant_for_the_whole_job(
    spark: SparkSession, sqs: Stub
) -> None:
    """A row that is sent again must keep its due time: no attempt counts from its own now."""
    before_ms = time.time_ns() // 1_000_000
    save(messages(spark, 40))
    after_ms = time.time_ns() // 1_000_000
    (due,) = {due_ms(entry) for entry in sqs.kept()}
    assert before_ms + 86_400_000 <= due <= after_ms + 86_400_000 + 1000


def test_a_timestamp_is_the_instant_the_sessions_time_zone_makes_it(
    spark: SparkSession, sqs: Stub
) -> None:
    """TIMESTAMP is an instant; its text is read in the session's time zone, summer time included."""
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        save(messages(spark, 1, "timestamp'2035-07-01 09:00:00' due_at"))
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        save(messages(spark, 1, "timestamp'2035-07-01 09:00:00.0001' due_at"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    berlin, los_angeles = (due_ms(entry) for entry in sqs.kept())
    assert berlin == parse_due_at("2035-07-01T07:00:00Z").timestamp() * 1000
    assert los_angeles == parse_due_at("2035-07-01T16:00:00.001Z").timestamp() * 1000


def test_ids_are_derived_from_key_and_job(spark: SparkSession, sqs: Stub) -> None:
    """The same job on the same rows sends the same ids, another job others."""
    rows = spark.sql("select id, 'x' body, 86400 delay_seconds from range(3)")
    for job in ("renewals", "renewals", "other"):
        save(rows, key="id", job=job)
    assert ids(sqs) == {
        **{derived_id("renewals", n): 2 for n in range(3)},
        **{derived_id("other", n): 1 for n in range(3)},
    }


def test_rows_that_cannot_be_sent_are_kept_with_the_reason(
    spark: SparkSession, sqs: Stub, tmp_path: Path
) -> None:
    """Each bad row once, as it came; all others are sent; mended, the table can be sent itself."""
    rows = spark.sql(
        "select * from values ('good', 'm1', 60L), ('', 'm2', 60L), ('x', 'm3', -1L), ('x', NULL, 60L), "
        "('x', 'm5', NULL), (NULL, 'm6', 60L) as t(body, message_id, delay_seconds)"
    )
    rejects = tmp_path / "rejects"
    assert save(rows, rejects=rejects)["rejected"] == 5
    assert ids(sqs) == {"m1": 1}
    table = spark.read.parquet(str(rejects))
    assert table.columns == [*rows.columns, "reason"]
    found = {(r.message_id, r.body): r.reason for r in table.collect()}
    assert len(found) == table.count() == 5
    assert "empty" in found["m2", ""]
    assert "negative" in found["m3", "x"]
    assert "message_id is NULL" in found[None, "x"]
    assert "delay_seconds is NULL" in found["m5", "x"]
    assert "body is NULL" in found["m6", None]
    assert not [p.name for p in rejects.iterdir() if p.name.startswith("_staging")]

    mended = (
        table.where("message_id = 'm3'")
        .drop("reason")
        .selectExpr("body", "message_id", "abs(delay_seconds) delay_seconds")
    )
    save(mended)
    assert ids(sqs) == {"m1": 1, "m3": 1}


def test_without_a_rejects_table_the_job_fails_and_says_why(
    spark: SparkSession, sqs: Stub, tmp_path: Path
) -> None:
    """Once, at the end: no task is retried for it, and what was sent is told."""
    rows = messages(spark, 100).selectExpr(
        "if(message_id = 'm7', '', body) body", "message_id", "delay_seconds"
    )
    with pytest.raises(PySparkException) as failed:
        save(rows, summary=tmp_path / "summary.json")
    assert "1 of 100 rows could not be sent" in str(failed.value)
    assert "body is empty" in str(failed.value)
    assert ids(sqs) == {f"m{i}": 1 for i in range(100) if i != 7}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["committed"], summary["sent"], summary["rejected"]) == (False, 99, 1)


def test_throttled_rows_are_sent_again_not_rejected(
    spark: SparkSession, sqs: Stub, tmp_path: Path
) -> None:
    """Beyond what botocore retries, the task goes on; it does not fail, nor start anew."""
    sqs.refuse("AccessDenied", calls=7)
    save(messages(spark, 200), rejects=tmp_path)
    assert ids(sqs) == {f"m{i}": 1 for i in range(200)}
    assert list(tmp_path.iterdir()) == []


def test_an_outage_fails_the_job_after_a_while(
    spark: SparkSession, sqs: Stub, tmp_path: Path
) -> None:
    """Rows that SQS does not take for the moment are no rejects; the job says so, and leaves none."""
    sqs.refuse("AccessDenied", calls=1_000_000)
    rows = messages(spark, 100).selectExpr(
        "if(message_id = 'm7', '', body) body", "message_id", "delay_seconds"
    )
    with pytest.raises(PySparkException, match="retry_seconds"):
        save(rows.coalesce(1), rejects=tmp_path, retry_seconds=0)
    assert sqs.kept() == []
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_table_is_refused_before_anything_is_sent(spark: SparkSession, sqs: Stub) -> None:
    """Through Spark the message still names the column and the remedy."""
    with pytest.raises(PySparkException, match="column 'extra' is unknown"):
        save(messages(spark, 1).selectExpr("*", "1 extra"))
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        messages(spark, 1).write.format("sqsdelay").mode("overwrite").save()
    assert sqs.kept() == []


def test_rows_go_to_the_endpoints_they_name(spark: SparkSession, sqs: Stub, tmp_path: Path) -> None:
    """The column wins over the option; a name that is none is the row's own fault."""
    rows = spark.sql(
        "select * from values ('eu-orders'), (NULL), ('no queue!') as t(endpoint)"
    ).selectExpr("endpoint", "'x' body", "coalesce(endpoint, 'm') message_id", "60 delay_seconds")
    rows = rows.selectExpr(
        "endpoint", "body", "replace(message_id, ' ') message_id", "delay_seconds"
    )
    save(rows, rejects=tmp_path)
    assert {
        (e["queue"], e["MessageAttributes"][MESSAGE_ID]["StringValue"]) for e in sqs.kept()
    } == {("eu-orders", "eu-orders"), ("orders", "m")}
    (rejected,) = spark.read.parquet(str(tmp_path)).collect()
    assert "not a queue name" in rejected.reason


def test_the_benchmark_compares_the_same_work(
    spark: SparkSession, sqs: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand or by the sink, the same messages are sent; each is told with its aim."""
    spark_sink.compare(spark, sqs, 1, 0, rounds=1, rows=40, aim=1.3)
    told = capsys.readouterr().out
    assert re.search(r"the sink is [\d.]+ x as fast \(aim 1\.3: (met|MISSED)\)", told)
    sqs.keep()
    table = spark_sink.table(spark, 20, 1)
    spark_sink.threaded(sqs.url)(spark_sink.ready(table))
    spark_sink.sink(sqs.url)(table)
    assert set(ids(sqs).values()) == {2}
    sent = {json.dumps(without_noise(entry), sort_keys=True) for entry in sqs.kept()}
    assert len(sent) == 20


def without_noise(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry without what differs by position, or by a second."""
    ours = (DELAY_SECONDS, MESSAGE_ID)
    attributes = {k: v for k, v in entry["MessageAttributes"].items() if k not in ours}
    # The sink's deduplication id binds the content; by hand it is the message id.
    noise = ("Id", "QueueUrl", "MessageDeduplicationId")
    kept = {k: v for k, v in entry.items() if k not in noise}
    return kept | {"MessageAttributes": attributes}


def test_messages_due_far_ahead_are_parked_at_once(
    spark: SparkSession, sqs: Stub, tmp_path: Path
) -> None:
    """Into the store, not through the delay queue; the others as ever."""
    url = f"sqlite:///{tmp_path}/store.db"
    store = open_store(url, endpoint="orders")
    store.set_up()
    rows = messages(spark, 30, "if(id < 20, 30 * 86400, 7200) delay_seconds").coalesce(1)
    told = save(rows, store=url, park_after=86_400)
    assert store.pending_count() == 20
    store.close()
    assert set(ids(sqs)) == {f"m{n}" for n in range(20, 30)}
    assert told["routes"] == {"store": 20, "delay-queue": 10}


def test_a_throttled_job_slows_down_and_sends_each_row_once(
    spark: SparkSession, sqs: Stub, tmp_path: Path
) -> None:
    """A quota far below what two tasks could send: no failure, no rejects, nothing twice."""
    sqs.throttle(10)
    try:
        told = save(messages(spark, 600).repartition(2), rejects=tmp_path, retry_seconds=20)
        assert told["throttled"] == sqs.throttled() > 0
    finally:
        sqs.throttle(None)
    assert ids(sqs) == {f"m{i}": 1 for i in range(600)}
    assert list(tmp_path.iterdir()) == []


def test_the_benchmark_throttles_both(
    spark: SparkSession, sqs: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sink sends each row once, by hand or not."""
    throttled.compare(spark, sqs, 400, 30)
    told = capsys.readouterr().out
    assert re.search(r"sink +done in .* 400 distinct rows +0 sent twice +\d+ calls throttled", told)


def test_many_rows_come_back_as_few_bytes(spark: SparkSession, sqs: Stub) -> None:
    """Spark ends a job whose tasks tell the driver more than this, after everything was sent."""
    context: Any = spark._jsc
    settings = context.sc().conf()
    settings.set("spark.driver.maxResultSize", "9k")
    try:
        save(messages(spark, 4 * 2_000).repartition(4))
    finally:
        settings.set("spark.driver.maxResultSize", "1g")
    assert len(sqs.kept()) == 4 * 2_000


SCHEMA = "body string, key long, delay_seconds double"


def stream(spark: SparkSession, folder: Path, **more: Any) -> DataStreamWriter:
    """A stream of the JSON files in ``folder``, which ends when it has read them all."""
    rows = spark.readStream.schema(SCHEMA).json(str(folder / "in"))
    checkpoint = str(folder / "checkpoint")
    given = {"endpoint": "orders", "job": "stream", "checkpointLocation": checkpoint} | more
    return rows.writeStream.format("sqsdelay").options(**given).trigger(availableNow=True)


def arrive(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    (folder / "in").mkdir(exist_ok=True)
    lines = (json.dumps(row) + "\n" for row in rows)
    (folder / "in" / name).write_text("".join(lines))


def test_a_micro_batch_that_is_run_again_keeps_ids_and_due_times(
    spark: SparkSession, sqs: Stub, tmp_path: Path
) -> None:
    """A stream that failed at a bad row is started again with a rejects table, and goes on."""
    rows = [{"body": "x", "key": n, "delay_seconds": 86400.5} for n in range(20)]
    arrive(tmp_path, "1.json", *rows, {"body": "", "key": 20, "delay_seconds": 60})
    with pytest.raises(PySparkException, match="1 of 21 rows could not be sent"):
        stream(spark, tmp_path).start().awaitTermination()
    assert set(ids(sqs).values()) == {1}

    kept = {"rejects": tmp_path / "rejects", "summary": tmp_path / "summary"}
    stream(spark, tmp_path, **kept).start().awaitTermination()
    assert len(ids(sqs)) == 20
    assert set(ids(sqs).values()) == {2}
    assert len({(message_id(entry), due_ms(entry)) for entry in sqs.kept()}) == 20
    assert spark.read.parquet(str(kept["rejects"])).count() == 1
    assert json.loads((kept["summary"] / "0.json").read_text())["sent"] == 20

    arrive(tmp_path, "2.json", {"body": "y", "key": 21, "delay_seconds": 86400})
    stream(spark, tmp_path, **kept).start().awaitTermination()
    assert len(ids(sqs)) == 21
    assert spark.read.parquet(str(kept["rejects"])).count() == 1
    assert json.loads((kept["summary"] / "1.json").read_text())["sent"] == 1


def test_a_stream_is_checked_before_it_sends(
    spark: SparkSession, sqs: Stub, tmp_path: Path
) -> None:
    """As a table is."""
    arrive(tmp_path, "1.json", {"body": "x", "key": 1, "delay_seconds": 60})
    with pytest.raises(PySparkException, match="names no column"):
        stream(spark, tmp_path, key="nope").start().awaitTermination()
    assert sqs.kept() == []
