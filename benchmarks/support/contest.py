"""Contestants that take turns on the same stub, each held against the first in the same turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.support.sqs_stub import Stub
from sqsdelay.core.limits import MAX_BATCH_ENTRIES

Work = Callable[[int], object]
"""Does the work for so many messages."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One timed round."""

    seconds: float
    cpu_seconds: float
    requests: int


def measured(stub: Stub, work: Work, messages: int) -> Round:
    """One round: timed, the CPU time of this process taken, its requests counted by the server."""
    before = stub.requests().total()
    cpu, wall = time.process_time(), time.perf_counter()
    work(messages)
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    requests = stub.requests().total() - before
    return Round(seconds=seconds, cpu_seconds=cpu_seconds, requests=requests)


def compared(
    stub: Stub,
    contestants: Mapping[str, Work],
    *,
    messages: int,
    rounds: int,
    supply: int | None = None,
    unit: str = "msg",
) -> dict[str, list[Round]]:
    """Measure so many rounds of each, after one that warms up, and print their medians.

    Args:
        supply: before a round, let the stub's receives have the messages, which wait for so many seconds.
        unit: what a message is called.
    """

    def turn(messages: int) -> dict[str, Round]:
        found = {}
        for name, work in contestants.items():
            if supply is not None:
                stub.supply(messages, remaining_seconds=[supply])
            found[name] = measured(stub, work, messages)
        return found

    turn(MAX_BATCH_ENTRIES)
    turns = [turn(messages) for _ in range(rounds)]
    columns = {name: [each[name] for each in turns] for name in contestants}
    first = next(iter(columns.values()))
    for name, column in columns.items():
        pairs = list(zip(first, column, strict=True))
        speed = statistics.median(messages / each.seconds for each in column)
        cpu = statistics.median(each.cpu_seconds / messages for each in column)
        faster = statistics.median(rival.seconds / each.seconds for rival, each in pairs)
        dearer = statistics.median(each.cpu_seconds / rival.cpu_seconds for rival, each in pairs)
        requests = max(each.requests for each in column)
        print(
            f"  {name:<40}{speed:>9,.0f} {unit}/s{cpu * 1e6:>8.1f} µs CPU/{unit}{faster:>8.2f} x speed"
            f"{dearer:>7.2f} x CPU{requests:>7,} requests",
            flush=True,
        )
    return columns
