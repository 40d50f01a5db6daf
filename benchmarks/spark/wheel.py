"""Rows into an S3 store's wheel against Spark's own ``write.json`` (gzip), in one run.

The same rows go all ways, which take turns, round by round: into objects of an S3 in memory (as they lie, and
shared out by id as ``sqsdelay pipeline schedule`` does), and as JSON lines to a local disk. The figures are
medians. Speed depends on the machine, so nothing fails the run; what was aimed at is printed beside what was
reached.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.spark.sink import Save, cpu_seconds
from benchmarks.support.sqs_stub import running_stub
from sqsdelay.spark import register
from sqsdelay.spark.session import session
from sqsdelay.spark.sink.options import Options, checked_columns
from sqsdelay.spark.sink.send import shared_out
from sqsdelay.stores.s3.layout import parse
from tests.services.s3_server import S3Server, running_s3

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

YEAR = 365 * 86_400
AIM = 2.0
WAYS = ("write.json", "wheel", "wheel, shared")
STORE = "s3://parked/delays"


def table(spark: SparkSession, rows: int, cores: int) -> DataFrame:
    """Messages of about 200 bytes, no two alike, due within a year from tomorrow on."""
    start_ms = time.time_ns() // 1_000_000 + 86_400_000
    return spark.range(0, rows, 1, cores * 4).selectExpr(
        "to_json(named_struct('order', id, 'text', concat(sha2(string(id), 256), "
        "sha2(string(id + 1), 256), substr(sha2(string(id + 2), 256), 1, 40)))) body",
        "concat('order-', id) message_id",
        f"timestamp_millis({start_ms} + pmod(xxhash64(id), {YEAR * 1000})) due_at",
    )


def save(*, share_out: bool) -> Save:
    """With the data source; first shared out, as ``sqsdelay pipeline schedule`` does it, if wanted."""

    def saved(rows: DataFrame) -> None:
        options = {"endpoint": "orders", "store": STORE, "job": f"b{time.time_ns()}"}
        if share_out:
            tasks = str(rows.sparkSession.sparkContext.defaultParallelism)
            parsed = Options.parse(options | {"tasks": tasks})
            columns = checked_columns(rows.schema, parsed)
            rows, parsed = shared_out(rows, columns, parsed)
            options["parts"] = str(parsed.parts)
        rows.write.format("sqsdelay").options(**options).mode("append").save()

    return saved


def plain(folder: str) -> Save:
    """What anyone would write who only wants the rows as JSON lines."""

    def saved(rows: DataFrame) -> None:
        rows.write.option("compression", "gzip").mode("overwrite").json(f"{folder}/plain")

    return saved


@contextmanager
def memory(spark: SparkSession) -> Iterator[list[int]]:
    """The most bytes that Spark's Java, and the largest of its Python workers, had in the block."""
    gateway: Any = spark.sparkContext._gateway
    java = psutil.Process(gateway.proc.pid)
    most = [0, 0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            most[0] = max(most[0], java.memory_info().rss)
            for worker in java.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    most[1] = max(most[1], worker.memory_info().rss)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def measure(
    spark: SparkSession, name: str, save: Save, rows: DataFrame, number: int, server: S3Server
) -> tuple[float, float]:
    """One round: rows a second, and microseconds of processor time a row."""
    server.reset()
    used, started = cpu_seconds(spark), time.perf_counter()
    with memory(spark) as most:
        save(rows)
    seconds, used = time.perf_counter() - started, cpu_seconds(spark) - used
    speed, micros = number / seconds, used / number * 1e6
    java, worker = (each / 2**20 for each in most)
    print(
        f"  {name:<15}{number:>12,} rows{seconds:>8.1f} s{speed:>10,.0f} rows/s{micros:>7.1f} µs CPU/row"
        f"   Java {java:,.0f} MiB, largest worker {worker:,.0f} MiB",
        flush=True,
    )
    if name.startswith("wheel"):
        named = {key: parse(key.partition("/v1/")[2]) for key in server.s3.objects}
        written = [each[0].count for each in named.values() if each is not None]
        size = sum(len(server.s3.objects[key]) for key, each in named.items() if each is not None)
        print(
            f"    {sum(written):,} messages in {len(written):,} objects, "
            f"{size / number:.0f} bytes a message; {dict(server.s3.requests)}",
            flush=True,
        )
        assert sum(written) == number, "not all rows got there"
    return speed, micros


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark wheel", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each, taking turns")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    folder = tempfile.mkdtemp(prefix="sqsdelay-wheel-")
    try:
        with running_stub() as sqs, running_s3() as s3:
            os.environ.update(sqs.environment(AWS_ENDPOINT_URL_S3=s3.url))
            settings = {"spark.driver.memory": "2g", "spark.local.dir": folder}
            master = f"local[{options.cores}]"
            with session("benchmark", master=master, settings=settings) as spark:
                register(spark)
                return compare(spark, options, s3, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare(spark: SparkSession, options: argparse.Namespace, server: S3Server, folder: str) -> int:
    """All, in turns."""
    found = (plain(folder), save(share_out=False), save(share_out=True))
    ways = {name: way for name, way in zip(WAYS, found, strict=True) if name in options.ways}
    for each in ways.values():
        each(table(spark, 20_000, options.cores))
    turns = []
    for _ in range(options.rounds):
        turns.append(
            {
                name: measure(
                    spark,
                    name,
                    way,
                    table(spark, options.rows, options.cores),
                    options.rows,
                    server,
                )
                for name, way in ways.items()
            }
        )
        # Of the turns so far: a run that is stopped has told what it found.
        tell(turns)
    return 0


def tell(turns: Sequence[dict[str, tuple[float, float]]]) -> None:
    """Medians of what the ways come to beside the plain write, where it was taken."""
    for name in [name for name in turns[0] if name != WAYS[0] and WAYS[0] in turns[0]]:
        longer = statistics.median(turn[WAYS[0]][0] / turn[name][0] for turn in turns)
        dearer = statistics.median(turn[name][1] / turn[WAYS[0]][1] for turn in turns)
        met = "met" if longer <= AIM else "MISSED"
        print(
            f"{name}: {longer:.2f} x the time of the plain write (aim {AIM:g}: {met}), "
            f"{dearer:.2f} x its processor time",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
