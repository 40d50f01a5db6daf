"""docs/spark.md does what it says, and docs/fields.md has its columns and options."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from typer.testing import CliRunner

from benchmarks.support.sqs_stub import Stub
from sqsdelay import DelayConsumer
from sqsdelay.cli import app
from sqsdelay.spark.sink.options import COLUMNS, Options
from sqsdelay.spark.sink.rows import derived_id
from sqsdelay.stores import open_store, table_definition
from sqsdelay.testing.local_aws import REGION, LocalAws
from tests.functional.spark.sent import ids
from tests.services.endpoints import create_endpoint
from tests.services.s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE, FIELDS = (
    (Path(__file__).parents[3] / "docs" / page).read_text() for page in ("spark.md", "fields.md")
)


def test_the_guides_programs_run(spark: SparkSession, sqs: Stub, tmp_path: Path) -> None:
    """The table and the stream; the job for a cluster has a test of its own."""
    table, stream, _ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    arriving = tmp_path / "arriving"
    arriving.mkdir()
    row = {"body": "x", "delay_seconds": 86400, "key": 1}
    (arriving / "1.json").write_text(json.dumps(row))
    names: dict[str, object] = {}
    for program in (table, stream):
        for folder in ("rejects", "arriving", "checkpoint"):
            program = program.replace(f'"{folder}")', f'"{tmp_path / folder}")')
        exec(program, names)
    assert set(ids(sqs)) == {
        derived_id("renewals-2027", "order-1"),
        derived_id("renewals-2027", "order-2"),
        derived_id("arrivals", 1),
    }


def test_the_guides_job_into_s3(
    spark: SparkSession, sqs: Stub, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows wait in the bucket, and none in the delay queue."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    table = tmp_path / "renewals.csv"
    table.write_text("order_id,delay_seconds,body\n1,8640000,a\n2,8640000,b\n")
    section = GUIDE.partition("## Into an S3 store")[2].partition("\n## ")[0]
    (command,) = re.findall(r"```\nsqsdelay (.*?)\n```", section, re.DOTALL)
    given = shlex.split(command.replace("renewals.csv", str(table)))
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    store = open_store("s3://my-bucket/delays", endpoint="orders")
    assert store.pending_count() == 2
    store.close()
    assert sqs.kept() == []


def test_the_guides_job_into_dynamodb(
    spark: SparkSession,
    sqs: Stub,
    one_dynamodb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rows are in the store, and none in the delay queue."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", one_dynamodb)
    client: Any = boto3.client("dynamodb")
    client.create_table(TableName="delayed", **table_definition())
    client.get_waiter("table_exists").wait(TableName="delayed", WaiterConfig={"Delay": 1})
    table = tmp_path / "renewals.csv"
    table.write_text("order_id,delay_seconds,body\n1,8640000,a\n2,8640000,b\n")
    section = GUIDE.partition("## Into PostgreSQL or DynamoDB")[2].partition("\n## ")[0]
    (command,) = re.findall(r"```\nsqsdelay (.*?)\n```", section, re.DOTALL)
    given = command.replace("renewals.csv", str(table))
    given = given.replace("--receipts receipts", f"--receipts {tmp_path}/receipts")
    done = CliRunner().invoke(app, shlex.split(given), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    store = open_store("dynamodb://delayed", endpoint="orders")
    assert sorted(m.body for m in store.pending(10)) == [b"a", b"b"]
    store.close()
    assert sqs.kept() == []


def test_the_guide_names_every_column_and_option() -> None:
    """And no others; with the defaults that are the code's."""
    told = FIELDS.partition("\n## Spark's columns")[2]
    columns, options = re.findall(r"(?m)^(?:\|.*\n)+", told)
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\|[^|]*", columns)))) == set(
        COLUMNS
    )
    defaults = dict(re.findall(r"(?m)^\| `(\w+)`(?:, `endpoint_url`)? \| `?(\w*)`? *\|", options))
    known = {field.name: field.default for field in dataclasses.fields(Options)}
    del known["checkpoint"], known["endpoint_url"]
    assert defaults == {name: str(value or "").lower() for name, value in known.items()}


def test_rows_arrive_when_they_are_due(spark: SparkSession, local_aws: LocalAws) -> None:
    """On a local AWS: relayed by hops of a second or sent directly, never early, each once."""
    client = local_aws.client("sqs")
    create_endpoint(client, "spark-orders", hop_seconds=1)
    rows = spark.range(40).selectExpr(
        "concat('body ', id) body",
        "id key",
        "current_timestamp() + make_dt_interval(0, 0, 0, 6) due_at",
    )
    rows = spark.createDataFrame(rows.collect(), rows.schema)
    due = rows.first()["due_at"].timestamp()  # type: ignore[index]
    here = {"region": REGION, "endpoint_url": local_aws.endpoint_url}
    rows.write.format("sqsdelay").options(
        endpoint="spark-orders", job="arrive", hop_seconds=1, **here
    ).mode("append").save()
    queue = client.get_queue_url(QueueName="spark-orders")["QueueUrl"]
    arrived: dict[str, str] = {}
    consumer = DelayConsumer("spark-orders", client, hop_seconds=1)
    ended = threading.Event()

    def relay() -> None:
        while not ended.is_set():
            consumer.poll(wait_seconds=1)

    relaying = threading.Thread(target=relay)
    relaying.start()
    try:
        for _ in range(30):
            answer = client.receive_message(
                QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1,
                MessageAttributeNames=["All"], AttributeNames=["All"],
            )  # fmt: skip
            for message in answer.get("Messages", ()):
                assert int(message["Attributes"]["ApproximateFirstReceiveTimestamp"]) >= due * 1000
                identity = message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"]
                assert identity not in arrived
                arrived[identity] = message["Body"]
            if len(arrived) == 40:
                break
    finally:
        ended.set()
        relaying.join()
    assert arrived == {derived_id("arrive", n): f"body {n}" for n in range(40)}
