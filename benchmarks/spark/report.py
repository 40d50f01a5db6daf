"""The report over 1 and 10 million events: time and memory, beside others on the same files.

The others are in `benchmarks.spark.report_rivals`. Their figures must be the same, or the run fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import duckdb
import psutil

from benchmarks.spark.report_rivals import FIGURES, RIVALS

MILLION = 10**6
EVENTS_A_MESSAGE = 4
MESSAGES_A_FILE = 250_000
LOST_ONE_IN, DUPLICATED_ONE_IN = 1000, 500
SAMPLE_SECONDS = 0.1

GENERATE = """
COPY (
  WITH message AS (
    SELECT i, 'endpoint-' || (i % 20) AS endpoint, 'message-' || i AS message_id,
      1790000000000 + (i * 7919) % 172800000 AS sent_ms
    FROM range($first, $last) AS r(i)),
  due AS (SELECT *, sent_ms + 1900000 AS due_ms FROM message),
  event AS (
    SELECT 'sent' AS event, sent_ms AS at_ms, endpoint, message_id, 'sender' AS source, due_ms,
      300 + i % 700 AS size, 10 AS batch, NULL AS receive_batch, 'delay-queue' AS route,
      NULL AS timer_seconds, NULL AS late_ms, NULL AS sqs_message_id FROM due
    UNION ALL SELECT 'hop', sent_ms + 900050, endpoint, message_id, 'consumer', due_ms,
      300 + i % 700, 10, 10, NULL, NULL, NULL, NULL FROM due
    UNION ALL SELECT 'handed-over', sent_ms + 1800100, endpoint, message_id, 'consumer', due_ms,
      300 + i % 700, 10, 10, NULL, 100, 100, NULL FROM due
    UNION ALL SELECT 'received', due_ms + 100 + (i * 31) % 900, endpoint, message_id, 'receiver', due_ms,
      NULL, 10, NULL, NULL, NULL, 100 + (i * 31) % 900, 'copy-' || i FROM due WHERE i % $lost <> 0
    UNION ALL SELECT 'received', due_ms + 5000, endpoint, message_id, 'receiver', due_ms,
      NULL, 10, NULL, NULL, NULL, 5000, 'again-' || i FROM due WHERE i % $duplicated = 1)
  SELECT 1 AS v, * FROM event
) TO '{path}' (FORMAT json)
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run of one engine: wall and processor seconds, and the most memory its processes had."""

    engine: str
    events: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    figures: dict[str, int]


def generate(folder: Path, events: int) -> None:
    """A ledger of about so many events: each message is sent, hops, is handed over and received."""
    folder.mkdir()
    messages = events // EVENTS_A_MESSAGE
    for number, first in enumerate(range(0, messages, MESSAGES_A_FILE)):
        path = folder / f"{number:04}.jsonl"
        values = {
            "first": first,
            "last": min(first + MESSAGES_A_FILE, messages),
            "lost": LOST_ONE_IN,
            "duplicated": DUPLICATED_ONE_IN,
        }
        duckdb.execute(GENERATE.format(path=path), values)


def measure(engine: str, events: int, command: Sequence[str]) -> Measured:
    """Run a command that prints its figures as JSON, and watch it and its children."""
    started = time.monotonic()
    peak, spent = 0, dict[int, float]()
    # Files, not pipes: nobody reads before the end, and a full pipe would stop the command.
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        while process.poll() is None:
            memory = 0
            for each in tree(process.pid):
                try:
                    memory += each.memory_info().rss
                    times = each.cpu_times()
                    spent[each.pid] = times.user + times.system
                except psutil.Error:
                    continue
            peak = max(peak, memory)
            time.sleep(SAMPLE_SECONDS)
        seconds = time.monotonic() - started
        output.seek(0)
        errors.seek(0)
        printed, told = output.read(), errors.read()
    if process.returncode:
        raise RuntimeError(f"{engine} failed:\n{told[-2000:]}")
    return Measured(
        engine=engine,
        events=events,
        seconds=seconds,
        cpu_seconds=sum(spent.values()),
        peak_bytes=peak,
        figures=json.loads(printed.splitlines()[-1]),
    )


def tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


REPORT = [sys.executable, "-c", "from sqsdelay.cli import main; main()", "pipeline", "report"]


def compare(events: int, rivals: Sequence[str]) -> list[Measured]:
    """The report, then its rivals, over one ledger."""
    with TemporaryDirectory(prefix="sqsdelay-") as folder:
        ledger = Path(folder) / "ledger"
        generate(ledger, events)
        size = sum(path.stat().st_size for path in ledger.iterdir())
        print(f"\n{events:,} events, {size / MILLION:,.0f} MB of JSON lines", flush=True)
        found = [
            measured(
                "report", events, [*REPORT, str(ledger), "--out", f"{folder}/report", "--json"]
            )
        ]
        for rival in rivals:
            program = [sys.executable, "-m", "benchmarks.spark.report_rivals", rival, str(ledger)]
            found.append(measured(rival, events, [*program, f"{folder}/{rival.split()[0]}"]))
        return found


def measured(engine: str, events: int, command: Sequence[str]) -> Measured:
    found = measure(engine, events, command)
    print(
        f"{engine:11}{found.seconds:8.1f} s{found.cpu_seconds:8.1f} s of processor"
        f"{found.peak_bytes / 2**20:8,.0f} MiB",
        flush=True,
    )
    return found


def run(sizes: Sequence[int], rivals: Sequence[str]) -> list[str]:
    """Measure each size; what is wrong with the results."""
    problems = []
    for events in sizes:
        ours, *theirs = compare(events, rivals)
        for each in theirs:
            print(
                f"{events:,} events: the report takes {ours.seconds / each.seconds:.2f} times as long as "
                f"{each.engine}, and {ours.peak_bytes / each.peak_bytes:.1f} times its memory"
            )
            if differing := [n for n in FIGURES if each.figures[n] != ours.figures[n]]:
                problems.append(
                    f"{events:,} events: {each.engine} differs in {', '.join(differing)}"
                )
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    sizes: dict[str, Any] = {"type": int, "nargs": "+", "default": [MILLION, 10 * MILLION]}
    parser.add_argument("--events", **sizes, help="sizes of the ledgers")
    parser.add_argument("--rivals", nargs="*", choices=RIVALS, default=list(RIVALS))
    given = parser.parse_args()
    problems = run(given.events, given.rivals)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
