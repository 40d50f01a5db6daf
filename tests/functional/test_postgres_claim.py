"""How PostgreSQL finds the rows of a claim, which it removes, and what its errors tell."""

from __future__ import annotations

import re
import traceback
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.dispatching import ExactlyOnce
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import StoreError
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from tests.messages import a_message

LONG_AGO_MS = 1_000
FAR_MS = 253_402_300_000_000
SECRET = "card 4111 1111"


@pytest.fixture
def table() -> str:
    return f"orders_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(postgres: str, table: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres, endpoint="orders", table=table)) as store:
        yield store


def messages(count: int, due_ms: int, prefix: str) -> list[StoredMessage]:
    return [a_message(f"{prefix}{n}", due_ms) for n in range(count)]


def run(conninfo: str, query: str, *names: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL(query).format(*map(sql.Identifier, names)))


def test_a_plan_from_when_the_table_was_empty_reads_no_whole_table(
    postgres: str, table: str, store: PostgresStore
) -> None:
    """PostgreSQL keeps a session's plans. One made for three rows must be good for a million."""
    store.set_up()
    run(postgres, "ALTER TABLE {} SET (autovacuum_enabled = off)", table)
    store.store(messages(3, FAR_MS, "far"))
    run(postgres, "VACUUM ANALYZE {}", table)
    query = "SELECT seq_scan, n_tup_del FROM pg_stat_xact_user_tables WHERE relname = %s"
    with closing(PostgresStore(postgres, endpoint="orders", table=table)) as own:
        for turn in range(12):
            store.store(messages(3, LONG_AGO_MS, f"m{turn}-"))
            with own.claim(500, due_by_ms=LONG_AGO_MS) as claim:
                assert claim.remove([m.message_id for m in claim.messages]) == [True] * 3
                scans, removed = claim.transaction.execute(query, [table]).fetchone()
            assert removed >= 3
            assert scans == 0, f"claim {turn + 1} read the whole table"


def test_of_a_partitioned_table_only_what_was_sent_is_removed(
    postgres: str, table: str, store: PostgresStore
) -> None:
    """Rows of two partitions lie at the same place, each in its own."""
    store.set_up()
    run(postgres, "ALTER TABLE {} RENAME TO {}", table, f"{table}_whole")
    like = "CREATE TABLE {} (LIKE {} INCLUDING ALL) PARTITION BY HASH (message_id)"
    run(postgres, like, table, f"{table}_whole")
    run(postgres, "DROP TABLE {}", f"{table}_whole")
    for part in range(3):
        values = f"WITH (MODULUS 3, REMAINDER {part})"
        query = f"CREATE TABLE {{}} PARTITION OF {{}} FOR VALUES {values}"
        run(postgres, query, f"{table}_{part}", table)
    index = f"{store._prefix}_due"
    run(
        postgres, "CREATE INDEX {} ON {} (due_ms, message_id) WHERE held_until_ms = 0", index, table
    )
    run(postgres, "COMMENT ON INDEX {} IS 'sqsdelay schema 1'", index)
    store.store(messages(30, LONG_AGO_MS, "due-") + messages(30, FAR_MS, "far-"))
    with store.claim(10, due_by_ms=LONG_AGO_MS) as claim:
        claimed = [m.message_id for m in claim.messages]
        assert claim.remove(claimed) == [True] * 10
    left = {m.message_id for m in store.pending(100)}
    assert left == {f"{kind}-{n}" for kind in ("due", "far") for n in range(30)} - set(claimed)


def test_an_effect_that_writes_its_own_row_is_removed_with_it(
    postgres: str, table: str, store: PostgresStore
) -> None:
    """Written in the claim's transaction, a row no longer lies where it was claimed."""
    store.set_up()
    store.store(messages(3, LONG_AGO_MS, "m"))
    moved = sql.SQL("UPDATE {} SET failures = failures + 1").format(sql.Identifier(table))

    def deliver(transaction: Any, given: Sequence[StoredMessage]) -> None:
        assert len(given) == 3
        transaction.execute(moved)

    dispatcher = Dispatcher(
        store, ExactlyOnce(deliver=deliver, reject=lambda *_: pytest.fail("rejected"))
    )
    assert len(dispatcher.dispatch().released) == 3
    assert store.pending_count() == 0


def test_a_removal_answers_for_each_id(store: PostgresStore) -> None:
    """Also for one that is not in the claim, or no longer there."""
    store.set_up()
    store.store(messages(4, LONG_AGO_MS, "m"))
    with store.claim(3, due_by_ms=LONG_AGO_MS) as claim:
        assert claim.hold(["m2"], seconds=0) == [True]
        assert claim.remove(["m0", "m1"]) == [True, True]
        assert claim.remove(["m0", "unknown", "m2"]) == [False, False, True]
    assert [m.message_id for m in store.pending(10)] == ["m3"]


def test_any_number_of_amendments_is_two_statements(
    postgres: str, table: str, tmp_path: Path
) -> None:
    """Each statement is a round trip, and behind a pooler more. What was cancelled stays so at any size."""
    gone = [Amendment(message_id=f"m{n}", at_ms=FAR_MS) for n in range(20_000)]
    talk = tmp_path / "talk"
    with closing(PostgresStore(postgres, endpoint="orders", table=table, connections=1)) as store:
        store.set_up()
        store.amend(gone[:10_000])
        with talk.open("w") as trace:
            with store._statement() as connection:
                connection.pgconn.trace(trace.fileno())
            store.amend([replace(each, due_ms=FAR_MS + 1, at_ms=FAR_MS + 1) for each in gone])
            with store._statement() as connection:
                connection.pgconn.untrace()
        kept = store.all_amendments(30_000)
    # Its begin and commit are two more.
    assert len(re.findall(r"\tF\t\d+\t(?:Query|Execute)\t", talk.read_text())) == 4
    assert {each.message_id for each in kept} == {each.message_id for each in gone}
    assert sum(each.cancelled_ms == FAR_MS for each in kept) == 10_000


def test_a_databases_own_timeouts_end_no_claim(postgres: str, table: str) -> None:
    """While messages are sent the claim's transaction is idle: ended then, they would be sent again."""
    impatient = f"{postgres}?options=-c%20idle_in_transaction_session_timeout%3D1000"
    with closing(PostgresStore(impatient, endpoint="orders", table=table)) as store:
        store.set_up()
        with store.claim(1, due_by_ms=LONG_AGO_MS) as claim:
            shown = claim.transaction.execute("SHOW idle_in_transaction_session_timeout")
            assert shown.fetchone() == ("0",)


@pytest.mark.parametrize("each", [1, 2])
def test_what_lies_behind_anothers_claim_is_due_as_soon_as_that_ends(
    postgres: str, table: str, store: PostgresStore, each: int
) -> None:
    """With a destination out of reach, a claim that finds the first destinations' earliest rows locked has
    not looked at the destinations behind them: it must not begin behind those the next time."""
    store.set_up()
    rows = [a_message(f"m{n}", LONG_AGO_MS + n, to=f"d{n % 6}") for n in range(6 * each)]
    with (
        closing(PostgresStore(postgres, endpoint="orders", table=table)) as other,
        store.watch(lambda: None),
    ):
        other.store(rows)
        with other.claim(3, due_by_ms=FAR_MS, except_destinations=["away"]) as claim:
            with store.claim(2, due_by_ms=FAR_MS, except_destinations=["away"]) as mine:
                assert len(mine.messages) == 2 * (each - 1)
            assert claim.remove([m.message_id for m in claim.messages]) == [True] * 3
        assert store.next_due_ms(["away"]) == rows[3].due_ms
        with store.claim(2, due_by_ms=FAR_MS, except_destinations=["away"]) as mine:
            assert [m.message_id for m in mine.messages] == ["m3", "m4"]


def test_a_rows_content_is_in_no_error(postgres: str, table: str, store: PostgresStore) -> None:
    """DETAIL quotes the row that failed: its body, its attributes. The rest of the error stays."""
    store.set_up()
    run(postgres, "ALTER TABLE {} ADD CHECK (due_ms < 5)", table)
    message = a_message("m-1", 1_000, body=SECRET.encode())
    with pytest.raises(StoreError, match=r"violates check constraint.*SQLSTATE 23514") as told:
        store.store([message])
    shown = "".join(traceback.format_exception(told.value))
    for secret in ("DETAIL", SECRET, SECRET.encode().hex()):
        assert secret not in shown
