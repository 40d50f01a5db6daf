"""Streams: micro-batches become delayed messages; one that is run again sends the same ids and due times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from benchmarks.support.sqs_stub import Stub
from tests.functional.spark.sent import due_ms, ids, message_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

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
