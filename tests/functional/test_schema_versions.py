"""A table's version is written down; one of another version is refused at once, by whatever opens it."""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sqsdelay.core.limits import DEFAULT_HOP_SECONDS
from sqsdelay.core.stored_message import Amendment
from sqsdelay.dispatching.dispatcher import DelayedDelivery
from sqsdelay.errors import SchemaMismatch, StoreMissing
from sqsdelay.ports.stores import DelayedMessageStore, TransactionMode
from sqsdelay.receiving.deduplication import Copy
from sqsdelay.stores import SchedulerStore, open_store
from sqsdelay.stores.postgres.postgres_store import PostgresInbox
from sqsdelay.stores.shared import VERSION
from sqsdelay.stores.sqlite.sqlite_store import SqliteInbox
from sqsdelay.testing import InMemoryOutbox, ManualClock
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.contract_site import Site
from tests.messages import a_message
from tests.services.postgres import database
from tests.services.processes import run

ROLE = "arn:aws:iam::123456789012:role/orders"
KEPT = ("GroupName", "Name", "ScheduleExpression", "FlexibleTimeWindow", "Target", "State")
MESSAGE = a_message("a", 5)
NEWER = rf"orders\.delayed .* schema version {VERSION + 1}, .* supports version {VERSION} only; name another"


@dataclass
class Case:
    """A database, and ways to look into it."""

    url: str
    run: Callable[[str], list[Any]]
    set_version: Callable[[int | None], object]

    def store(self) -> DelayedMessageStore:
        return open_store(self.url, endpoint="orders")

    def inbox(self) -> SqliteInbox | PostgresInbox:
        if self.url.startswith("sqlite"):
            return SqliteInbox(self.url.removeprefix("sqlite:///"), endpoint="orders")
        return PostgresInbox(self.url, endpoint="orders")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Case]:
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as connection:

        def run(query: str) -> list[Any]:
            return connection.execute(query).fetchall()

        def set_version(version: int | None) -> None:
            if version is None:
                run('DELETE FROM "sqsdelay.versions"')
            else:
                run(
                    f'INSERT OR REPLACE INTO "sqsdelay.versions" SELECT name, {version} '
                    "FROM sqlite_master WHERE name IN ('orders.delayed', 'orders.received')"
                )

        yield Case(f"sqlite:///{tmp_path}/store.db", run, set_version)


@pytest.fixture
def postgresql(postgres: str) -> Iterator[Case]:
    with database(postgres) as url, psycopg.connect(url, autocommit=True) as connection:

        def run(query: str) -> list[Any]:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

        def set_version(version: int | None) -> None:
            told = "NULL" if version is None else f"'sqsdelay schema {version}'"
            for (index,) in run(
                "SELECT indexname FROM pg_indexes WHERE indexname ~ '^sqsdelay.*_(due|until)$'"
            ):
                run(f'COMMENT ON INDEX "{index}" IS {told}')

        yield Case(url, run, set_version)


@pytest.fixture(params=["sqlite", "postgresql"])
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found


CALLS: tuple[Callable[[DelayedMessageStore], object], ...] = (
    lambda store: store.set_up(),
    lambda store: store.initialize(TransactionMode.AT_LEAST_ONCE),
    lambda store: store.store([MESSAGE]),
    lambda store: store.store([MESSAGE] * 2),
    lambda store: store.pending(1),
    lambda store: store.pending_count(),
    lambda store: store.find("a"),
    lambda store: store.cancel(["a"]),
    lambda store: store.reschedule("a", 9),
    lambda store: store.amend([Amendment(message_id="a", at_ms=1)]),
    lambda store: store.amendments(["a"]),
    lambda store: store.next_due_ms(),
    lambda store: store.claim(1, due_by_ms=9).__enter__(),
    lambda store: DelayedDelivery(store, InMemoryOutbox(ManualClock())).start(),
)


def test_another_version_is_refused_by_every_call(case: Case) -> None:
    """With the version found, the one supported, and what to do; and so is a table without any."""
    with closing(case.store()) as store:
        store.set_up()
    for version, told in ((VERSION + 1, NEWER), (None, "no schema version")):
        case.set_version(version)
        for call in CALLS:
            with closing(case.store()) as store, pytest.raises(SchemaMismatch, match=told):
                call(store)
    case.set_version(VERSION)
    with closing(case.store()) as store:
        store.set_up()
        assert store.pending_count() == 0


def test_a_table_that_is_missing_says_so(case: Case) -> None:
    """A database that has nothing of ours is no mismatch."""
    with (
        closing(case.store()) as store,
        pytest.raises(StoreMissing, match="run sqsdelay store create"),
    ):
        store.store([MESSAGE])


DUE = "--due-at 2030-01-31T09:00:00Z"
COMMANDS = (
    *("store create orders", "status orders", "endpoint check orders", "consume orders"),
    *("pending orders", "cancel orders a", f"reschedule orders a {DUE}"),
    *(f"send orders --body x {DUE}", f"send orders --body x --store-only {DUE}"),
    *("send orders --body x --delay 5", "console --endpoint orders --port 0"),
    *("store migrate orders", "prove orders --messages 9 --longest 16m"),
)
OF_A_STORE = ("dispatch orders", "timeout-manager orders")
"""What schedules do not need."""


@pytest.fixture
def schedules(local_aws: LocalAws) -> Iterator[Case]:
    client, group = local_aws.client("scheduler"), f"g-{uuid.uuid4().hex[:12]}"
    place = SchedulerStore(group, role_arn=ROLE, endpoint="orders", client=client)
    with closing(place):
        place.set_up()
        (mark,) = client.list_schedules(GroupName=group)["Schedules"]

        def set_version(version: int | None) -> None:
            found = client.get_schedule(GroupName=group, Name=mark["Name"])
            client.update_schedule(**{name: found[name] for name in KEPT}, Description=str(version))

        yield Case(f"scheduler://{group}?role={ROLE}", lambda _: [], set_version)


@pytest.mark.parametrize("kind", ["sqlite", "schedules"])
def test_every_command_refuses_it_at_once(
    request: pytest.FixtureRequest, kind: str, local_aws: LocalAws
) -> None:
    """With the remedy, before anything is changed, and before a worker says that it works."""
    case: Case = request.getfixturevalue(kind)
    if kind == "sqlite":
        with closing(case.store()) as store:
            store.set_up()
    case.set_version(VERSION + 1)
    with Site(local_aws, "orders", DEFAULT_HOP_SECONDS):
        for command in COMMANDS + (() if kind == "schedules" else OF_A_STORE):
            done = run(*command.split(), "--store", case.url, env=local_aws.environment())
            told = done.stdout + done.stderr
            assert done.returncode == 1, (command, told)
            assert f"has schema version {VERSION + 1}" in told, command
            assert re.search("name another (table|schedule group), and empty this", told), command
            assert not re.search(
                "consuming|dispatching|serving|store create|ready|9 sent|console is", told
            )


def test_many_set_up_at_once(case: Case) -> None:
    """Processes that start together: one creates the tables, all may use them."""

    def set_up(_: int) -> None:
        with closing(case.store()) as store:
            store.set_up()
            store.initialize(TransactionMode.AT_LEAST_ONCE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(set_up, range(4)))


def test_set_up_again_takes_no_lock(postgresql: Case) -> None:
    """Behind an open transaction it would wait for it, and every sender behind the one that waits."""
    with closing(postgresql.store()) as store:
        store.set_up()
        with psycopg.connect(postgresql.url) as open_transaction:
            open_transaction.execute('LOCK TABLE "orders.delayed" IN ROW EXCLUSIVE MODE')
            # With lock timeouts of a millisecond, whatever waits for the transaction fails.
            postgresql.run("ALTER ROLE CURRENT_USER SET lock_timeout = '1ms'")
            try:
                with closing(postgresql.store()) as another:
                    another.set_up()
                    assert another.store([MESSAGE]) == [True]
            finally:
                postgresql.run("ALTER ROLE CURRENT_USER RESET lock_timeout")


def test_new_tables_refuse_what_is_no_message(postgresql: Case) -> None:
    """By the name of the column."""
    insert = (
        'INSERT INTO "orders.delayed" (message_id, destination, due_ms, body, headers) '
        "VALUES ({}, '\\x00', '{{}}')"
    )
    with closing(postgresql.store()) as store:
        store.set_up()
    for column, row in (
        ("sqsdelay_due_ms", "'a', 'orders', -1"),
        ("sqsdelay_due_ms", "'a', 'orders', 9223372036854775807"),
        ("sqsdelay_destination", "'a', '', 1"),
        ("sqsdelay_message_id", "'', 'orders', 1"),
    ):
        with pytest.raises(psycopg.errors.CheckViolation, match=column):
            postgresql.run(insert.format(row))


def test_a_column_that_is_missing_is_no_puzzle(case: Case) -> None:
    """What a sender meets then says the same."""
    with closing(case.store()) as store:
        store.set_up()
        case.run('ALTER TABLE "orders.delayed" DROP COLUMN headers')
        for call in (lambda: store.store([MESSAGE]), lambda: store.pending(1)):
            with pytest.raises(SchemaMismatch, match="was made by another sqsdelay: "):
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
        for each in (one, other, inbox):
            each.set_up()
        connection.execute(
            "UPDATE \"sqsdelay.versions\" SET version = 7 WHERE table_name = 'orders.delayed'"
        )
        connection.commit()
        other.initialize(TransactionMode.AT_LEAST_ONCE)
        assert inbox.begin("m", claim="us", now_ms=0, until_ms=9) is Copy.FIRST
        with closing(open_store(url, endpoint="orders")) as again, pytest.raises(SchemaMismatch):
            again.initialize(TransactionMode.AT_LEAST_ONCE)


def test_an_inbox_of_another_version_is_refused(case: Case) -> None:
    """At its first use, which is all that an inbox begins with, and by `set_up`."""
    with closing(case.inbox()) as inbox:
        inbox.set_up()
        assert inbox.begin("m", claim="us", now_ms=0, until_ms=9) is Copy.FIRST
    case.set_version(VERSION + 1)
    with closing(case.inbox()) as inbox:
        for call in (
            inbox.set_up,
            lambda: inbox.begin("n", claim="us", now_ms=0, until_ms=9),
            lambda: inbox.forget(5, limit=9),
        ):
            with pytest.raises(SchemaMismatch, match=r"orders\.received .* schema version 2"):
                call()
