"""Python workers killed in the middle of a write: nothing is lost, and what came twice is known."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.support.sqs_stub import Stub
from tests.functional.spark.sent import due_ms, ids, message_id
from tests.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_200


def workers(spark: SparkSession) -> list[psutil.Process]:
    """The processes that run the tasks' Python: the children of Spark's daemon."""
    gateway: Any = spark.sparkContext._gateway
    java = psutil.Process(gateway.proc.pid)
    daemons = [p for p in java.children(recursive=True) if _is_daemon(p)]
    return [p for p in daemons if p.parent() in daemons]


def _is_daemon(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return "pyspark.daemon" in process.cmdline()
    return False


def kill_once(spark: SparkSession, sqs: Stub, *, after: int) -> list[psutil.Process]:
    """Kill the workers when so many messages were sent; returns them."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(sqs.kept()) < after:
        assert time.monotonic() < deadline, "nothing is being sent"
        time.sleep(0.05)
    killed = workers(spark)
    for worker in killed:
        worker.kill()
    sqs.set_latency(0)
    return killed


def test_killed_workers_lose_nothing(spark: SparkSession, sqs: Stub, tmp_path: Path) -> None:
    """The job finishes; every message was sent, some twice, with one id and one due time; and a
    row that cannot be sent is rejected once, though two attempts came across it."""
    rows = spark.range(ROWS, numPartitions=2).selectExpr(
        "if(id % 600 = 3, '', 'x') body", "id key", "86400 delay_seconds"
    )
    writer = rows.write.format("sqsdelay").mode("append")
    given: dict[str, Any] = {
        "endpoint": "orders",
        "job": "killed",
        "concurrency": 1,
        "rejects": str(tmp_path),
    }
    sqs.set_latency(30)
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_once, spark, sqs, after=ROWS // 4)
        writer.options(**given).save()
    assert killed.result()
    counted = ids(sqs)
    assert len(counted) == ROWS - 2
    duplicates = counted.total() - len(counted)
    assert ROWS // 4 - 20 <= duplicates < ROWS
    assert set(counted.values()) == {1, 2}
    assert len({(message_id(entry), due_ms(entry)) for entry in sqs.kept()}) == len(counted)
    rejected = spark.read.parquet(str(tmp_path)).collect()
    assert sorted(row.key for row in rejected) == [3, 603]
