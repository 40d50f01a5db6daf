"""Rows due far ahead go into a store directly: PostgreSQL and DynamoDB, each row once by its id."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pytest

from benchmarks.support.sqs_stub import Stub
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.spark.sink.options import Columns, Options
from sqsdelay.spark.sink.rows import Rows, derived_id
from sqsdelay.spark.sink.run import Run
from sqsdelay.spark.sink.task import Task
from sqsdelay.stores import open_store, table_definition
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.functional.spark.sent import ids, save
from tests.services.network import TcpProxy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DUE_AT = datetime(2035, 1, 1, tzinfo=UTC)
NEAR = 200
"""Rows that go to the delay queue."""


class Job:
    """Jobs that write into one endpoint's store."""

    def __init__(self, url: str, spark: SparkSession, folder: Path, *, far: int) -> None:
        self.url = url
        self.far = far
        self.endpoint = f"orders-{uuid.uuid4().hex[:12]}"
        self._spark = spark
        self._folder = folder

    def rows(self, body: str = "x", due: str = f"timestamp'{DUE_AT.isoformat()}'") -> DataFrame:
        """Most of them due far ahead, the others within the hour."""
        near = "current_timestamp() + interval 1 hour"
        return self._spark.sql(
            f"select '{body}' body, id order_id, if(id < {self.far}, {due}, {near}) due_at "
            f"from range(0, {self.far + NEAR}, 1, 2)"
        )

    def run(self, rows: DataFrame, job: str, **options: Any) -> dict[str, Any]:
        """What a run counts."""
        given: dict[str, Any] = {"key": "order_id", "job": job}
        given |= {"rejects": self._folder / "rejects"} | options
        return save(rows, endpoint=self.endpoint, store=self.url, **given)

    @contextlib.contextmanager
    def store(self) -> Any:
        store = open_store(self.url, endpoint=self.endpoint)
        try:
            yield store
        finally:
            store.close()

    def waiting(self) -> dict[str, tuple[bytes, int]]:
        """Body and due time by id."""
        with self.store() as store:
            found = store.pending(10_000)
        assert len({m.message_id for m in found}) == len(found)
        return {m.message_id: (m.body, m.due_ms) for m in found}


@pytest.fixture(params=["postgres", "dynamodb"])
def job(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    sqs: Stub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Job:
    if request.param == "postgres":
        # It takes 500 a call: several calls.
        found = Job(request.getfixturevalue("postgres"), spark, tmp_path, far=1_000)
        with found.store() as store:
            store.set_up()
        return found
    url: str = request.getfixturevalue("one_dynamodb")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", url)
    table = f"parked-{uuid.uuid4().hex[:12]}"
    client: Any = boto3.client("dynamodb")
    client.create_table(TableName=table, **table_definition())
    client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1})
    return Job(f"dynamodb://{table}", spark, tmp_path, far=60)


def test_each_row_is_stored_once(job: Job, sqs: Stub) -> None:
    """A job run again stores nothing anew, and what has changed is refused; another job's rows are others.
    None of them passes through the delay queue."""
    expected = {derived_id("a", n): (b"x", int(DUE_AT.timestamp() * 1000)) for n in range(job.far)}
    first = job.run(job.rows(), "a")
    assert first["routes"] == {"store": job.far, "delay-queue": NEAR}
    assert job.waiting() == expected
    assert set(ids(sqs)) == {derived_id("a", n) for n in range(job.far, job.far + NEAR)}

    assert job.run(job.rows(), "a")["rejected"] == 0
    changed = job.run(job.rows("y").where(f"order_id < {job.far}"), "a")
    assert (changed["sent"], list(changed["reasons"])) == (0, ["MessageConflict"])
    assert changed["reasons"]["MessageConflict"]["rows"] == job.far
    assert job.waiting() == expected

    job.run(job.rows(), "b")
    other = {derived_id("b", n): (b"x", int(DUE_AT.timestamp() * 1000)) for n in range(job.far)}
    assert job.waiting() == expected | other


@pytest.mark.parametrize("named", ["by the job", "by each row"])
def test_a_store_of_another_version_stops_the_job_before_its_first_row(
    named: str, spark: SparkSession, sqs: Stub, tmp_path: Path
) -> None:
    """Those that are due soon, too, which do not go into it."""
    job = Job(f"sqlite:///{tmp_path}/store.db", spark, tmp_path, far=1)
    with job.store() as store:
        store.set_up()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute('UPDATE "sqsdelay.versions" SET version = 2')
    rows, given = job.rows(), {"endpoint": job.endpoint}
    if named == "by each row":
        rows, given = rows.selectExpr("*", f"'{job.endpoint}' endpoint"), {}
    options = {"store": job.url, "key": "order_id", "job": "a", "rejects": str(tmp_path / "no")}
    writer = rows.write.format("sqsdelay").options(**options, **given)
    with pytest.raises(Exception, match="has schema version 2"):
        writer.mode("append").save()
    assert ids(sqs) == {}


def test_a_delay_counts_from_the_first_run(job: Job, tmp_path: Path) -> None:
    """With receipts, a job that is run again keeps the due times of what is stored."""
    rows = job.rows().selectExpr("body", "order_id", "864000 delay_seconds")
    receipts = tmp_path / "receipts"
    job.run(rows.where("order_id < 150"), "a", receipts=receipts)
    before = job.waiting()
    again = job.run(rows, "a", receipts=receipts)
    assert (again["sent"], again["already_sent"], again["rejected"]) == (job.far + 50, 150, 0)
    after = job.waiting()
    assert len(after) == job.far + NEAR
    assert {due for _, due in after.values()} == {due for _, due in before.values()}


def test_two_attempts_at_the_same_time(job: Job) -> None:
    """As a speculative attempt beside the first: the store has each row once, and neither fails."""
    clock = ManualClock()
    queues = InMemoryQueues(clock)
    queues.create_endpoint(job.endpoint)
    batch = pa.RecordBatch.from_pydict(
        {
            "body": ["x"] * job.far,
            "message_id": [f"m{n}" for n in range(job.far)],
            "due_at": pa.array([DUE_AT] * job.far, pa.timestamp("us", "UTC")),
        }
    )

    def attempt(store: DelayedMessageStore) -> Task:
        columns = Columns(names=frozenset(batch.schema.names))
        options = Options(endpoint=job.endpoint, retry_seconds=0)
        rows = Rows(columns, options, Run(began_ms=0, delay_start_ms=0))
        sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(store)))
        task = Task(rows=rows, sender=sender)
        assert list(task.send([batch])) == []
        return task

    with job.store() as one, job.store() as other, ThreadPoolExecutor(2) as pool:
        tasks = list(pool.map(attempt, (one, other)))
    assert [task.counts.sent for task in tasks] == [job.far, job.far]
    assert set(job.waiting()) == {f"m{n}" for n in range(job.far)}


class Outage(TcpProxy):
    """Cuts connections once so many bytes have passed, and then so many more as soon as they are used."""

    def __init__(self, target_port: int, *, after_bytes: int, cuts: int) -> None:
        super().__init__(target_port)
        self.cuts_left = cuts
        self._bytes_left = after_bytes

    def _passes(self, data: bytes, *, answer: bool) -> bool:
        self._bytes_left -= len(data)
        if self._bytes_left < 0 and self.cuts_left:
            self.cuts_left -= 1
            raise ConnectionAbortedError
        return True


def test_a_store_that_is_down_for_a_while(
    spark: SparkSession, sqs: Stub, postgres: str, tmp_path: Path
) -> None:
    """In the middle of a job: it waits, goes on, and stores each row once."""
    server = urlsplit(postgres)
    assert server.port is not None
    direct = Job(postgres, spark, tmp_path, far=1_000)
    with direct.store() as store:
        store.set_up()
    proxy = Outage(server.port, after_bytes=200_000, cuts=6)
    with proxy:
        job = Job(
            postgres.replace(f":{server.port}/", f":{proxy.port}/"), spark, tmp_path, far=1_000
        )
        job.endpoint = direct.endpoint
        told = job.run(job.rows("x" * 300), "a")
    assert proxy.cuts_left == 0
    assert told["retried"] > 0
    assert (told["routes"]["store"], told["rejected"]) == (direct.far, 0)
    assert set(direct.waiting()) == {derived_id("a", n) for n in range(direct.far)}
