"""The Spark sink and a rival written by hand, while SQS throttles both.

Each sends the same table through a queue that takes so many calls a second. What counts is how many
different messages it took a second until the job ended, well or not, and how many it was sent twice.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark.sink import Save, in_workers, ready, sink, table, threaded
from benchmarks.support.sqs_stub import Stub, running_stub
from sqsdelay.spark import register
from sqsdelay.spark.session import session


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What the queue took of one job."""

    distinct: int
    copies: int
    throttled: int
    seconds: float
    failed: bool


def measure(stub: Stub, save: Save, rows: DataFrame, calls_per_second: float) -> Sent:
    """One job, from its beginning to its end or failure."""
    stub.keep()
    stub.throttle(calls_per_second)
    started, failed = time.perf_counter(), False
    try:
        save(rows)
    except (PySparkException, Py4JJavaError):
        failed = True
    seconds = time.perf_counter() - started
    throttled = stub.throttled()
    stub.throttle(None)
    kept = [entry["MessageBody"] + entry["MessageGroupId"] for entry in stub.kept()]
    return Sent(
        distinct=len(set(kept)),
        copies=len(kept) - len(set(kept)),
        throttled=throttled,
        seconds=seconds,
        failed=failed,
    )


def compare(
    spark: SparkSession, stub: Stub, rows: int, calls_per_second: float, tasks: int = 2
) -> None:
    """Both, and the ratios."""
    # The rival comes last: where it fails, its threads go on sending for seconds.
    contestants = {"sink": sink(stub.url), "32 threads by hand": threaded(stub.url)}

    def made(name: str, rows: int) -> DataFrame:
        given = table(spark, rows, tasks)
        return given if name == "sink" else ready(given)

    for name, save in contestants.items():
        save(made(name, 10 * tasks))
    found = {
        name: measure(stub, save, made(name, rows), calls_per_second)
        for name, save in contestants.items()
    }
    print(f"\n{rows:,} rows, {calls_per_second:g} batch calls a second taken, {tasks} tasks")
    for name, sent in found.items():
        end = "failed" if sent.failed else "done"
        print(
            f"  {name:<20}{end:>7} in {sent.seconds:>6,.1f} s   {sent.distinct:>7,} distinct rows   "
            f"{sent.copies:>6,} sent twice   {sent.throttled:>6,} calls throttled"
        )
    rival, ours = found["32 threads by hand"], found["sink"]
    faster = (ours.distinct / ours.seconds) / max(rival.distinct / rival.seconds, 1e-9)
    share = ours.copies / rival.copies if rival.copies else float(ours.copies > 0)
    print(
        f"  the sink sends {faster:.2f} x its distinct rows a second  aim 2: {told(faster >= 2)}, "
        f"with {share:.2f} x its copies  aim 0.1: {told(share <= 0.1)}",
        flush=True,
    )


def told(reached: bool) -> str:
    return "met" if reached else "MISSED"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark throttled", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--calls", type=float, default=30, help="batch calls a second")
    parser.add_argument("--tasks", type=int, default=2, help="that run at a time")
    options = parser.parse_args(arguments)
    in_workers()
    # A failed task is tried four times, as on a cluster.
    with running_stub() as stub, session("benchmark", master=f"local[{options.tasks},4]") as spark:
        register(spark)
        compare(spark, stub, options.rows, options.calls, options.tasks)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
