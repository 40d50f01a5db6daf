"""The report over 1 and 10 million events: time and memory, beside DuckDB on the same files.

DuckDB makes the tables of messages, lateness and summary with SQL written for it alone; the report makes
three more and the page. Their figures must be the same, or the run fails.
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
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import psutil

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

JOIN = """
CREATE TABLE line AS SELECT DISTINCT * FROM read_json('{ledger}', format = 'newline_delimited', columns = {{
  v: 'INT', event: 'VARCHAR', at_ms: 'BIGINT', endpoint: 'VARCHAR', message_id: 'VARCHAR',
  source: 'VARCHAR', due_ms: 'BIGINT', size: 'BIGINT', batch: 'BIGINT', receive_batch: 'BIGINT',
  route: 'VARCHAR', timer_seconds: 'BIGINT', late_ms: 'BIGINT', sqs_message_id: 'VARCHAR'}});
CREATE TABLE message AS SELECT endpoint, message_id, min(at_ms) FILTER (event = 'sent') AS sent_ms,
  arg_max(due_ms, at_ms) AS due_ms, min(at_ms) FILTER (event = 'received') AS received_ms,
  arg_min(late_ms, at_ms) FILTER (event = 'received') AS late_ms,
  arg_min(late_ms, at_ms) FILTER (event = 'handed-over') AS hand_over_late_ms,
  max(size) AS size, count(*) AS events, count(*) FILTER (event IN ('hop', 'handed-over')) AS hops,
  count(DISTINCT sqs_message_id) FILTER (event = 'received') AS copies,
  sum(CASE WHEN event = 'sent' THEN 1.0 / batch WHEN event = 'hop' THEN 1.0 / batch + 2.0 / receive_batch
      WHEN event = 'handed-over' THEN 2.0 / receive_batch END) AS fifo_requests,
  max(at_ms) AS last_ms
FROM line GROUP BY endpoint, message_id;
CREATE TABLE judged AS SELECT *, CASE WHEN received_ms IS NOT NULL THEN 'delivered'
  WHEN due_ms + 3600000 < (SELECT max(last_ms) FROM message) THEN 'lost' ELSE 'pending' END AS status
FROM message;
COPY (FROM judged ORDER BY endpoint, message_id) TO '{out}/messages.parquet';
COPY (SELECT endpoint, due_ms // 3600000 AS hour, count(*), quantile_cont(late_ms, [0.5, 0.9, 0.99, 1]),
  quantile_cont(hand_over_late_ms, [0.5, 0.9, 0.99, 1])
  FROM judged GROUP BY ALL ORDER BY ALL) TO '{out}/lateness.parquet';
CREATE TABLE summary AS SELECT endpoint, count(*) AS messages,
  count(*) FILTER (status = 'delivered') AS delivered, count(*) FILTER (status = 'lost') AS lost,
  count(*) FILTER (status = 'pending') AS pending, count(*) FILTER (copies > 1) AS duplicated,
  sum(fifo_requests) AS fifo_requests, quantile_cont(late_ms, [0.5, 0.9, 0.99, 1]) AS late
FROM judged GROUP BY ROLLUP (endpoint);
COPY summary TO '{out}/summary.parquet';
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


def with_duckdb(ledger: Path, out: Path) -> dict[str, int]:
    """The same tables, made by DuckDB."""
    out.mkdir()
    connection = duckdb.connect(str(out / "database"))
    connection.execute(JOIN.format(ledger=f"{ledger}/*.jsonl", out=out))
    names = ("messages", "delivered", "lost", "pending", "duplicated")
    row = connection.execute(
        f"SELECT {', '.join(names)} FROM summary WHERE endpoint IS NULL"
    ).fetchone()
    assert row is not None
    return dict(zip(names, row, strict=True))


def measure(engine: str, events: int, command: Sequence[str]) -> Measured:
    """Run a command that prints its figures as JSON, and watch it and its children."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak, spent = 0, dict[int, float]()
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
    printed, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{engine} failed:\n{errors[-2000:]}")
    return Measured(
        engine=engine,
        events=events,
        seconds=time.monotonic() - started,
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


def compare(events: int) -> list[Measured]:
    """Both engines over one ledger."""
    with TemporaryDirectory(prefix="sqsdelay-") as folder:
        ledger = Path(folder) / "ledger"
        ledger.mkdir()
        generate(ledger, events)
        size = sum(path.stat().st_size for path in ledger.iterdir())
        print(f"\n{events:,} events, {size / MILLION:,.0f} MB of JSON lines", flush=True)
        call = [sys.executable, "-c", "from sqsdelay.cli import main; main()"]
        report = ["pipeline", "report", str(ledger), "--out", f"{folder}/report", "--json"]
        duck = [
            sys.executable,
            "-m",
            "benchmarks.spark.report",
            "--duckdb",
            str(ledger),
            f"{folder}/duckdb",
        ]
        found = []
        for engine, command in (("Spark", [*call, *report]), ("DuckDB", duck)):
            found.append(measure(engine, events, command))
            show(found[-1])
        return found


def show(measured: Measured) -> None:
    print(
        f"{measured.engine:8}{measured.seconds:8.1f} s{measured.cpu_seconds:8.1f} s of processor"
        f"{measured.peak_bytes / 2**20:8,.0f} MiB",
        flush=True,
    )


def run(sizes: Sequence[int]) -> list[str]:
    """Measure each size; what is wrong with the results."""
    results = {events: compare(events) for events in sizes}
    problems = []
    print()
    for events, (spark, duck) in results.items():
        print(
            f"{events:,} events: Spark takes {spark.seconds / duck.seconds:.1f} times as long as "
            f"DuckDB and {spark.peak_bytes / duck.peak_bytes:.1f} times its memory"
        )
        if differing := [
            name for name in duck.figures if duck.figures[name] != spark.figures[name]
        ]:
            problems.append(f"{events:,} events: Spark and DuckDB differ in {', '.join(differing)}")
    if len(sizes) > 1:
        least, most = results[min(sizes)], results[max(sizes)]
        for small, large in zip(least, most, strict=True):
            print(
                f"{small.engine}: {max(sizes) / min(sizes):g} times the events take "
                f"{large.seconds / small.seconds:.1f} times as long and "
                f"{large.peak_bytes / small.peak_bytes:.1f} times the memory"
            )
    return problems


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    sizes: dict[str, Any] = {"type": int, "nargs": "+", "default": [MILLION, 10 * MILLION]}
    parser.add_argument("--events", **sizes, help="sizes of the ledgers")
    parser.add_argument("--duckdb", nargs=2, metavar=("LEDGER", "OUT"), help="DuckDB's part alone")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    if arguments.duckdb:
        ledger, out = map(Path, arguments.duckdb)
        print(json.dumps(with_duckdb(ledger, out)))
        return 0
    problems = run(arguments.events)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
