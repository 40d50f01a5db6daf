"""A table of an older schema version is upgraded and keeps what it holds; a newer one is refused."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sqsdelay.core.clock import SystemClock
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import SchemaMismatch
from sqsdelay.ports.stores import DelayedMessageStore, TransactionMode
from sqsdelay.receiving.deduplication import Copy
from sqsdelay.stores import open_store
from sqsdelay.stores.postgres.inbox import PostgresInbox
from sqsdelay.stores.sqlite.inbox import SqliteInbox

SQLITE_1 = """
CREATE TABLE "orders.delayed" (
    message_id TEXT PRIMARY KEY NOT NULL, destination TEXT NOT NULL, due_ms INTEGER NOT NULL,
    body BLOB NOT NULL, headers TEXT NOT NULL, failures INTEGER NOT NULL DEFAULT 0,
    held_until_ms INTEGER NOT NULL DEFAULT 0, claim TEXT);
CREATE INDEX "orders.delayed.due" ON "orders.delayed" (due_ms, message_id);
CREATE TABLE "orders.delayed.marks" (
    message_id TEXT PRIMARY KEY NOT NULL, due_ms INTEGER, until_ms INTEGER NOT NULL);
INSERT INTO "orders.delayed" (message_id, destination, due_ms, body, headers)
VALUES ('old', 'orders', 5, x'00', '{}');
INSERT INTO "orders.delayed.marks" VALUES ('old', NULL, 99999999999999);
"""
POSTGRES_1 = """
CREATE TABLE "orders.delayed" (
    message_id text COLLATE "C" PRIMARY KEY, destination text NOT NULL, due_ms bigint NOT NULL,
    body bytea NOT NULL, headers text NOT NULL, failures integer NOT NULL DEFAULT 0,
    held_until_ms bigint NOT NULL DEFAULT 0);
CREATE INDEX "{index}" ON "orders.delayed" (due_ms, message_id);
CREATE TABLE "{amendments}" (
    message_id text COLLATE "C" PRIMARY KEY, due_ms bigint, until_ms bigint NOT NULL);
INSERT INTO "orders.delayed" (message_id, destination, due_ms, body, headers)
VALUES ('old', 'orders', 5, '\\x00', '{{}}');
INSERT INTO "{amendments}" VALUES ('old', NULL, 99999999999999);
"""
"""The tables as version 1 had them, before any version was written down."""


INSERT = (
    'INSERT INTO "orders.delayed" (message_id, destination, due_ms, body, headers) '
    "VALUES ({}, '\\x00', '{{}}')"
)


@dataclass
class Case:
    """A database with tables of version 1, and ways to look into it."""

    url: str
    run: Callable[[str], list[Any]]
    set_version: Callable[[int], object]
    amendments: str
    newest: int

    def store(self) -> DelayedMessageStore:
        return open_store(self.url, endpoint="orders")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Case]:
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as connection:
        connection.executescript(SQLITE_1)

        def run(query: str) -> list[Any]:
            return connection.execute(query).fetchall()

        yield Case(
            f"sqlite:///{tmp_path}/store.db",
            run,
            lambda version: run(f'UPDATE "sqsdelay.versions" SET version = {version}'),
            "orders.delayed.marks",
            newest=3,
        )


@pytest.fixture
def postgresql(postgres: str) -> Iterator[Case]:
    name = f"versions_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        url = postgres.rpartition("/")[0] + f"/{name}"
        with closing(open_store(url, endpoint="orders")) as store:
            digest = store._channel  # type: ignore[attr-defined]
        with psycopg.connect(url, autocommit=True) as connection:
            index, amendments = f"{digest}_due", f"{digest}_marks"
            connection.execute(POSTGRES_1.format(index=index, amendments=amendments))

            def run(query: str) -> list[Any]:
                cursor = connection.execute(query)
                return cursor.fetchall() if cursor.description else []

            comment = f"COMMENT ON INDEX \"{index}\" IS 'sqsdelay schema %d'"
            yield Case(url, run, lambda version: run(comment % version), amendments, newest=4)
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found


def test_an_older_store_is_upgraded_in_place(case: Case) -> None:
    """`initialize` says what to do; doing it keeps messages and amendments; again it does nothing."""
    with closing(case.store()) as store:
        with pytest.raises(
            SchemaMismatch,
            match=rf"version 1 .* needs {case.newest}; run sqsdelay store create",
        ):
            store.initialize(TransactionMode.AT_LEAST_ONCE)
        store.set_up()
        store.set_up()
        store.initialize(TransactionMode.AT_LEAST_ONCE)
        assert [m.message_id for m in store.pending(9)] == ["old"]
        assert set(store.amendments(["old"])) == {"old"}
        store.amend([Amendment(message_id="new", at_ms=SystemClock().now_ms())])
    assert case.run(f"SELECT cancelled_ms FROM \"{case.amendments}\" WHERE message_id = 'old'") == [
        (None,)
    ]


def test_an_older_postgresql_table_gets_constraints(postgresql: Case) -> None:
    """What is no message is refused from then on, by the name of its column."""
    with closing(postgresql.store()) as store:
        store.set_up()
    for column, row in (
        ("sqsdelay_due_ms", "'a', 'orders', -1"),
        ("sqsdelay_destination", "'a', '', 1"),
        ("sqsdelay_message_id", "'', 'orders', 1"),
    ):
        with pytest.raises(psycopg.errors.CheckViolation, match=column):
            postgresql.run(INSERT.format(row))


def test_a_table_with_a_row_that_is_no_message_is_upgraded_without_constraints(
    postgresql: Case,
) -> None:
    """They would refuse the dispatcher's own updates of it, while the error queue is away."""
    postgresql.run(INSERT.format("'odd', 'orders', -1"))
    with closing(postgresql.store()) as store:
        store.set_up()
        store.initialize(TransactionMode.AT_LEAST_ONCE)
        with store.claim(9, due_by_ms=SystemClock().now_ms()) as claim:
            ids = [each.message_id for each in claim.messages]
            assert ids == ["odd", "old"]
            assert claim.count_failures(ids, retry_after_seconds=1) == [True, True]


def test_many_upgrade_at_once(case: Case) -> None:
    """Processes of a new version that start together: one upgrades, all may use it."""

    def upgrade(_: int) -> None:
        with closing(case.store()) as store:
            store.set_up()
            store.initialize(TransactionMode.AT_LEAST_ONCE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upgrade, range(4)))


def test_a_newer_store_is_refused(case: Case) -> None:
    """In one line, by `set_up` and `initialize`, before anything is changed; on the command line, too."""
    with closing(case.store()) as store:
        store.set_up()
        case.set_version(case.newest + 1)
        told = (
            rf"orders\.delayed has schema version {case.newest + 1}, made by a newer sqsdelay; .* "
            rf"up to {case.newest}: upgrade"
        )
        with pytest.raises(SchemaMismatch, match=told):
            store.initialize(TransactionMode.AT_LEAST_ONCE)
        with pytest.raises(SchemaMismatch, match=told):
            store.set_up()
        case.set_version(case.newest)
        store.initialize(TransactionMode.AT_LEAST_ONCE)
        case.set_version(case.newest + 1)
    command = [str(Path(sys.executable).parent / "sqsdelay"), "store", "create", "orders"]
    done = subprocess.run(
        [*command, "--store", case.url], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    told = f"sqsdelay: table orders.delayed has schema version {case.newest + 1}"
    assert done.stderr.startswith(told)
    assert len(done.stderr.splitlines()) <= 2


def test_a_column_that_is_missing_is_no_puzzle(case: Case) -> None:
    """A sender does not initialize: what it meets then says the same."""
    with closing(case.store()) as store:
        store.set_up()
        case.run('ALTER TABLE "orders.delayed" DROP COLUMN headers')
        message = StoredMessage(message_id="a", destination="orders", due_ms=5, body=b"x")
        for call in (lambda: store.store([message]), lambda: store.pending(1)):
            with pytest.raises(SchemaMismatch, match="run sqsdelay store create"):
                call()


def test_two_stores_and_an_inbox_in_one_file(tmp_path: Path) -> None:
    """Each has a version of its own."""
    url = f"sqlite:///{tmp_path}/store.db"
    with (
        closing(open_store(url, endpoint="orders")) as one,
        closing(open_store(url, endpoint="refunds")) as other,
        closing(SqliteInbox(tmp_path / "store.db", endpoint="orders")) as inbox,
        closing(sqlite3.connect(tmp_path / "store.db")) as connection,
    ):
        one.set_up()
        other.set_up()
        inbox.set_up()
        connection.execute(
            "UPDATE \"sqsdelay.versions\" SET version = 7 WHERE table_name = 'orders.delayed'"
        )
        connection.commit()
        other.initialize(TransactionMode.AT_LEAST_ONCE)
        assert inbox.begin("m", claim="us", now_ms=0, until_ms=9) is Copy.FIRST
        with pytest.raises(SchemaMismatch):
            one.initialize(TransactionMode.AT_LEAST_ONCE)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_newer_inbox_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    """At its first use, which is all that an inbox begins with, and by `set_up`."""
    case: Case = request.getfixturevalue(kind)
    file = case.url.removeprefix("sqlite:///")

    def make() -> SqliteInbox | PostgresInbox:
        if kind == "sqlite":
            return SqliteInbox(file, endpoint="orders")
        return PostgresInbox(case.url, endpoint="orders")

    with closing(make()) as inbox:
        inbox.set_up()
        assert inbox.begin("m", claim="us", now_ms=0, until_ms=9) is Copy.FIRST
    if kind == "sqlite":
        case.run("INSERT INTO \"sqsdelay.versions\" VALUES ('orders.received', 2)")
    else:
        (index,) = case.run("SELECT indexname FROM pg_indexes WHERE indexname LIKE '%_until'")[0]
        case.run(f"COMMENT ON INDEX \"{index}\" IS 'sqsdelay schema 2'")
    with closing(make()) as inbox:
        for call in (
            inbox.set_up,
            lambda: inbox.begin("n", claim="us", now_ms=0, until_ms=9),
            lambda: inbox.forget(5, limit=9),
        ):
            with pytest.raises(SchemaMismatch, match=r"orders\.received has schema version 2"):
                call()
