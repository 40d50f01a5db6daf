"""Stores and dispatcher side by side with the seed's loop, plain SQL and procrastinate.

Everything runs against a SQLite file and a PostgreSQL that writes through to disk: a private one, or
a database of its own on that of SQSDELAY_TEST_POSTGRES. Contestants take turns; figures are medians. The run
fails (exit code 1) when a ratio misses its aim.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import procrastinate
import psycopg
from psycopg import sql

from benchmarks.support.sqs_stub import BODY, Stub, running_stub
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.ports.queues import Failure, Outbox
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.sqs.outbox import DEFAULT_CONCURRENCY, SqsOutbox
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from tests.services.postgres import VARIABLE, postgres_server

ENDPOINT = "orders"
TABLE = "benchmark.delayed"
CHUNK = 1_000
FAR_MS = 30 * 24 * 3600 * 1000

AIM_NO_OP = 40.0
AIM_END_TO_END = 6.0
AIM_LIBRARY = 1.0
AIM_FLAT = 1.5
AIM_SINGLE = 1.2
AIM_COPY = 1.5
AIM_PLAIN_BATCH = 1.0
PLAIN_BATCH = 500


class NoOpOutbox:
    """A destination that takes everything at once."""

    max_ahead_seconds = 0

    def check(self) -> None:
        """Always ready."""

    def now_ms(self) -> int:
        return SystemClock().now_ms()

    def send(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        return [None] * len(messages)

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        raise AssertionError(f"nothing fails here, yet {len(messages)} were rejected")


def messages(count: int, *, due_ms: int, prefix: str) -> Iterator[list[StoredMessage]]:
    """``count`` messages in chunks, one due each millisecond from ``due_ms``."""
    for start in range(0, count, CHUNK):
        yield [
            StoredMessage(
                message_id=f"{prefix}-{number}",
                destination=ENDPOINT,
                due_ms=due_ms + number,
                body=BODY.encode(),
            )
            for number in range(start, min(start + CHUNK, count))
        ]


def fill(store: DelayedMessageStore, count: int, *, due_ms: int, prefix: str) -> float:
    """Store so many messages; returns how many a second."""
    started = time.perf_counter()
    for chunk in messages(count, due_ms=due_ms, prefix=prefix):
        store.store(chunk)
    return count / (time.perf_counter() - started)


def fill_due(store: DelayedMessageStore, count: int) -> None:
    fill(store, count, due_ms=SystemClock().now_ms() - count - 1000, prefix="due")


def dispatch_all(store: DelayedMessageStore, outbox: Outbox, count: int) -> float:
    """Empty the store of what is due; returns how many a second."""
    dispatcher = Dispatcher(store, outbox, settings=DispatchSettings(release_ahead_seconds=0))
    dispatcher.start()
    started = time.perf_counter()
    released = 0
    while (done := dispatcher.dispatch()).claimed:
        released += len(done.released)
    seconds = time.perf_counter() - started
    assert released == count, f"{released} of {count} released"
    return count / seconds


SEED_FETCH = """
SELECT message_id, destination, due_ms, headers, body, failures FROM {} WHERE due_ms < %s
ORDER BY due_ms LIMIT 1 FOR UPDATE SKIP LOCKED
"""


def seed_loop(conninfo: str, send: Callable[[bytes], None], count: int) -> float:
    """The seed's loop, one row per transaction: fetch the next due, send it, remove it."""
    table = sql.Identifier("public", TABLE)
    fetch = sql.SQL(SEED_FETCH).format(table)
    remove = sql.SQL("DELETE FROM {} WHERE message_id = %s").format(table)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        started = time.perf_counter()
        for _ in range(count):
            with connection.transaction():
                row = connection.execute(fetch, [SystemClock().now_ms()]).fetchone()
                assert row is not None
                send(row[4])
                connection.execute(remove, [row[0]])
        return count / (time.perf_counter() - started)


PLAIN_FETCH = """
SELECT message_id, destination, due_ms, body, headers, failures FROM {} WHERE due_ms < %s
ORDER BY due_ms LIMIT {} FOR UPDATE SKIP LOCKED
"""


def dispatch_plainly(conninfo: str, count: int) -> float:
    """Fetch and delete in batches: no message is made of a row, nothing is checked or sent."""
    table = sql.Identifier("public", TABLE)
    fetch = sql.SQL(PLAIN_FETCH).format(table, sql.Literal(PLAIN_BATCH))
    remove = sql.SQL("DELETE FROM {} WHERE message_id = ANY(%s)").format(table)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        started = time.perf_counter()
        for _ in range(-(-count // PLAIN_BATCH)):
            with connection.transaction():
                rows = connection.execute(fetch, [SystemClock().now_ms()]).fetchall()
                connection.execute(remove, [[row[0] for row in rows]])
        return count / (time.perf_counter() - started)


def copy_plainly(connection: psycopg.Connection[Any], chunk: Sequence[StoredMessage]) -> None:
    """One COPY: it fails as a whole where an id is there already, and wakes nobody."""
    statement = sql.SQL(
        "COPY {} (message_id, destination, due_ms, body, headers) FROM STDIN"
    ).format(sql.Identifier("public", TABLE))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for m in chunk:
            copy.write_row((m.message_id, m.destination, m.due_ms, m.body, m.headers()))


def seed_loop_on_sqlite(path: Path, count: int) -> float:
    """The same on SQLite."""
    import sqlite3

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        started = time.perf_counter()
        for _ in range(count):
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute(
                f'SELECT * FROM "{TABLE}" WHERE due_ms < ? ORDER BY due_ms LIMIT 1',
                [SystemClock().now_ms()],
            ).fetchone()
            connection.execute(f'DELETE FROM "{TABLE}" WHERE message_id = ?', [row[0]])
            connection.execute("COMMIT")
        return count / (time.perf_counter() - started)


class Procrastinate:
    """The peer: a job a message, a task that does nothing, its worker as fast as it goes."""

    def __init__(self, conninfo: str) -> None:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._conninfo = conninfo
        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=conninfo))
        with app.open():
            app.schema_manager.apply_schema()

    def run(self, count: int) -> float:
        """Defer so many jobs, then time how fast they are worked off."""
        return asyncio.run(self._run(count))

    async def _run(self, count: int) -> float:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self._conninfo))

        @app.task(name="deliver")
        async def deliver(body: str) -> None:
            """A no-op, as the others' is."""

        async with app.open_async():
            for start in range(0, count, CHUNK):
                chunk = range(start, min(start + CHUNK, count))
                jobs: list[dict[str, Any]] = [{"body": BODY} for _ in chunk]
                await deliver.batch_defer_async(*jobs)
            started = time.perf_counter()
            await app.run_worker_async(
                wait=False,
                concurrency=10,
                install_signal_handlers=False,
                delete_jobs="always",
                listen_notify=False,
            )
            return count / (time.perf_counter() - started)


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A ratio, and what it must reach (or stay below)."""

    name: str
    ratio: float
    limit: float
    below: bool = False

    @property
    def met(self) -> bool:
        return self.ratio <= self.limit if self.below else self.ratio >= self.limit

    def line(self) -> str:
        sign = "<=" if self.below else ">="
        return f"{'ok    ' if self.met else 'FAILED'} {self.name}: {self.ratio:.2f} (aim {sign} {self.limit})"


def turns(contestants: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Each contestant's median rate, after they took turns; printed."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            rates[name].append(run())
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, median in medians.items():
        low, high = min(rates[name]), max(rates[name])
        print(f"  {name:<44}{median:>12,.0f} /s   ({low:,.0f} to {high:,.0f})", flush=True)
    return medians


class Postgres:
    """All comparisons on PostgreSQL."""

    def __init__(self, conninfo: str, options: argparse.Namespace) -> None:
        self._conninfo = conninfo
        self._options = options
        self._store = PostgresStore(conninfo, endpoint=ENDPOINT, table=TABLE)
        self._numbers = iter(range(10**9))

    def run(self, stub: Stub) -> list[Aim]:
        with closing(self._store):
            return [*self._storing(), *self._dispatching(), *self._end_to_end(stub), *self._flat()]

    def _empty(self) -> None:
        self._store.set_up()
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier("public", TABLE)))

    def _storing(self) -> list[Aim]:
        """Against the plainest INSERT into the same table, on a connection that is kept open."""
        self._empty()
        now_ms = SystemClock().now_ms()
        fill(self._store, CHUNK, due_ms=now_ms + FAR_MS, prefix="head")
        count: int = self._options.single
        insert = sql.SQL(
            "INSERT INTO {} (message_id, destination, due_ms, body, headers) VALUES (%s, %s, %s, %b, %s)"
        ).format(sql.Identifier("public", TABLE))

        def plain() -> float:
            batch = self._some(count, now_ms + 2 * FAR_MS)
            with psycopg.connect(self._conninfo, autocommit=True) as connection:
                connection.execute("SELECT 1")
                started = time.perf_counter()
                for m in batch:
                    row = (m.message_id, m.destination, m.due_ms, m.body, "{}")
                    connection.execute(insert, row)
                return count / (time.perf_counter() - started)

        def ours() -> float:
            batch = self._some(count, now_ms + 2 * FAR_MS)
            started = time.perf_counter()
            for message in batch:
                self._store.store([message])
            return count / (time.perf_counter() - started)

        def ours_in_thousands() -> float:
            many = self._options.rows
            return fill(self._store, many, due_ms=now_ms + 2 * FAR_MS, prefix=self._prefix())

        def copied() -> float:
            many: int = self._options.rows
            started = time.perf_counter()
            with psycopg.connect(self._conninfo, autocommit=True) as connection:
                for chunk in messages(many, due_ms=now_ms + 2 * FAR_MS, prefix=self._prefix()):
                    copy_plainly(connection, chunk)
            return many / (time.perf_counter() - started)

        print("\nPostgreSQL: storing, not the next due")
        # Short turns and many: what else the machine does falls on both alike.
        medians = turns({"plain INSERT": plain, "store, one": ours}, 10 * self._options.rounds)
        many = turns(
            {"plain COPY, 1,000 at a time": copied, "store, 1,000 a call": ours_in_thousands},
            3 * self._options.rounds,
        )
        cost = medians["plain INSERT"] / medians["store, one"]
        bulk = many["plain COPY, 1,000 at a time"] / many["store, 1,000 a call"]
        return [
            Aim(name="cost of a store against an INSERT", ratio=cost, limit=AIM_SINGLE, below=True),
            Aim(name="cost of 1,000 a call against COPY", ratio=bulk, limit=AIM_COPY, below=True),
        ]

    def _some(self, count: int, due_ms: int) -> list[StoredMessage]:
        batches = messages(count, due_ms=due_ms, prefix=self._prefix())
        return [message for batch in batches for message in batch]

    def _prefix(self) -> str:
        return f"run-{next(self._numbers)}"

    def _dispatching(self) -> list[Aim]:
        peer = Procrastinate(self._conninfo)
        rows: int = self._options.rows
        few: int = self._options.slow_rows

        def ours() -> float:
            self._empty()
            fill_due(self._store, rows)
            return dispatch_all(self._store, NoOpOutbox(), rows)

        def seed() -> float:
            self._empty()
            # The loop's rate is per row; it is not made to walk through all of them.
            fill_due(self._store, rows)
            return seed_loop(self._conninfo, lambda _: None, few)

        def plain() -> float:
            self._empty()
            fill_due(self._store, rows)
            return dispatch_plainly(self._conninfo, rows)

        print(f"\nPostgreSQL: dispatching {rows:,} due rows, no-op send")
        slow = turns(
            {
                f"seed's loop, one row per transaction ({few:,})": seed,
                f"procrastinate, concurrency 10 ({few:,} jobs)": lambda: peer.run(few),
            },
            self._options.rounds,
        )
        fast = turns(
            {
                f"plain SQL, {PLAIN_BATCH} rows per transaction": plain,
                "sqsdelay dispatcher": ours,
            },
            3 * self._options.rounds,
        )
        (loop, library), (batch, mine) = slow.values(), fast.values()
        return [
            Aim(name="dispatch against plain SQL", ratio=mine / batch, limit=AIM_PLAIN_BATCH),
            Aim(name="dispatch against the seed's loop", ratio=mine / loop, limit=AIM_NO_OP),
            Aim(name="dispatch against procrastinate", ratio=mine / library, limit=AIM_LIBRARY),
        ]

    def _end_to_end(self, stub: Stub) -> list[Aim]:
        rows: int = self._options.rows // 5
        few: int = self._options.slow_rows // 4
        client = stub.client(connections=DEFAULT_CONCURRENCY)
        endpoint = Endpoint.parse(ENDPOINT)
        outbox = SqsOutbox(SqsQueues(client), endpoint)
        url = client.get_queue_url(QueueName=ENDPOINT)["QueueUrl"]

        def send(body: bytes) -> None:
            client.send_message(QueueUrl=url, MessageBody=body.decode())

        def ours() -> float:
            self._empty()
            fill_due(self._store, rows)
            return dispatch_all(self._store, outbox, rows)

        def seed() -> float:
            self._empty()
            fill_due(self._store, few)
            return seed_loop(self._conninfo, send, few)

        aims = []
        for latency_ms in (0.0, 5.0):
            stub.set_latency(latency_ms)
            print(f"\nPostgreSQL to SQS: {rows:,} due rows, SQS answering after {latency_ms:g} ms")
            medians = turns(
                {f"seed's loop ({few:,})": seed, "sqsdelay dispatcher": ours}, self._options.rounds
            )
            loop, mine = medians.values()
            name = f"end to end against the seed's loop, {latency_ms:g} ms"
            aims.append(Aim(name=name, ratio=mine / loop, limit=AIM_END_TO_END))
        outbox.close()
        return aims

    def _flat(self) -> list[Aim]:
        """Two tables, few and many pending, taking turns."""
        due: int = self._options.flat_rows
        contestants: dict[str, Callable[[], float]] = {}
        with ExitStack() as stack:
            for pending in (10_000, self._options.pending):
                store = stack.enter_context(self._filled(pending))

                def ours(store: DelayedMessageStore = store) -> float:
                    fill_due(store, due)
                    return dispatch_all(store, NoOpOutbox(), due)

                contestants[f"{pending:,} pending"] = ours
            print(f"\nPostgreSQL: dispatching {due:,} due rows among many pending")
            few, many = turns(contestants, 3 * self._options.rounds).values()
        name = f"cost of a dispatch among {self._options.pending:,} against 10,000"
        return [Aim(name=name, ratio=few / many, limit=AIM_FLAT, below=True)]

    @contextmanager
    def _filled(self, pending: int) -> Iterator[DelayedMessageStore]:
        table = f"benchmark.{pending}"
        with closing(PostgresStore(self._conninfo, endpoint=ENDPOINT, table=table)) as store:
            store.set_up()
            later_ms = SystemClock().now_ms() + FAR_MS
            fill(store, pending, due_ms=later_ms, prefix="later")
            with psycopg.connect(self._conninfo, autocommit=True) as connection:
                # What filling left to do is not the dispatcher's to pay for.
                connection.execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(table)))
                with suppress(psycopg.errors.InsufficientPrivilege):
                    connection.execute("CHECKPOINT")
            yield store


def on_sqlite(folder: Path, options: argparse.Namespace) -> list[Aim]:
    """Storing and dispatching on a SQLite file, synchronous = FULL."""
    path = folder / "benchmark.db"
    rows: int = options.rows
    few: int = options.slow_rows
    with closing(SqliteStore(path, endpoint=ENDPOINT, table=TABLE)) as store:
        store.set_up()
        numbers = iter(range(10**9))
        later_ms = SystemClock().now_ms() + FAR_MS

        def store_ones() -> float:
            batches = list(messages(few, due_ms=later_ms, prefix=f"one-{next(numbers)}"))
            started = time.perf_counter()
            for batch in batches:
                for message in batch:
                    store.store([message])
            return few / (time.perf_counter() - started)

        def seed() -> float:
            fill_due(store, few)
            return seed_loop_on_sqlite(path, few)

        def ours() -> float:
            fill_due(store, rows)
            return dispatch_all(store, NoOpOutbox(), rows)

        def store_many() -> float:
            return fill(store, rows, due_ms=later_ms, prefix=f"many-{next(numbers)}")

        print(f"\nSQLite: storing, and dispatching {rows:,} due rows with a no-op send")
        turns(
            {
                "store, one": store_ones,
                "store, 1,000 a call": store_many,
                f"seed's loop, one row per transaction ({few:,})": seed,
                "sqsdelay dispatcher": ours,
            },
            options.rounds,
        )
    return []


@contextmanager
def database() -> Iterator[str]:
    """A database of its own, on the given server or a private one."""
    with ExitStack() as stack:
        given = os.environ.get(VARIABLE)
        server = given or stack.enter_context(postgres_server(durable=True)).conninfo
        connection = stack.enter_context(psycopg.connect(server, autocommit=True))
        name = f"sqsdelay_benchmark_{os.getpid()}"
        quoted = sql.Identifier(name)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(quoted))
        try:
            yield psycopg.conninfo.make_conninfo(server, dbname=name)
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(quoted))


def parsed_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add: Any = parser.add_argument
    add("--rounds", type=int, default=3, help="rounds of each, taking turns")
    add("--rows", type=int, default=100_000, help="due rows to dispatch")
    add("--slow-rows", type=int, default=8_000, help="rows for those that take one at a time")
    add("--single", type=int, default=500, help="single stores a turn")
    add("--pending", type=int, default=1_000_000, help="most rows pending")
    add("--flat-rows", type=int, default=20_000, help="due rows among the pending ones")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed_options(arguments)
    with tempfile.TemporaryDirectory(prefix="sqsdelay-benchmark-") as folder:
        on_sqlite(Path(folder), options)
    with database() as conninfo, running_stub() as stub:
        aims = Postgres(conninfo, options).run(stub)
    print()
    for aim in aims:
        print(aim.line())
    return 0 if all(aim.met for aim in aims) else 1


if __name__ == "__main__":
    sys.exit(main())
