"""The Spark sink against ``foreachPartition`` with hand-written boto3, on the same fast stub.

All do the same work: rows of a table become entries for the delay queue. They take turns, round by
round; the figures are medians. Speed depends on the machine, so nothing fails the run; what was
aimed at is printed beside what was reached.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.support.sqs_stub import BODY, REGION, Stub, forget_proxies, running_stub
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.core.message import DELAY_SECONDS, DUE_AT
from sqsdelay.spark import register
from sqsdelay.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

A_DAY = 24 * 3600
CORES = (1, 2)
ROWS = 40_000
"""Of a round and core."""
THREADS = 32
RIVAL = f"{THREADS} threads"
AIM = 1.3
"""The sink's speed with libcurl as a multiple of the rival's; without libcurl 1."""

Save = Callable[["DataFrame"], None]


@dataclass(frozen=True, kw_only=True)
class Round:
    """One timed round: rows a second, Spark's processor time, and the part the stub was busy."""

    speed: float
    cpu_micros: float
    """Of Java and Python, per row: what a busy machine distorts least."""
    stub_busy: float


def entry(row: Row, number: int) -> dict[str, Any]:
    """A row's entry, written by hand."""
    remaining = -int(-(row.due_at.timestamp() - time.time()) // 1)
    return {
        "Id": str(number),
        "MessageBody": row.body,
        "MessageGroupId": row.message_id,
        "MessageDeduplicationId": row.message_id,
        "MessageAttributes": {
            "kind": {"DataType": "String", "StringValue": row.attributes["kind"]},
            DELAY_SECONDS: {"DataType": "String", "StringValue": str(remaining)},
            DUE_AT: {
                "DataType": "String",
                "StringValue": str(round(row.due_at.timestamp() * 1000)),
            },
        },
    }


def threaded(url: str) -> Save:
    """What one writes by hand for speed: as many batches in flight as the sink has, no check of values by
    botocore, and batches that are ready (see `ready`)."""
    queue_url = f"{url}/000000000000/orders-delay.fifo"

    def send(rows: Iterator[Row]) -> None:
        import boto3
        from botocore.config import Config

        config = Config(max_pool_connections=THREADS, parameter_validation=False)
        client = boto3.client("sqs", endpoint_url=url, region_name=REGION, config=config)

        def flush(row: Row) -> None:
            entries: Any = json.loads(row.entries)
            if client.send_message_batch(QueueUrl=queue_url, Entries=entries).get("Failed"):
                raise RuntimeError("the stub failed entries")

        flying: deque[Future[None]] = deque()
        with ThreadPoolExecutor(THREADS) as pool:
            for row in rows:
                flying.append(pool.submit(flush, row))
                if len(flying) == 2 * THREADS:
                    flying.popleft().result()
            while flying:
                flying.popleft().result()

    return lambda rows: rows.foreachPartition(send)


def sink(url: str) -> Save:
    """The data source, as the guide shows it."""

    def save(rows: DataFrame) -> None:
        rows.write.format("sqsdelay").options(
            endpoint="orders", region=REGION, endpoint_url=url
        ).mode("append").save()

    return save


def table(spark: SparkSession, rows: int, cores: int) -> DataFrame:
    """So many messages, in a partition for each core."""
    due_ms = (time.time_ns() // 1_000_000) + A_DAY * 1000
    return spark.range(0, rows, 1, cores).selectExpr(
        f"'{BODY}' body",
        "concat('message-', id) message_id",
        f"timestamp_millis({due_ms}) due_at",
        "map('kind', 'reminder') attributes",
    )


def ready(rows: DataFrame) -> DataFrame:
    """The rows as batches of entries, made before the clock runs: nothing is left to do but to send them."""

    def batched(rows: Iterable[Row]) -> Iterator[tuple[str]]:
        left = iter(rows)
        while batch := list(islice(left, MAX_BATCH_ENTRIES)):
            yield (json.dumps([entry(row, number) for number, row in enumerate(batch)]),)

    found = rows.rdd.mapPartitions(batched).toDF("entries string").cache()
    found.count()
    return found


def cpu_seconds(spark: SparkSession) -> float:
    """Processor time that Spark's Java and its Python workers have used so far."""
    gateway: Any = spark.sparkContext._gateway
    java = psutil.Process(gateway.proc.pid)
    used = 0.0
    for process in (java, *java.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def measure(spark: SparkSession, stub: Stub, save: Save, rows: DataFrame, number: int) -> Round:
    """One round, timed."""
    busy, used, started = stub.cpu_seconds(), cpu_seconds(spark), time.perf_counter()
    save(rows)
    seconds = time.perf_counter() - started
    return Round(
        speed=number / seconds,
        cpu_micros=(cpu_seconds(spark) - used) / number * 1e6,
        stub_busy=(stub.cpu_seconds() - busy) / seconds,
    )


def compare(
    spark: SparkSession,
    stub: Stub,
    cores: int,
    latency_ms: int,
    *,
    rounds: int,
    rows: int,
    aim: float,
) -> None:
    """Both at one latency, and how much faster the sink was in the same turn."""
    stub.set_latency(latency_ms)

    def turn(rows: int) -> dict[str, Round]:
        made = table(spark, rows, cores)
        return {
            RIVAL: measure(spark, stub, threaded(stub.url), ready(made), rows),
            "sink": measure(spark, stub, sink(stub.url), made, rows),
        }

    turn(MAX_BATCH_ENTRIES * cores)
    turns = [turn(rows * cores) for _ in range(rounds)]
    print(f"\n{cores} core{'s' if cores > 1 else ''}, {latency_ms} ms latency, {rounds} rounds")
    for name in turns[0]:
        speed = statistics.median(turn[name].speed for turn in turns)
        cpu = statistics.median(turn[name].cpu_micros for turn in turns)
        busy = max(turn[name].stub_busy for turn in turns)
        print(
            f"  {name:<12}{rows * cores:>8,} rows{speed:>9,.0f} rows/s{cpu:>7,.0f} µs CPU/row"
            f"   stub {busy:>4.0%} busy"
        )
    faster = statistics.median(turn["sink"].speed / turn[RIVAL].speed for turn in turns)
    verdict = "met" if faster >= aim else "MISSED"
    print(f"  the sink is {faster:.2f} x as fast (aim {aim:g}: {verdict})", flush=True)


def in_workers(*, curl: bool = True) -> None:
    """Set what Spark's workers inherit: keys, since botocore asks for some, and where these modules are.

    Args:
        curl: False keeps the sink from libcurl, by a proxy for a protocol that nobody here uses.
    """
    forget_proxies()
    if not curl:
        os.environ["FTP_PROXY"] = "http://127.0.0.1:9"
    os.environ.update(
        AWS_ACCESS_KEY_ID="stub",
        AWS_SECRET_ACCESS_KEY="stub",
        PYTHONPATH=str(Path(__file__).parents[2]),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark sink", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each, taking turns")
    parser.add_argument("--rows", type=int, default=ROWS, help="of a round and core")
    parser.add_argument("--cores", type=int, nargs="+", default=CORES)
    parser.add_argument(
        "--without-curl", action="store_true", help="as where sqsdelay[curl] is not installed"
    )
    options = parser.parse_args(arguments)
    in_workers(curl=not options.without_curl)
    with running_stub() as stub:
        for cores in options.cores:
            with session("benchmark", master=f"local[{cores}]") as spark:
                register(spark)
                for latency_ms in (0, 20):
                    compare(
                        spark,
                        stub,
                        cores,
                        latency_ms,
                        rounds=options.rounds,
                        rows=options.rows,
                        aim=1.0 if options.without_curl else AIM,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
