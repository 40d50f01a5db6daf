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
from sqsdelay.core.message import DELAY_SECONDS, DUE_AT
from sqsdelay.limits import MAX_BATCH_ENTRIES
from sqsdelay.spark import register
from sqsdelay.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

A_DAY = 24 * 3600
CORES = (1, 2)
ROWS = {
    # About equally long rounds, so that the cost of starting a Spark job weighs the same.
    ("send_message", 0): 6_000,
    ("send_message_batch", 0): 40_000,
    ("32 threads", 0): 40_000,
    ("sink", 0): 40_000,
    ("send_message", 20): 250,
    ("send_message_batch", 20): 2_500,
    ("32 threads", 20): 40_000,
    ("sink", 20): 40_000,
}
RIVALS = ("send_message", "send_message_batch", "32 threads")
THREADS = 32
AIMS = {
    ("send_message", 0): 8.0,
    ("send_message_batch", 0): 1.0,
    ("send_message_batch", 20): 15.0,
    ("32 threads", 0): 1.0,
    ("32 threads", 20): 1.0,
}
"""The sink's speed as a multiple of another's, per latency in milliseconds."""

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


def plain(url: str, *, batched: bool) -> Save:
    """What one writes by hand: a client per partition, failures noticed, nothing more."""
    queue_url = f"{url}/000000000000/orders-delay.fifo"

    def send(rows: Iterator[Row]) -> None:
        import boto3

        client = boto3.client("sqs", endpoint_url=url, region_name=REGION)
        size = MAX_BATCH_ENTRIES if batched else 1
        entries: list[Any] = []
        for row in rows:
            entries.append(entry(row, len(entries)))
            if len(entries) == size:
                flush(client, entries)
                entries = []
        if entries:
            flush(client, entries)

    def flush(client: Any, entries: list[Any]) -> None:
        if not batched:
            (single,) = entries
            del single["Id"]
            client.send_message(QueueUrl=queue_url, **single)
        elif client.send_message_batch(QueueUrl=queue_url, Entries=entries).get("Failed"):
            raise RuntimeError("the stub failed entries")

    return lambda rows: rows.foreachPartition(send)


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


def rows_for(name: str, spark: SparkSession, rows: int, cores: int) -> DataFrame:
    """What a contestant is given."""
    made = table(spark, rows, cores)
    return ready(made) if name.startswith("32 threads") else made


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
    share: float,
    against: Sequence[str] = RIVALS,
) -> None:
    """All contestants at one latency, and the sink's ratios to the others."""
    contestants = {
        "send_message": plain(stub.url, batched=False),
        "send_message_batch": plain(stub.url, batched=True),
        "32 threads": threaded(stub.url),
        "sink": sink(stub.url),
    }
    contestants = {name: save for name, save in contestants.items() if name in {*against, "sink"}}
    numbers = {
        name: max(MAX_BATCH_ENTRIES * cores, round(ROWS[name, latency_ms] * share) * cores)
        for name in contestants
    }
    stub.set_latency(latency_ms)
    for name, save in contestants.items():
        save(rows_for(name, spark, MAX_BATCH_ENTRIES * cores, cores))
    turns = [
        {
            name: measure(
                spark, stub, save, rows_for(name, spark, numbers[name], cores), numbers[name]
            )
            for name, save in contestants.items()
        }
        for _ in range(rounds)
    ]
    print(f"\n{cores} core{'s' if cores > 1 else ''}, {latency_ms} ms latency, {rounds} rounds")
    for name in contestants:
        print(line(name, numbers[name], latency_ms, turns), flush=True)


def line(name: str, rows: int, latency_ms: int, turns: Sequence[dict[str, Round]]) -> str:
    """A contestant's medians, and how much faster the sink was in the same turn."""
    speed = statistics.median(turn[name].speed for turn in turns)
    cpu = statistics.median(turn[name].cpu_micros for turn in turns)
    busy = max(turn[name].stub_busy for turn in turns)
    faster = statistics.median(turn["sink"].speed / turn[name].speed for turn in turns)
    line = f"  {name:<20}{rows:>8,} rows{speed:>9,.0f} rows/s{cpu:>7,.0f} µs CPU/row   stub {busy:>4.0%} busy"
    if name == "sink":
        return line
    aim = AIMS.get((name, latency_ms))
    verdict = "" if aim is None else f"  aim {aim:g}: {'met' if faster >= aim else 'MISSED'}"
    return f"{line}   sink is {faster:.2f} x as fast{verdict}"


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
    parser.add_argument("--share", type=float, default=1.0, help="part of the rows of each round")
    parser.add_argument("--cores", type=int, nargs="+", default=CORES)
    parser.add_argument("--against", nargs="+", choices=RIVALS, default=RIVALS)
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
                        share=options.share,
                        against=options.against,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
