"""Messages written to an S3 in memory by a Spark job, over HTTP: what a year of them costs counts them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support.sqs_stub import REGION, running_stub
from sqsdelay.core.delay import utc
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.spark import register
from sqsdelay.spark.session import session
from sqsdelay.spark.sink.options import Options, checked_columns
from sqsdelay.spark.sink.send import shared_out
from tests.services.in_memory_s3 import InMemoryS3
from tests.services.s3_server import running_s3

SCHEMA = "body string, due_at timestamp, order_id long"


def written(s3: InMemoryS3, messages: Sequence[StoredMessage]) -> None:
    """Write them as ``sqsdelay pipeline schedule --key order_id --job … --store s3://…`` does."""
    os.environ.update(
        AWS_ACCESS_KEY_ID="stub",
        AWS_SECRET_ACCESS_KEY="stub",
        AWS_DEFAULT_REGION=REGION,
        PYTHONPATH=str(Path(__file__).parents[2]),
    )
    with running_s3() as server, running_stub() as sqs:
        server.s3 = s3
        os.environ.update(AWS_ENDPOINT_URL_SQS=sqs.url, AWS_ENDPOINT_URL_S3=server.url)
        with session("benchmark", master="local[2]") as spark:
            register(spark)
            rows = spark.createDataFrame(
                [(m.body.decode(), utc(m.due_ms), n) for n, m in enumerate(messages)], SCHEMA
            )
            options = {
                "endpoint": "orders", "key": "order_id", "job": "year", "store": "s3://parked",
            }  # fmt: skip
            parsed = Options.parse(options)
            columns = checked_columns(rows.schema, parsed)
            shared, parsed = shared_out(rows, columns, parsed, tasks=2)
            shared.write.format("sqsdelay").options(**options, parts=parsed.parts).mode(
                "append"
            ).save()
