"""The benchmark of a throttled job, on a few rows: it counts what the queue took of either contestant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from benchmarks.spark import throttled
from benchmarks.support.sqs_stub import Stub

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 400


def test_what_became_of_the_rows(
    spark: SparkSession, sqs: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sink's are all taken; the queue refused some calls, and is as before when it ends.

    How many it took twice is told, and not judged: on a busy machine a call is made again whose answer
    came too late, which a real queue notices.
    """
    throttled.compare(spark, sqs, ROWS, 20)
    told = capsys.readouterr().out
    (ours,) = re.findall(
        r"^  sink +(\w+) in .* s +([\d,]+) distinct rows +\d+ sent twice", told, re.M
    )
    assert ours == ("done", str(ROWS))
    assert re.search(r"^  32 threads by hand +(done|failed) in ", told, re.M)
    (times,) = re.findall(r"the sink sends ([\d.]+) x its distinct rows", told)
    assert float(times) > 0


def test_a_job_that_fails_counts_too(
    spark: SparkSession, sqs: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it had sent by then, and what it sent again."""

    def failing(rows: object) -> None:
        client = sqs.client()
        for _ in range(2):
            client.send_message_batch(
                QueueUrl=f"{sqs.url}/000000000000/orders",
                Entries=[{"Id": "0", "MessageBody": "x", "MessageGroupId": "a"}],
            )
        spark.sql("select * from there_is_none").collect()

    sent = throttled.measure(sqs, failing, spark.range(1), 1000)
    assert (sent.distinct, sent.copies, sent.throttled, sent.failed) == (1, 1, 0, True)
