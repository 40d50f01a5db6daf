"""PostgreSQL on bad days: a host without power, other defaults, dead connections, a pooler, a long
snapshot, a wrong clock. Each with a real server."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.stored_message import Amendment
from sqsdelay.dispatching.dispatcher import MAX_POLL_SECONDS, Dispatcher, DispatchSettings
from sqsdelay.errors import StoreUnavailable
from sqsdelay.ports.stores import TransactionMode
from sqsdelay.receiving.deduplication import Copy
from sqsdelay.stores.postgres.postgres_store import PostgresInbox, PostgresStore
from sqsdelay.stores.sql import COLUMNS, row_of
from sqsdelay.testing import InMemoryOutbox
from tests.acceptance.dispatcher_process import BEFORE_REMOVAL_HANGS, dispatching, message, now_ms
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.network import HERE, VanishingHost
from tests.services.postgres import database, pgbouncer, postgres_server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table() -> str:
    return f"orders.{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(postgres: str, table: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres, endpoint="orders", table=table)) as store:
        store.set_up()
        yield store


def test_a_host_that_loses_its_power_keeps_no_locks(tmp_path: Path) -> None:
    """Its row locks fall within some 8 s, not after the two hours of an operating system."""
    with (
        VanishingHost() as host,
        postgres_server(address=HERE) as server,
        closing(PostgresStore(server.conninfo, endpoint="orders")) as store,
    ):
        store.set_up()
        store.store([message("a", -1)])
        given = {
            "store": server.conninfo,
            "file": str(tmp_path / "sent"),
            "step": BEFORE_REMOVAL_HANGS,
            "exactly_once": False,
            "batch": 50,
            "lease_seconds": 1,
            "send_seconds": 0,
        }
        command = [sys.executable, "-m", "tests.acceptance.dispatcher_process"]
        process = host.start([*command, json.dumps(given)], cwd=ROOT)
        try:
            wait_for(lambda: (tmp_path / "sent").exists() and claimed(store) == [])
            time.sleep(0.5)
            assert claimed(store) == [], "the other host holds it"
        finally:
            host.lose_power()
            process.kill()
            process.wait(30)
        wait_for(lambda: claimed(store) == ["a"])


def claimed(store: PostgresStore, due_by_ms: int | None = None) -> list[str]:
    with store.claim(9, due_by_ms=now_ms() if due_by_ms is None else due_by_ms) as claim:
        return [each.message_id for each in claim.messages]


@pytest.mark.parametrize(
    ("level", "pooled", "count"),
    [("serializable", False, 2000), ("repeatable read", False, 2000), ("serializable", True, 1000)],
)
def test_the_isolation_level_is_ours(postgres: str, level: str, pooled: bool, count: int) -> None:
    """Under another default, claims of messages already sent failed, and they were sent twice. Behind
    PgBouncer single statements, too, are transactions begun at READ COMMITTED."""
    with database(postgres) as own, ExitStack() as stack:
        with psycopg.connect(own, autocommit=True) as connection:
            name = sql.Identifier(connection.info.dbname)
            statement = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
            connection.execute(statement.format(name, sql.Literal(level)))
        conninfo = stack.enter_context(pgbouncer(own, mode="transaction")) if pooled else own
        assert released_by_four(conninfo, count) == Counter({f"m{n}": 1 for n in range(count)})


def released_by_four(conninfo: str, count: int) -> Counter[str]:
    """What four dispatchers send while four threads store: each with connections of its own."""
    outbox = InMemoryOutbox(SystemClock())
    settings = DispatchSettings(batch_size=20, poll_seconds=0.2)
    with ExitStack() as stack:
        stores = [
            stack.enter_context(closing(PostgresStore(conninfo, endpoint="orders")))
            for _ in range(4)
        ]
        stores[0].set_up()
        names = [f"m{n}" for n in range(count)]

        def fill(thread: int) -> None:
            for start in range(thread * 50, count, 200):
                stores[thread].store([message(name, -1) for name in names[start : start + 50]])

        with dispatching(*(Dispatcher(each, outbox, settings=settings) for each in stores)):
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(fill, range(4)))
            wait_for(lambda: stores[0].pending_count() == 0)
    return Counter(each.message_id for each in outbox.sent)


def test_dead_connections_are_noticed_before_use(tmp_path: Path) -> None:
    """The server was restarted while nothing was asked of it: the next call knows, and connects anew."""
    with (
        postgres_server() as server,
        closing(PostgresStore(server.conninfo, endpoint="orders")) as store,
    ):
        store.set_up()
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(store.claim(1, due_by_ms=now_ms()))
        server.stop("immediate")
        server.start()
        for n in range(8):
            assert store.store([message(f"m{n}")]) == [True]
        assert store.pending_count() == 8


@pytest.fixture
def pooled(postgres: str) -> Iterator[str]:
    """A database through PgBouncer in transaction mode, with few connections for many clients."""
    with database(postgres) as own, pgbouncer(own, mode="transaction", pool_size=6) as conninfo:
        yield conninfo


def test_pgbouncer_in_transaction_mode(pooled: str) -> None:
    """Nothing prepared is missed, nothing fails, nothing is sent twice; calls of every kind."""
    with closing(PostgresStore(pooled, endpoint="orders")) as store:
        store.set_up()
        store.initialize(TransactionMode.EXACTLY_ONCE)
    assert released_by_four(pooled, 400) == Counter({f"m{n}": 1 for n in range(400)})
    with closing(PostgresStore(pooled, endpoint="orders")) as store, ThreadPoolExecutor(8) as pool:

        def every_call(n: int) -> None:
            name = f"c{n}"
            assert store.store([message(name, 60_000), message(f"{name}b", 60_000)]) == [True] * 2
            assert store.find(name) is not None
            assert store.reschedule(name, now_ms() + 90_000)
            store.amend([Amendment(message_id=name, at_ms=now_ms())])
            assert set(store.amendments([name])) == {name}
            assert store.next_due_ms() is not None
            assert store.cancel([name, f"{name}b"]) == [True, True]

        list(pool.map(every_call, range(120)))
        assert store.pending(9) == []
    with closing(PostgresInbox(pooled, endpoint="orders")) as inbox:
        inbox.set_up()
        for n in range(20):
            now = now_ms()
            begun = inbox.begin(f"m{n}", claim="us", now_ms=now, until_ms=now + 1000)
            assert begun is Copy.FIRST


def test_a_pooled_session_is_left_as_it_was(pooled: str) -> None:
    """What is set for a claim ends with it: the same connection serves another application next."""
    with closing(PostgresStore(pooled, endpoint="orders")) as store:
        store.set_up()
        for _ in range(20):
            with store.claim(9, due_by_ms=now_ms()) as claim:
                for name, value in (("tcp_keepalives_idle", "4"), ("tcp_user_timeout", "8000")):
                    assert shown(claim.transaction, name) == value
                assert shown(claim.transaction, "transaction_isolation") == "read committed"
        with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other:
            assert shown(other, "tcp_keepalives_idle") != "4"
            prepared = other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
            assert prepared == (0,)


def shown(connection: Any, name: str) -> str:
    return str(connection.execute(f"SHOW {name}").fetchone()[0])


def test_where_nothing_is_notified_the_store_is_polled(
    pooled: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A dispatcher that sleeps long is woken every second, and the log says why."""
    outbox = InMemoryOutbox(SystemClock())
    with (
        closing(PostgresStore(pooled, endpoint="orders")) as store,
        closing(PostgresStore(pooled, endpoint="orders")) as other,
        caplog.at_level(logging.WARNING),
    ):
        store.set_up()
        dispatcher = Dispatcher(store, outbox, settings=DispatchSettings(poll_seconds=600))
        with dispatching(dispatcher):
            wait_for(lambda: "does not forward notifications" in caplog.text)
            time.sleep(1.5)
            other.store([message("a")])
            wait_for(lambda: len(outbox.sent) == 1)


def test_pgbouncer_in_session_mode_notifies(
    postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A session of our own hears what is notified: nothing is polled."""
    with (
        database(postgres) as own,
        pgbouncer(own, mode="session", pool_size=20) as conninfo,
        closing(PostgresStore(conninfo, endpoint="orders")) as store,
    ):
        store.set_up()
        woken = threading.Event()
        with store.watch(woken.set):
            woken.clear()
            store.store([message("a")])
            assert woken.wait(PATIENCE_SECONDS)
    assert "does not forward notifications" not in caplog.text


def test_holds_count_by_the_databases_clock(
    store: PostgresStore, postgres: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatcher whose clock is fast neither sees a hold as over nor makes one an hour long."""
    store.store([message("a", -1), message("b", -1)])
    due_by_ms = now_ms()
    with store.claim(1, due_by_ms=due_by_ms) as claim:
        claim.hold(["a"], seconds=600)
    fast = time.time_ns() // 10**6 + 3_600_000
    monkeypatch.setattr("sqsdelay.core.delay.SystemClock.now_ms", lambda _: fast)
    with closing(PostgresStore(postgres, endpoint="orders", table=table)) as other:
        with other.claim(9, due_by_ms=due_by_ms) as claim:
            assert [each.message_id for each in claim.messages] == ["b"]
            claim.count_failures(["b"], retry_after_seconds=0.2)
        wait_for(lambda: "b" in claimed(other, due_by_ms))
        other.amend([Amendment(message_id="a", at_ms=due_by_ms)])
        assert set(other.amendments(["a"])) == {"a"}


def blocks_read(connection: Any, store: PostgresStore, query: str, arguments: Any) -> int:
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + store._sql[query]
    plan = connection.execute(explain, arguments).fetchone()[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def test_a_long_snapshot_elsewhere_slows_nothing(postgres: str, store: PostgresStore) -> None:
    """20,000 messages go their way while a transaction that began before is open: what was removed stays in
    the index, and neither claims, polls nor inserts walk through it. What is stored or moved to a time
    before it is found all the same."""
    count, outbox = 20_000, InMemoryOutbox(SystemClock())
    with (
        psycopg.connect(postgres) as snapshot,
        psycopg.connect(postgres, autocommit=True) as connection,
        store.watch(lambda: None),
    ):
        snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        snapshot.execute("SELECT 1")
        for start in range(0, count, 1000):
            store.store([message(f"old{n}", -1) for n in range(start, start + 1000)])
        store.store([message("next", 600_000)])
        dispatcher = Dispatcher(store, outbox)
        while len(outbox.sent) < count:
            dispatcher.dispatch()
        dispatcher.dispatch()
        store.next_due_ms()

        def looking(query: str, from_ms: int) -> int:
            bounds = {
                "due_by_ms": now_ms(),
                "limit": 500,
                "now_ms": None,
                "from_ms": from_ms,
                "held_from_ms": 0,
            }
            return blocks_read(connection, store, query, bounds)

        for query in ("claim", "next_due"):
            looking(query, 0)
            assert looking(query, 0) > 200
            assert looking(query, store._heads.look(()).new_ms) < 20

        def storing(name: str, in_ms: int, number: int) -> int:
            many = [message(f"{name}{n}", in_ms) for n in range(number)]
            rows = list(map(row_of, many))
            columns = rows[0] if number == 1 else map(list, zip(*rows, strict=True))
            given = dict(zip(COLUMNS, columns, strict=True))
            return blocks_read(connection, store, "store" if number == 1 else "store_many", given)

        for number in (1, 10):
            storing(f"warm{number}-", 60_000, number)
            for in_ms in (60_000, 2 * MAX_POLL_SECONDS * 1000):
                assert storing(f"in{in_ms}-{number}-", in_ms, number) < 200
        store._heads._anew_at = math.inf
        store.store([message("late", -3_600_000)])
        store.reschedule("next", now_ms() - 3_600_000)

        def both_left() -> bool:
            dispatcher.dispatch()
            return {"late", "next"} <= {m.message_id for m in outbox.sent}

        wait_for(both_left)


def test_what_was_held_or_passed_over_slows_nothing_either(
    postgres: str, store: PostgresStore, table: str
) -> None:
    """The same for what was held and removed by id, as a timeout manager does, and retried; and while a
    destination is out of reach."""
    fetched = sql.SQL(
        "SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) FROM pg_class WHERE oid = {name}::regclass "
        "OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = {name}::regclass)"
    ).format(name=sql.Literal(sql.Identifier("public", table).as_string(None)))

    def blocks(*passed_over: str) -> int:
        with store.claim(500, due_by_ms=now_ms(), except_destinations=passed_over) as claim:
            assert claim.messages == []
            counted = int(claim.transaction.execute(fetched).fetchone()[0])
            # So that the next claim begins to count at 0.
            claim.transaction.execute("SELECT pg_stat_force_next_flush()")
            return counted

    with psycopg.connect(postgres) as snapshot, store.watch(lambda: None):
        snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        snapshot.execute("SELECT 1")
        for start in range(0, 20_000, 1000):
            names = [f"m{start + n}" for n in range(1000)]
            store.store([replace(message(n, -1), destination=f"to-{n[-1]}") for n in names])
            for claiming in (store.claim(1000, due_by_ms=now_ms()), store.claim_ids(names)):
                with claiming as claim:
                    claim.count_failures(names, retry_after_seconds=0)
            with store.claim(1000, due_by_ms=now_ms()) as claim:
                assert all(claim.remove(names))
        store._heads._anew_at = math.inf
        for passed_over in ((), ("to-3",)):
            blocks(*passed_over)
            store._heads.forget()
            assert blocks(*passed_over) > 3_000  # ten times what follows
            # What was removed within the last seconds may still be read.
            store._heads.look(passed_over).held_ms = now_ms()
            assert blocks(*passed_over) < 300
        store.store([message("late", -3_600_000)])
        store.reschedule("late", now_ms() - 3_600_000)
        wait_for(lambda: store.next_due_ms() is not None)
        with store.claim(500, due_by_ms=now_ms(), except_destinations=["to-3"]) as claim:
            assert [message.message_id for message in claim.messages] == ["late"]


def test_what_locks_the_whole_table_is_named_once(
    postgres: str, store: PostgresStore, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A claim waits behind an ALTER TABLE: one warning names the session, the dispatcher goes on, and the
    message leaves when that transaction ends."""
    store.store([message("m", -1)])
    outbox = InMemoryOutbox(SystemClock())
    named = make_conninfo(postgres, application_name="a migration")
    with psycopg.connect(named) as migration:
        quoted = sql.Identifier("public", table)
        migration.execute(sql.SQL("ALTER TABLE {} ADD COLUMN mine integer").format(quoted))
        session = migration.info.backend_pid
        with dispatching(Dispatcher(store, outbox)):
            wait_for(lambda: "waits for a lock" in caplog.text)
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                store.cancel(["m"])
            migration.rollback()
            wait_for(lambda: outbox.sent)
    told = [record.getMessage() for record in caplog.records if "waits for" in record.getMessage()]
    assert len(told) == 1
    assert f"session {session} (" in told[0]
    assert "a migration, idle in transaction, transaction of " in told[0]
    assert "trying again" not in caplog.text
