"""Names and values that would break out of SQL: kept as they are, and nothing else is touched."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from sqsdelay.core.stored_message import Amendment
from sqsdelay.errors import ConfigurationError
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing import ManualClock
from tests.messages import a_message

CLOCK = ManualClock()
HOSTILE = (
    'x"; DROP TABLE canary; --',
    "x'; DROP TABLE canary; --",
    'public"."canary',
    "canary; DELETE FROM canary",
    "%s %(id)s %%",
    "{table}{amendments}{index} {0} {}",
    ":id ?1 $1 @x #y",
    "back\\slash\\",
    "new\nline\ttab",
    "/* open",
    "名前 ü 🐘",
    " ",
    "SELECT",
)

Make = Callable[[str], DelayedMessageStore]


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """A store of an endpoint of any name, in a database that holds a table it must not touch."""
    if request.param == "sqlite":
        path = tmp_path / "store.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE canary (alive INTEGER)")
            db.execute("INSERT INTO canary VALUES (1)")
            db.commit()
            yield lambda endpoint: SqliteStore(path, endpoint=endpoint, clock=CLOCK)
            assert db.execute("SELECT alive FROM canary").fetchall() == [(1,)]
    else:
        conninfo: str = request.getfixturevalue("postgres")
        with psycopg.connect(conninfo, autocommit=True) as db2:
            db2.execute("DROP TABLE IF EXISTS canary")
            db2.execute("CREATE TABLE canary (alive integer)")
            db2.execute("INSERT INTO canary VALUES (1)")
            yield lambda endpoint: PostgresStore(conninfo, endpoint=endpoint, clock=CLOCK)
            assert db2.execute("SELECT alive FROM canary").fetchall() == [(1,)]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_an_endpoint_of_any_name(make: Make, name: str) -> None:
    """Every statement of the store works on the table of that name, and on no other."""
    message = a_message(name, CLOCK.now_ms(), to=name, body=name.encode(), group_id=name)
    with closing(make(name)) as store, closing(make(f"{name}-other")) as other:
        store.set_up()
        other.set_up()
        assert store.store([message]) == [True]
        assert store.store([message, message]) == [False, False]
        assert store.find(name) == message
        assert other.find(name) is None
        assert store.reschedule(name, CLOCK.now_ms() - 1)
        store.amend([Amendment(message_id=name, at_ms=CLOCK.now_ms())])
        assert set(store.amendments([name])) == {name}
        assert other.amendments([name]) == {}
        with store.claim(9, due_by_ms=CLOCK.now_ms()) as claim:
            assert [each.message_id for each in claim.messages] == [name]
            assert claim.count_failures([name], retry_after_seconds=0) == [True]
        assert [each.failures for each in store.pending(9)] == [1]
        assert store.next_due_ms() == CLOCK.now_ms() - 1
        with store.claim(9, due_by_ms=CLOCK.now_ms()) as claim:
            assert claim.hold([name], seconds=0) == [True]
        assert other.cancel([name]) == [False]
        assert store.cancel([name]) == [True]
        assert store.pending_count() == 0


@pytest.mark.parametrize("name", ["nul\0", "lone\ud800", "\udcff"], ids=ascii)
def test_a_name_no_database_can_hold(make: Make, name: str) -> None:
    """Refused at once, with what to leave out."""
    with pytest.raises(ConfigurationError, match="NUL"):
        make(name)
