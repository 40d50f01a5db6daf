"""Stores read as tables, and many of their messages cancelled and moved at once."""

from __future__ import annotations

import itertools
import json
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from benchmarks.support.sqs_stub import Stub
from sqsdelay.core.message import string
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError
from sqsdelay.limits import MAX_DUE_MS
from sqsdelay.spark import cancel, register, reschedule
from sqsdelay.spark.stored.reader import DueRange, Source, StoreReader
from sqsdelay.stores import open_store
from sqsdelay.testing.local_aws import LocalAws

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DUE: Final = datetime(2035, 7, 1, 9, tzinfo=UTC)
DUE_MS: Final = int(DUE.timestamp() * 1000)
NUMBER: Final = 40
"""A message a minute."""


def messages() -> list[StoredMessage]:
    more: dict[str, Any] = {"attributes": {"kind": string("reminder")}, "group_id": "g"}
    return [
        StoredMessage(
            message_id=f"m{n}",
            destination="orders",
            due_ms=DUE_MS + n * 60_000,
            body=f"body {n} ü".encode(),
            **(more if n == 0 else {}),
        )
        for n in range(NUMBER)
    ]


def filled(url: str, **more: Any) -> str:
    with closing(open_store(url, endpoint="orders", **more)) as store:
        store.set_up()
        store.store(messages())
    return url


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    given = {"store": url, "endpoint": "orders", **options}
    return spark.read.format("sqsdelay").options(**given).load()


def ids(rows: DataFrame) -> set[str]:
    return {row.message_id for row in rows.select("message_id").collect()}


def name(*numbers: int) -> set[str]:
    return {f"m{n}" for n in numbers}


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return filled(f"sqlite:///{tmp_path}/orders.db")


@pytest.fixture(autouse=True)
def registered(spark: SparkSession, sqs: Stub) -> None:
    register(spark)


def test_a_store_is_a_table(spark: SparkSession, sqlite: str) -> None:
    """Every message once, whatever the ranges; with all it carries, ready to be sent elsewhere."""
    rows = read(spark, sqlite, partitions=3)
    found = {row.message_id: row for row in rows.collect()}
    assert set(found) == name(*range(NUMBER))
    assert rows.rdd.getNumPartitions() == 3
    first = found["m0"]
    assert first.due_at.timestamp() == DUE.timestamp()
    assert (first.endpoint, first.destination, first.body) == ("orders", "orders", "body 0 ü")
    assert (first.attributes, first.message_group_id) == ({"kind": "reminder"}, "g")


def test_due_times_are_asked_of_the_store(spark: SparkSession, sqlite: str) -> None:
    """By the plan Spark makes, what is about due times is left to the store; the rest is Spark's."""
    rows = read(spark, sqlite)
    at = (DUE + timedelta(minutes=5)).isoformat()
    until = (DUE + timedelta(minutes=8)).isoformat()
    wanted = rows.where(f"due_at > timestamp '{at}' AND due_at <= timestamp '{until}'")
    assert ids(wanted.where("body != 'body 7 ü'")) == name(6, 8)
    plan = str(wanted._jdf.queryExecution().optimizedPlan())
    assert "Filter" not in plan.replace("Filter isnotnull", ""), plan
    assert ids(rows.where(f"due_at = timestamp '{at}'")) == name(5)
    assert ids(rows.where(f"due_at >= timestamp '{at}'")) == name(*range(5, NUMBER))
    assert ids(rows.where(f"due_at < timestamp '{at}'")) == name(*range(5))
    assert ids(rows.where("due_at < timestamp '2020-01-01'")) == set()


def test_ranges_cover_what_is_there(sqlite: str) -> None:
    """In equal spans between the earliest and the latest message, and all that is before and after."""
    reader = StoreReader(Source(store=sqlite, endpoint="orders", partitions=4))
    ranges = [each for each in reader.partitions() if isinstance(each, DueRange)]
    assert len(ranges) == 4
    assert (ranges[0].from_ms, ranges[-1].before_ms) == (0, MAX_DUE_MS + 1)
    assert [each.from_ms - DUE_MS for each in ranges[1:]] == [585_250, 1_170_500, 1_755_750]
    assert all(a.before_ms == b.from_ms for a, b in itertools.pairwise(ranges))


@pytest.mark.parametrize("kind", ["postgres", "dynamodb", "s3"])
def test_other_stores(
    spark: SparkSession,
    postgres: str,
    local_aws: LocalAws,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader of each, in this process as Spark's workers have it, without and with a limit."""
    for variable, value in local_aws.environment().items():
        monkeypatch.setenv(variable, value)
    unique = uuid.uuid4().hex[:12]
    more: dict[str, Any] = {}
    if kind == "postgres":
        url, more = _as_url(postgres), {"table": f"read.{unique}"}
    elif kind == "dynamodb":
        url = f"dynamodb://read-{unique}"
    else:
        url = f"s3://read-{unique}/delayed"
        local_aws.client("s3").create_bucket(Bucket=f"read-{unique}")
    filled(url, **more)
    reader = StoreReader(Source(store=url, endpoint="orders", partitions=2, **more))
    found = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    assert {row["message_id"] for row in found} == name(*range(NUMBER))
    assert len(found) == NUMBER


def _as_url(conninfo: str) -> str:
    from psycopg.conninfo import conninfo_to_dict

    if conninfo.startswith("postgres"):
        return conninfo
    known = conninfo_to_dict(conninfo)
    return "postgresql:///?" + "&".join(f"{key}={value}" for key, value in known.items())


def test_many_are_cancelled_and_moved(
    spark: SparkSession, sqs: Stub, sqlite: str, tmp_path: Path
) -> None:
    """What is read can be given back. Done once, whatever is asked of the answer; recorded in a ledger;
    what is in no store is left to the delay consumer, and what is no message is told."""
    ledger = tmp_path / "ledger"
    waiting = read(spark, sqlite)
    chosen = waiting.where("message_id IN ('m1', 'm2')").select("message_id")
    chosen = chosen.union(spark.createDataFrame([("gone",), (None,), ("",)], "message_id string"))
    done = cancel(chosen, endpoint="orders", store=sqlite, ledger=str(ledger), endpoint_url=sqs.url)
    for _ in range(2):
        told = {row.message_id: row.change for row in done.collect()}
        assert told == {
            "m1": "done", "m2": "done", "gone": "requested", None: "invalid", "": "invalid",
        }  # fmt: skip
    assert all(row.reason for row in done.where("change = 'invalid'").collect())
    moved = reschedule(
        waiting.where("message_id IN ('m3', 'm4')").selectExpr(
            "message_id",
            "if(message_id = 'm3', timestamp '2036-01-01T00:00:00Z', timestamp '9000-01-01') due_at",
        ),
        endpoint="orders",
        store=sqlite,
        ledger=str(ledger),
        endpoint_url=sqs.url,
        max_delay_seconds=20 * 365 * 86_400,
    )
    assert sorted((row.message_id, row.change) for row in moved.collect()) == [
        ("m3", "done"), ("m4", "invalid"),
    ]  # fmt: skip
    left = {row.message_id: row.due_at.year for row in waiting.collect()}
    assert set(left) == name(*range(NUMBER)) - name(1, 2)
    assert (left["m3"], left["m4"]) == (2036, 2035)
    events = [
        json.loads(line) for file in ledger.iterdir() for line in file.read_text().splitlines()
    ]
    assert sorted((event["event"], event["message_id"]) for event in events) == [
        ("cancelled", "m1"), ("cancelled", "m2"), ("rescheduled", "m3"),
    ]  # fmt: skip


def test_what_cannot_be_read_is_one_line(spark: SparkSession, sqlite: str) -> None:
    """Options that are missing or unknown, and tables without the columns."""
    for options, told in (
        ({"store": sqlite}, "option 'endpoint' is missing"),
        ({"store": sqlite, "endpoint": "orders", "partitions": "0"}, "option partitions='0'"),
        ({"store": sqlite, "endpoint": "orders", "tabel": "x"}, "option 'tabel' is unknown"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            Source.parse(options)
    with pytest.raises(ConfigurationError, match="column 'message_id' is missing"):
        cancel(spark.range(1), endpoint="orders", store=sqlite)
    undated = spark.createDataFrame([("m", "soon")], "message_id string, due_at string")
    with pytest.raises(ConfigurationError, match="column 'due_at' is string"):
        reschedule(undated, endpoint="orders", store=sqlite)
