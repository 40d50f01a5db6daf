"""What only a real PostgreSQL shows: wake-ups, the index, outages, names, transactions."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching import ExactlyOnce, Round
from sqsdelay.dispatching.dispatcher import MAX_POLL_SECONDS, Dispatcher, DispatchSettings
from sqsdelay.errors import ConfigurationError, StoreMissing
from sqsdelay.ports.stores import TransactionMode
from sqsdelay.stores import open_store
from sqsdelay.stores.postgres.pool import TimedConnection
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.testing import InMemoryOutbox, ManualClock
from tests.acceptance.dispatcher_process import dispatching, message, now_ms
from tests.patience import PATIENCE_SECONDS, wait_for


@pytest.fixture
def table() -> str:
    return f"orders.{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(postgres: str, table: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres, endpoint="orders", table=table)) as store:
        store.set_up()
        yield store


@pytest.mark.parametrize("commits", [True, False])
def test_the_wake_up_comes_with_the_commit(
    postgres: str, store: PostgresStore, commits: bool
) -> None:
    """A dispatcher woken before the row can be seen would miss it and sleep on; what was rolled back wakes
    nobody."""
    woken = threading.Event()
    with store.watch(woken.set), psycopg.connect(postgres) as connection:
        woken.clear()
        store.store([message("a")], transaction=connection)
        assert not woken.wait(0.3)
        end = connection.commit if commits else connection.rollback
        end()
        assert woken.wait(PATIENCE_SECONDS if commits else 0.3) is commits
        assert store.pending_count() == commits


def test_stored_on_a_connection_with_rows_of_another_shape(
    postgres: str, store: PostgresStore
) -> None:
    """The caller's row factory is the caller's business."""
    with psycopg.connect(postgres, row_factory=dict_row) as connection:
        both = [message("a"), message("b")]
        assert store.store(both, transaction=connection) == [True, True]
        assert store.store(both[:1], transaction=connection) == [False]
    assert store.pending_count() == 2
    with pytest.raises(ConfigurationError, match=r"give the psycopg\.Connection"):
        store.store([message("c")], transaction=object())


def test_storing_the_same_ids_at_once(store: PostgresStore) -> None:
    """Two storers of the same messages in opposite orders do not deadlock; each message is new once."""
    messages = [message(f"m{n}", 60_000) for n in range(2000)]
    with ThreadPoolExecutor(4) as pool:
        orders = [messages, messages[::-1]] * 2
        answers = list(pool.map(store.store, orders))
    assert sum(sum(answer) for answer in answers) == 2000


def notified(store: PostgresStore, *messages: StoredMessage) -> bool:
    """Whether storing these wakes a dispatcher: before what is notified after it."""
    with (
        store.watch(lambda: None),
        psycopg.connect(store._conninfo, autocommit=True) as connection,
    ):
        connection.execute(f"LISTEN {store._prefix}".encode())
        store.store(messages)
        connection.execute("SELECT pg_notify(%s, 'later')", [store._prefix])
        return next(connection.notifies(timeout=PATIENCE_SECONDS)).payload != "later"


@pytest.mark.parametrize("count", [1, 3])
def test_only_the_next_due_wakes(store: PostgresStore, count: int) -> None:
    """NOTIFY costs the writer a quarter of its speed; what is due later does without."""

    def some(name: str, in_ms: int) -> list[StoredMessage]:
        return [message(f"{name}{n}", in_ms + n) for n in range(count)]

    assert notified(store, *some("first", 60_000))
    assert not notified(store, *some("later", 90_000))
    assert notified(store, *some("earlier", 30_000))
    assert not notified(store, *some("earlier", 20_000)), "stored before, so nothing has changed"


def test_while_the_head_is_due_what_is_due_soon_wakes(store: PostgresStore) -> None:
    """The head may be removed at this moment: a message behind it must not be missed."""
    store.store([message("due", -1000)])
    assert notified(store, message("soon", 60_000))
    assert not notified(store, message("later", 2 * MAX_POLL_SECONDS * 1000))


@pytest.mark.parametrize("count", [1, 3])
def test_a_clock_that_is_a_day_behind_lets_nobody_sleep(store: PostgresStore, count: int) -> None:
    """A sender's clock says of a message alone that it wakes nobody only where it may be wrong by a day."""
    store._local = ManualClock(now_ms() - 86_300_000)
    assert notified(store, *(message(f"soon{n}", 60_000) for n in range(count)))


def test_an_idle_dispatcher_is_woken(postgres: str, store: PostgresStore, table: str) -> None:
    """Messages stored by another process do not wait for its next look, and are never early."""
    outbox = InMemoryOutbox(SystemClock())
    rounds: list[Round] = []
    with closing(PostgresStore(postgres, endpoint="orders", table=table)) as own:
        settings = DispatchSettings(poll_seconds=MAX_POLL_SECONDS)
        with dispatching(Dispatcher(own, outbox, settings=settings, on_round=rounds.append)):
            time.sleep(1)
            store.store([message(f"m{n}", 100 * n) for n in range(20)])
            wait_for(lambda: len(outbox.sent) == 20)
    assert min(ms for done in rounds for ms in done.late_ms()) >= 0
    assert store.pending_count() == 0


def test_an_idle_dispatcher_asks_less_than_once_a_second(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer it waits for is counted, and each second it would sleep, once its sleeps are long."""
    store.store([message("far", 30 * 86_400_000)])
    asked, slept, stop = 0, [0.0], threading.Event()
    wait = TimedConnection.wait

    def counted(self: TimedConnection, *given: Any, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        return wait(self, *given, **more)

    def sleep(wake: threading.Event, stop: threading.Event, seconds: float) -> None:
        nonlocal asked
        asked = asked if slept[-1] == store.poll_seconds else 0
        slept.append(seconds)
        if slept.count(store.poll_seconds) > 10:
            stop.set()

    monkeypatch.setattr(TimedConnection, "wait", counted)
    monkeypatch.setattr("sqsdelay.dispatching.dispatcher.wait_for", sleep)
    Dispatcher(store, InMemoryOutbox(SystemClock())).run(stop)
    assert asked / (10 * store.poll_seconds) < 1


def test_four_dispatchers_share_the_work(postgres: str, table: str, store: PostgresStore) -> None:
    """SKIP LOCKED: each message is sent by one of them."""
    store.store([message(f"m{n}", -1) for n in range(2000)])
    outbox = InMemoryOutbox(SystemClock())
    settings = DispatchSettings(batch_size=20)
    with dispatching(*(Dispatcher(store, outbox, settings=settings) for _ in range(4))):
        wait_for(lambda: store.pending_count() == 0)
    assert sorted(m.message_id for m in outbox.sent) == sorted(f"m{n}" for n in range(2000))


def test_a_million_pending_cost_nothing(postgres: str, store: PostgresStore, table: str) -> None:
    """The due query walks the index: a claim of 10 due messages reads no other rows."""
    quoted = sql.Identifier("public", table)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (message_id, destination, due_ms, body, headers) "
                "SELECT n::text, 'orders', %s + n, 'x', '{{}}' FROM generate_series(1, 1000000) n"
            ).format(quoted),
            [now_ms() + 3_600_000],
        )
        connection.execute(sql.SQL("ANALYZE {}").format(quoted))
        store.store([message(f"due{n}", -1) for n in range(10)])
        query = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) ") + sql.SQL(store._sql["claim"].decode())
        arguments = {"due_by_ms": now_ms(), "now_ms": now_ms(), "limit": 500, "from_ms": 0}
        row = connection.execute(query, arguments).fetchone()
    assert row is not None
    scans = list(scans_of(row[0][0]["Plan"]))
    assert [scan["Node Type"] for scan in scans] == ["Index Scan"]
    assert scans[0]["Actual Rows"] == 10
    assert scans[0].get("Rows Removed by Filter", 0) == 0
    outbox = InMemoryOutbox(SystemClock())
    assert len(Dispatcher(store, outbox).dispatch().released) == 10


def test_what_waits_for_a_destination_out_of_reach_is_not_read(
    postgres: str, store: PostgresStore, table: str
) -> None:
    """100,000 due in front: finding ten due behind them reads tens of rows, not thousands."""
    quoted = sql.Identifier("public", table)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (message_id, destination, due_ms, body, headers) "
                "SELECT n::text, 'full', %s + n, 'x', '{{}}' FROM generate_series(1, 100000) n"
            ).format(quoted),
            [now_ms() - 200_000],
        )
        connection.execute(sql.SQL("ANALYZE {}").format(quoted))
        store.store([message(f"due{n}", -1) for n in range(10)])
        arguments = {
            "due_by_ms": now_ms(),
            "now_ms": now_ms(),
            "limit": 500,
            "except_destinations": ["full"],
            "from_ms": 0,
            "held_from_ms": 0,
        }
        for name in ("claim_except", "next_due_except"):
            query = sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) " + store._sql[name].decode())
            row = connection.execute(query, arguments).fetchone()
            assert row is not None
            scans = list(scans_of(row[0][0]["Plan"]))
            assert scans
            for scan in scans:
                passed = scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)
                assert passed * scan["Actual Loops"] <= 20, scan
    with store.claim(500, due_by_ms=now_ms(), except_destinations=["full"]) as claim:
        assert len(claim.messages) == 10


def test_rows_written_by_hand_go_aside_or_are_refused(
    postgres: str, store: PostgresStore, table: str
) -> None:
    """A new table's constraints name the column; in one without them the dispatcher rejects the row."""
    quoted = sql.Identifier("public", table)
    odd = {
        "no-destination": ("", now_ms()),
        "negative": ("orders", -1),
        "far": ("orders", -(2**63)),
        "never": ("orders", 2**63 - 1),
        "i" * 251: ("orders", now_ms()),
    }
    insert = sql.SQL(
        "INSERT INTO {} (message_id, destination, due_ms, body, headers) VALUES (%s, %s, %s, 'x', '{{}}')"
    ).format(quoted)
    with psycopg.connect(postgres, autocommit=True) as connection:
        for message_id, (destination, due_ms) in odd.items():
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute(insert, [message_id, destination, due_ms])
        named = connection.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = %s::regclass",
            [quoted.as_string(connection)],
        ).fetchall()
        for (name,) in named:
            connection.execute(
                sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(quoted, sql.Identifier(name))
            )
        for message_id, (destination, due_ms) in odd.items():
            connection.execute(insert, [message_id, destination, due_ms])
    store.store([message("good", -1)])
    assert len(store.pending(10)) == 5
    outbox = InMemoryOutbox(SystemClock())
    done = Dispatcher(store, outbox).dispatch()
    assert {each.message_id for each in done.rejected} == set(odd)
    assert [each.message_id for each in outbox.sent] == ["good"]
    assert store.pending_count() == 0


def scans_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if plan["Node Type"].endswith("Scan") and "Relation Name" in plan:
        yield plan
    for part in plan.get("Plans", []):
        yield from scans_of(part)


def test_the_table_is_named_after_the_endpoint(postgres: str) -> None:
    """``<endpoint>.delayed``, as one quoted name."""
    endpoint = f"e{uuid.uuid4().hex[:12]}"
    with closing(PostgresStore(postgres, endpoint=endpoint)) as store:
        with pytest.raises(StoreMissing, match=f"{endpoint}.delayed does not exist"):
            store.initialize(TransactionMode.AT_LEAST_ONCE)
        store.set_up()
        with psycopg.connect(postgres) as connection:
            query = "SELECT 1 FROM information_schema.tables WHERE table_name = %s"
            assert connection.execute(query, [f"{endpoint}.delayed"]).fetchone()


def test_the_schema_is_configurable(postgres: str, table: str) -> None:
    """Quoted as the table is; the same table name in two schemas is two stores."""
    schema = f'my 100% "own" {uuid.uuid4().hex[:8]}'
    with psycopg.connect(postgres) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    url = f"{postgres}?table={quote(table)}"
    with (
        closing(open_store(f"{url}&schema={quote(schema)}", endpoint="orders")) as own,
        closing(open_store(url, endpoint="orders")) as other,
    ):
        own.set_up()
        other.set_up()
        own.initialize(TransactionMode.AT_LEAST_ONCE)
        assert own.store([message("a")]) == [True]
        assert other.pending_count() == 0


@pytest.mark.parametrize("name", ["x" * 64, "\N{SNOWMAN}" * 22, "a\0b"])
def test_a_name_postgresql_would_cut_off_is_refused(name: str) -> None:
    """Two long names that share their first 63 bytes would be one table."""
    with pytest.raises(ConfigurationError, match="1 to 63"):
        PostgresStore("postgresql://nowhere", endpoint="orders", table=name)


def test_a_bad_connection_string_is_refused() -> None:
    """Found when it is given, not at the first message."""
    with pytest.raises(ConfigurationError, match="connection string"):
        PostgresStore("host=localhost prot=5432", endpoint="orders")


def test_one_bad_effect_does_not_undo_the_others(postgres: str, store: PostgresStore) -> None:
    """Exactly once: a batch that fails is tried one by one, and the bad one is rejected."""
    effects, errors = f"e{uuid.uuid4().hex[:12]}", f"r{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres) as connection:
        connection.execute(f"CREATE TABLE {effects} (id text CHECK (id <> 'bad'))")
        connection.execute(f"CREATE TABLE {errors} (id text, reason text)")

    def deliver(transaction: Any, messages: Any) -> None:
        for m in messages:
            transaction.execute(f"INSERT INTO {effects} VALUES (%s)", [m.message_id])

    def reject(transaction: Any, m: StoredMessage, reason: str) -> None:
        transaction.execute(f"INSERT INTO {errors} VALUES (%s, %s)", [m.message_id, reason])

    store.store([message(name, -1) for name in ("a", "bad", "c")])
    dispatcher = Dispatcher(store, ExactlyOnce(deliver=deliver, reject=reject))
    dispatcher.start()
    done = dispatcher.dispatch()
    assert ([m.message_id for m in done.released], [m.message_id for m in done.rejected]) == (
        ["a", "c"],
        ["bad"],
    )
    assert store.pending_count() == 0
    with psycopg.connect(postgres) as connection:
        written = connection.execute(f"SELECT id FROM {effects} ORDER BY id").fetchall()
        (rejected,) = connection.execute(f"SELECT id, reason FROM {errors}").fetchall()
    assert written == [("a",), ("c",)]
    assert rejected[0] == "bad"
    assert rejected[1].startswith("CheckViolation: ")
