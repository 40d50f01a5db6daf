"""Stores and dispatcher side by side with plain SQL and the seed's loop.

Everything runs against a SQLite file and a PostgreSQL that writes through to disk: a private one, or
a database of its own on that of SQSDELAY_TEST_POSTGRES. Contestants take turns; figures are medians, ratios
those of a turn's neighbours. The run fails (exit code 1) when a ratio misses its aim. It takes about a
minute on two idle cores, and less than four on busy ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.support.sqs_stub import BODY, Stub, running_stub
from sqsdelay.core.delay import SystemClock
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
COLUMNS = "message_id, destination, due_ms, body, headers"
CHUNK = 1_000
FAR_MS = 30 * 24 * 3600 * 1000
PLAIN_BATCH = 500

numbers = itertools.count()


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


def chunks(count: int, *, due_in_ms: int, size: int = CHUNK) -> list[list[StoredMessage]]:
    """``count`` messages with new ids in chunks, one due each millisecond."""
    due_ms, prefix = SystemClock().now_ms() + due_in_ms, f"run-{next(numbers)}"
    messages = [
        StoredMessage(
            message_id=f"{prefix}-{number}",
            destination=ENDPOINT,
            due_ms=due_ms + number,
            body=BODY.encode(),
        )
        for number in range(count)
    ]
    return [messages[start : start + size] for start in range(0, count, size)]


def rate(work: Callable[[Any], object], pieces: Sequence[Any], count: int) -> float:
    """How many a second, with ``work`` done on each piece."""
    started = time.perf_counter()
    for piece in pieces:
        work(piece)
    return count / (time.perf_counter() - started)


def fill_due(store: DelayedMessageStore, count: int) -> None:
    for chunk in chunks(count, due_in_ms=-count - 1000):
        store.store(chunk)


def dispatch_all(store: DelayedMessageStore, outbox: Outbox, count: int) -> float:
    """Fill the store, and empty it of what is due; returns how many a second."""
    fill_due(store, count)
    dispatcher = Dispatcher(store, outbox, settings=DispatchSettings(release_ahead_seconds=0))
    dispatcher.start()
    started = time.perf_counter()
    released = 0
    while (done := dispatcher.dispatch()).claimed:
        released += len(done.released)
    seconds = time.perf_counter() - started
    assert released == count, f"{released} of {count} released"
    return count / seconds


def dispatch_plainly(
    connection: Any,
    statements: Sequence[str],
    count: int,
    *,
    batch: int = 1,
    send: Callable[[bytes], object] = lambda _: None,
) -> float:
    """A loop by hand: begin, fetch the next due rows, send each, remove them, commit. With one row a
    transaction it is the seed's. No message is made of a row, and nothing is checked."""
    begin, fetch, remove = statements
    in_list = json.dumps if isinstance(connection, sqlite3.Connection) else list

    def once(_: int) -> None:
        connection.execute(begin)
        rows = connection.execute(fetch, [SystemClock().now_ms(), batch]).fetchall()
        assert len(rows) == batch
        for row in rows:
            send(row[3])
        connection.execute(remove, [in_list([row[0] for row in rows])])
        connection.execute("COMMIT")

    return rate(once, range(count // batch), count)


SQLITE_LOOP = (
    "BEGIN IMMEDIATE",
    f'SELECT {COLUMNS}, failures FROM "{TABLE}" WHERE due_ms < ? ORDER BY due_ms LIMIT ?',
    f'DELETE FROM "{TABLE}" WHERE message_id IN (SELECT value FROM json_each(?))',
)
POSTGRES_LOOP = (
    "BEGIN",
    f'SELECT {COLUMNS}, failures FROM "{TABLE}" WHERE due_ms < %s ORDER BY due_ms LIMIT %s '
    "FOR UPDATE SKIP LOCKED",
    f'DELETE FROM "{TABLE}" WHERE message_id = ANY(%s)',
)
POSTGRES_INSERT = f'INSERT INTO "{TABLE}" ({COLUMNS}) VALUES (%s, %s, %s, %b, %s)'
POSTGRES_COPY = f'COPY "{TABLE}" ({COLUMNS}) FROM STDIN'


def row_of(m: StoredMessage) -> tuple[Any, ...]:
    return m.message_id, m.destination, m.due_ms, m.body, m.headers()


@dataclass(frozen=True)
class Aim:
    """How much faster than its rival one is, and must be."""

    name: str
    ratio: float
    limit: float

    @property
    def met(self) -> bool:
        return self.ratio >= self.limit

    def line(self) -> str:
        verdict = "ok    " if self.met else "FAILED"
        return f"{verdict} {self.name}: {self.ratio:.2f} (aim >= {self.limit})"


def turns(rounds: int, **contestants: Callable[[], float]) -> float:
    """They take turns; prints their median rates, and returns how much faster the last is than the first."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            rates[name].append(run())
    for name, of in rates.items():
        shown = name.replace("_", " ")
        middle, low, high = statistics.median(of), min(of), max(of)
        print(f"  {shown:<36}{middle:>12,.0f} /s   ({low:,.0f} to {high:,.0f})", flush=True)
    first, *_, last = rates.values()
    return statistics.median(mine / other for mine, other in zip(last, first, strict=True))


class Postgres:
    """All comparisons on PostgreSQL."""

    def __init__(self, conninfo: str, options: argparse.Namespace) -> None:
        self._conninfo = conninfo
        self._rounds: int = options.rounds
        self._rows: int = options.rows
        self._few: int = options.rows // 40
        self._pending: int = options.pending

    def run(self, stub: Stub) -> Iterator[Aim]:
        with (
            closing(PostgresStore(self._conninfo, endpoint=ENDPOINT, table=TABLE)) as self._store,
            psycopg.connect(self._conninfo, autocommit=True) as self._by_hand,
        ):
            self._store.set_up()
            yield from self._storing()
            yield from self._dispatching(stub)
            yield self._flat()

    def _storing(self) -> Iterator[Aim]:
        """Against the plainest statements into the same table; none of it is the next due."""
        self._store.store(*chunks(1, due_in_ms=FAR_MS))

        def insert(chunk: Sequence[StoredMessage]) -> None:
            self._by_hand.execute(POSTGRES_INSERT, row_of(chunk[0]))

        def copy(chunk: Sequence[StoredMessage]) -> None:
            """It fails as a whole where an id is there already, and wakes nobody."""
            with self._by_hand.cursor() as cursor, cursor.copy(POSTGRES_COPY) as copy:
                for message in chunk:
                    copy.write_row(row_of(message))

        def each(work: Callable[[Any], object], count: int, size: int) -> Callable[[], float]:
            return lambda: rate(work, chunks(count, due_in_ms=2 * FAR_MS, size=size), count)

        print("\nPostgreSQL: storing")
        # Short turns and many: what else the machine does falls on both alike.
        single = turns(
            10 * self._rounds,
            plain_INSERT=each(insert, self._few // 5, 1),
            store_one=each(self._store.store, self._few // 5, 1),
        )
        bulk = turns(
            3 * self._rounds,
            plain_COPY=each(copy, self._rows // 4, CHUNK),
            store_1000_a_call=each(self._store.store, self._rows // 4, CHUNK),
        )
        yield Aim("a single store against an INSERT", single, 0.85)
        yield Aim("1,000 a call against COPY", bulk, 0.6)

    def _dispatching(self, stub: Stub) -> Iterator[Aim]:
        client = stub.client(connections=DEFAULT_CONCURRENCY)
        url = client.get_queue_url(QueueName=ENDPOINT)["QueueUrl"]

        def ours(outbox: Outbox, rows: int) -> Callable[[], float]:
            return lambda: dispatch_all(self._emptied(), outbox, rows)

        def by_hand(rows: int, **more: Any) -> Callable[[], float]:
            def run() -> float:
                fill_due(self._emptied(), rows)
                return dispatch_plainly(self._by_hand, POSTGRES_LOOP, rows, **more)

            return run

        print(f"\nPostgreSQL: dispatching {self._rows:,} due rows, no-op send")
        plain = turns(
            3 * self._rounds,
            plain_SQL=by_hand(self._rows, batch=PLAIN_BATCH),
            dispatcher=ours(NoOpOutbox(), self._rows),
        )
        yield Aim(f"dispatch against plain SQL of {PLAIN_BATCH}", plain, 1.0)

        def send(body: bytes) -> None:
            client.send_message(QueueUrl=url, MessageBody=body.decode())

        print("\nPostgreSQL to SQS, which answers at once")
        with closing(SqsOutbox(SqsQueues(client), Endpoint.parse(ENDPOINT))) as outbox:
            sent = turns(
                self._rounds,
                seeds_loop=by_hand(self._few // 4, send=send),
                dispatcher=ours(outbox, self._rows // 10),
            )
        yield Aim("end to end against the seed's loop", sent, 6.0)

    def _emptied(self) -> PostgresStore:
        self._by_hand.execute(f'TRUNCATE "{TABLE}"')
        return self._store

    def _flat(self) -> Aim:
        """Two tables, many and few pending."""
        due = self._rows // 2
        with ExitStack() as stack:
            many, few = (
                stack.enter_context(self._filled(pending)) for pending in (self._pending, 10_000)
            )
            print(f"\nPostgreSQL: dispatching {due:,} due rows among {self._pending:,}, and 10,000")
            ratio = turns(
                self._rounds,
                few_pending=lambda: dispatch_all(few, NoOpOutbox(), due),
                many_pending=lambda: dispatch_all(many, NoOpOutbox(), due),
            )
        return Aim(f"dispatch among {self._pending:,} against among 10,000", ratio, 0.67)

    @contextmanager
    def _filled(self, pending: int) -> Iterator[DelayedMessageStore]:
        table = f"benchmark.{pending}"
        with closing(PostgresStore(self._conninfo, endpoint=ENDPOINT, table=table)) as store:
            store.set_up()
            for chunk in chunks(pending, due_in_ms=FAR_MS):
                store.store(chunk)
            # What filling left to do is not the dispatcher's to pay for.
            self._by_hand.execute(f'VACUUM ANALYZE "{table}"')
            with suppress(psycopg.errors.InsufficientPrivilege):
                self._by_hand.execute("CHECKPOINT")
            yield store


def on_sqlite(folder: Path, options: argparse.Namespace) -> None:
    """Storing and dispatching on a SQLite file, synchronous = FULL."""
    rows: int = options.rows
    few: int = rows // 50
    path = folder / "benchmark.db"
    with (
        closing(SqliteStore(path, endpoint=ENDPOINT, table=TABLE)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as by_hand,
    ):
        store.set_up()
        by_hand.execute("PRAGMA synchronous = FULL")

        def seeds_loop() -> float:
            fill_due(store, few)
            return dispatch_plainly(by_hand, SQLITE_LOOP, few)

        print(f"\nSQLite: storing, and dispatching {rows:,} due rows with a no-op send")
        turns(
            options.rounds,
            store_one=lambda: rate(store.store, chunks(few, due_in_ms=FAR_MS, size=1), few),
            store_1000_a_call=lambda: rate(store.store, chunks(rows, due_in_ms=FAR_MS), rows),
            seeds_loop=seeds_loop,
            dispatcher=lambda: dispatch_all(store, NoOpOutbox(), rows),
        )


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add: Any = parser.add_argument
    add("--rounds", type=int, default=2, help="rounds of the slowest, taking turns; others more")
    add("--rows", type=int, default=10_000, help="due rows to dispatch")
    add("--pending", type=int, default=100_000, help="most rows pending")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sqsdelay-benchmark-") as folder:
        on_sqlite(Path(folder), options)
    aims = []
    with database() as conninfo, running_stub() as stub:
        for aim in Postgres(conninfo, options).run(stub):
            print(aim.line(), flush=True)
            aims.append(aim)
    return 0 if all(aim.met for aim in aims) else 1


if __name__ == "__main__":
    sys.exit(main())
