"""Rows into an S3 store's wheel against the queue sink and Spark's own ``write.json`` (gzip), in one run.

The same rows go all ways, which take turns, round by round: into objects on a stub of S3 (as they lie, and
shared out by id as ``sqsdelay pipeline schedule`` does), to the delay queue on a stub of SQS, and as JSON
lines to a local disk. The figures are medians. Speed depends on
the machine, so nothing fails the run; what was aimed at is printed beside what was reached.
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
from benchmarks.support.s3_stub import S3Stub, running_s3_stub
from benchmarks.support.sqs_stub import REGION, running_stub
from sqsdelay.spark import register
from sqsdelay.spark.session import session
from sqsdelay.spark.sink.options import Options, checked_columns
from sqsdelay.spark.sink.send import shared_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

YEAR = 365 * 86_400
AIM_SINK, AIM_PLAIN = 10.0, 2.0
WAYS = ("write.json", "wheel", "wheel, shared", "queue sink")
STORE = "s3://parked/delays"
SINK_SHARE = 10
"""The queue sink gets a tenth of the rows, so that its rounds are about as long."""


def table(spark: SparkSession, rows: int, cores: int) -> DataFrame:
    """Messages of about 200 bytes, no two alike, due within a year from tomorrow on."""
    start_ms = time.time_ns() // 1_000_000 + 86_400_000
    return spark.range(0, rows, 1, cores * 4).selectExpr(
        "to_json(named_struct('order', id, 'text', concat(sha2(string(id), 256), "
        "sha2(string(id + 1), 256), substr(sha2(string(id + 2), 256), 1, 40)))) body",
        "concat('order-', id) message_id",
        f"timestamp_millis({start_ms} + pmod(xxhash64(id), {YEAR * 1000})) due_at",
    )


def save(*, share_out: bool = False, **more: str) -> Save:
    """With the data source; first shared out, as ``sqsdelay pipeline schedule`` does it, if wanted."""

    def saved(rows: DataFrame) -> None:
        options = {"endpoint": "orders", "region": REGION, "job": f"b{time.time_ns()}"} | more
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
    spark: SparkSession, name: str, save: Save, rows: DataFrame, number: int, s3: S3Stub
) -> tuple[float, float]:
    """One round: rows a second, and microseconds of processor time a row."""
    s3.counts()
    used, started = cpu_seconds(spark), time.perf_counter()
    with memory(spark) as most:
        save(rows)
    seconds, used = time.perf_counter() - started, cpu_seconds(spark) - used
    speed, micros = number / seconds, used / number * 1e6
    counts = s3.counts()
    java, worker = (each / 2**20 for each in most)
    print(
        f"  {name:<15}{number:>12,} rows{seconds:>8.1f} s{speed:>10,.0f} rows/s{micros:>7.1f} µs CPU/row"
        f"   Java {java:,.0f} MiB, largest worker {worker:,.0f} MiB",
        flush=True,
    )
    if name.startswith("wheel"):
        objects = max(1, counts["objects"])
        asked = ", ".join(f"{counts[n]:,} {n}" for n in ("PutObject", "GetObject", "ListObjectsV2"))
        print(
            f"    {counts['messages']:,} messages in {counts['objects']:,} objects, "
            f"{counts['messages'] / objects:,.0f} each, {counts['bytes'] / number:.0f} bytes a message; "
            f"{asked}",
            flush=True,
        )
        assert counts["messages"] == number, "not all rows got there"
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
    os.environ.update(
        AWS_ACCESS_KEY_ID="stub",
        AWS_SECRET_ACCESS_KEY="stub",
        AWS_DEFAULT_REGION=REGION,
        PYTHONPATH=str(Path(__file__).parents[2]),
    )
    folder = tempfile.mkdtemp(prefix="sqsdelay-wheel-")
    try:
        with running_stub() as sqs, running_s3_stub() as s3:
            os.environ.update(AWS_ENDPOINT_URL_SQS=sqs.url, AWS_ENDPOINT_URL_S3=s3.url)
            settings = {"spark.driver.memory": "2g", "spark.local.dir": folder}
            master = f"local[{options.cores}]"
            with session("benchmark", master=master, settings=settings) as spark:
                register(spark)
                return compare(spark, options, s3, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare(spark: SparkSession, options: argparse.Namespace, s3: S3Stub, folder: str) -> int:
    """All three, in turns."""
    ways = {
        "write.json": plain(folder),
        "wheel": save(store=STORE),
        "wheel, shared": save(share_out=True, store=STORE),
        "queue sink": save(),
    }
    ways = {name: ways[name] for name in ways if name in options.ways}
    numbers = dict.fromkeys(ways, options.rows)
    if "queue sink" in ways:
        numbers["queue sink"] = max(1, options.rows // SINK_SHARE)
    for each in ways.values():
        each(table(spark, 20_000, options.cores))
    turns = []
    for _ in range(options.rounds):
        turn = {}
        for name, way in ways.items():
            rows = table(spark, numbers[name], options.cores)
            turn[name] = measure(spark, name, way, rows, numbers[name], s3)
        turns.append(turn)
        # Of the turns so far: a run that is stopped has told what it found.
        tell(turns)
    return 0


def tell(turns: Sequence[dict[str, tuple[float, float]]]) -> None:
    """Medians of what the ways come to beside each other, where all were taken."""
    if len(turns[0]) < len(WAYS):
        return

    def median(of: str, to: str, figure: int) -> float:
        return statistics.median(turn[of][figure] / turn[to][figure] for turn in turns)

    lighter = median("queue sink", "wheel", 1)
    met = "met" if lighter >= AIM_SINK else "MISSED"
    print(
        f"the wheel takes {median('wheel', 'queue sink', 0):.1f} x the rows of the queue sink a second, and "
        f"{lighter:.1f} x a second of processor time (aim {AIM_SINK:g}: {met})"
    )
    for name in ("wheel", "wheel, shared"):
        longer = median("write.json", name, 0)
        met = "met" if longer <= AIM_PLAIN else "MISSED"
        print(
            f"{name}: {longer:.2f} x the time of the plain write (aim {AIM_PLAIN:g}: {met}), "
            f"{median(name, 'write.json', 1):.2f} x its processor time",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
