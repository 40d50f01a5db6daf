"""One contract over all inboxes, on real databases."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sqsdelay.errors import ConfigurationError, StoreMissing
from sqsdelay.receiving.deduplication import Copy, Deduplicator, Inbox
from sqsdelay.stores.postgres.postgres_store import PostgresInbox
from sqsdelay.stores.sqlite.sqlite_store import SqliteInbox
from sqsdelay.testing import ManualClock
from tests.patience import PATIENCE_SECONDS

LEASE = 60.0
Connect = Callable[[], Any]


def commit_each_statement(connection: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None
    else:
        connection.autocommit = True


class InboxContract:
    """What holds for every inbox. Each test gets an empty one."""

    @pytest.fixture
    def make(self) -> Iterator[tuple[Callable[[], Any], Connect]]:
        """Overridden: makes inboxes on this test's table, and connections to its database."""
        raise NotImplementedError("override the fixture make")

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def inboxes(self, make: tuple[Callable[[], Any], Connect]) -> Iterator[tuple[Inbox, Inbox]]:
        """Two objects on one table, as two processes would have."""
        one, other = make[0](), make[0]()
        one.set_up()
        other.set_up()
        yield one, other
        one.close()
        other.close()

    @pytest.fixture
    def receiver(self, inboxes: tuple[Inbox, Inbox], clock: ManualClock) -> Deduplicator:
        return Deduplicator(inboxes[0], lease_seconds=LEASE, remember_seconds=3600, clock=clock)

    @pytest.fixture
    def other(self, inboxes: tuple[Inbox, Inbox], clock: ManualClock) -> Deduplicator:
        return Deduplicator(inboxes[1], lease_seconds=LEASE, remember_seconds=3600, clock=clock)

    def test_a_second_copy_is_a_duplicate(
        self, receiver: Deduplicator, other: Deduplicator
    ) -> None:
        """Processed once, whichever receiver the copies reach; other messages are their own."""
        effects: list[str] = []
        assert receiver.process("a'\";", lambda: effects.append("a")) is Copy.FIRST
        assert receiver.process("a'\";", lambda: effects.append("a")) is Copy.DUPLICATE
        assert other.process("a'\";", lambda: effects.append("a")) is Copy.DUPLICATE
        assert other.process("b", lambda: effects.append("b")) is Copy.FIRST
        assert effects == ["a", "b"]

    def test_a_copy_that_comes_meanwhile_is_left(
        self, receiver: Deduplicator, other: Deduplicator
    ) -> None:
        """While one copy is processed, another is neither processed nor taken for done."""
        seen: list[Copy] = []
        receiver.process("a", lambda: seen.append(other.process("a", lambda: 1 / 0)))
        assert seen == [Copy.IN_PROGRESS]

    def test_a_failure_leaves_the_message_to_the_next_copy(
        self, receiver: Deduplicator, other: Deduplicator
    ) -> None:
        """An effect that raises has not been, and the receiver learns of it."""
        with pytest.raises(ZeroDivisionError):
            receiver.process("a", lambda: 1 / 0)
        assert other.process("a", lambda: None) is Copy.FIRST

    def test_a_dead_receivers_message_comes_free(
        self, inboxes: tuple[Inbox, Inbox], other: Deduplicator, clock: ManualClock
    ) -> None:
        """A claim ends with its lease, not before."""
        now_ms = clock.now_ms()
        until_ms = now_ms + round(LEASE * 1000)
        inboxes[0].begin("a", claim="dead", now_ms=now_ms, until_ms=until_ms)
        clock.advance(LEASE - 0.001)
        assert other.process("a", lambda: None) is Copy.IN_PROGRESS
        clock.advance(0.001)
        assert other.process("a", lambda: None) is Copy.FIRST

    def test_a_late_receiver_does_not_undo(
        self, receiver: Deduplicator, other: Deduplicator, clock: ManualClock
    ) -> None:
        """Whoever outlived its lease and then fails does not give up another's claim or work."""

        def slow() -> None:
            clock.advance(LEASE)
            assert other.process("a", lambda: None) is Copy.FIRST
            raise TimeoutError

        with pytest.raises(TimeoutError):
            receiver.process("a", slow)
        assert receiver.process("a", lambda: None) is Copy.DUPLICATE

    def test_what_is_too_old_is_forgotten(self, receiver: Deduplicator, clock: ManualClock) -> None:
        """After the time to remember a message counts as new, and its row goes."""
        for n in range(3):
            receiver.process(f"old-{n}", lambda: None)
        clock.advance(3599)
        receiver.process("young", lambda: None)
        assert receiver.forget() == 0
        clock.advance(1)
        assert receiver.process("old-0", lambda: None) is Copy.FIRST
        assert receiver.forget() == 2
        assert receiver.process("young", lambda: None) is Copy.DUPLICATE

    def test_many_receivers_at_once(self, receiver: Deduplicator, other: Deduplicator) -> None:
        """However they race, each message's effect happens once, and none is lost."""
        effects: list[int] = []

        def receive(n: int) -> Copy:
            which = (receiver, other)[n % 2]
            return which.process(f"m-{n // 8}", lambda: effects.append(n // 8))

        with ThreadPoolExecutor(8) as pool:
            copies = list(pool.map(receive, range(160)))
        assert sorted(effects) == list(range(20))
        assert copies.count(Copy.FIRST) == 20

    def test_the_callers_transaction_decides(
        self, receiver: Deduplicator, make: tuple[Callable[[], Any], Connect]
    ) -> None:
        """Rolled back, the message was never here; committed, it was."""
        connection = make[1]()
        assert receiver.first("a", connection)
        connection.rollback()
        assert receiver.first("a", connection)
        connection.commit()
        assert not receiver.first("a", connection)
        connection.rollback()
        assert receiver.process("a", lambda: None) is Copy.DUPLICATE
        connection.close()

    def test_a_copy_waits_for_the_other_transaction(
        self, receiver: Deduplicator, other: Deduplicator, make: tuple[Any, Connect]
    ) -> None:
        """Two copies at once: the second learns whether the first was committed."""
        for end, expected in (("rollback", True), ("commit", False)):
            one, two = make[1](), make[1]()
            assert receiver.first(end, one)
            with ThreadPoolExecutor(1) as pool:
                started = threading.Event()

                def second(end: str = end, two: Any = two, started: Any = started) -> bool:
                    started.set()
                    return other.first(end, two)

                answer = pool.submit(second)
                started.wait(PATIENCE_SECONDS)
                with pytest.raises(TimeoutError):
                    answer.result(0.2)
                getattr(one, end)()
                assert answer.result(PATIENCE_SECONDS) is expected
            two.commit()
            one.close()
            two.close()

    def test_another_drivers_connection_is_refused(self, receiver: Deduplicator) -> None:
        """It says which one is wanted."""
        told = r"transaction is a object; give the .*Connection"
        with pytest.raises(ConfigurationError, match=told):
            receiver.first("a", object())

    def test_a_connection_outside_a_transaction_is_refused(
        self, receiver: Deduplicator, make: tuple[Callable[[], Any], Connect]
    ) -> None:
        """It would remember the message at once, and lose it with the effect if that fails."""
        connection = make[1]()
        commit_each_statement(connection)
        with pytest.raises(ConfigurationError, match="no transaction is open"):
            receiver.first("a", connection)
        connection.execute("BEGIN")
        assert receiver.first("a", connection)
        connection.execute("COMMIT")
        connection.close()

    def test_without_its_table_it_says_so(self, make: tuple[Callable[[], Any], Connect]) -> None:
        """And how to make it."""
        inbox = make[0]()
        with pytest.raises(StoreMissing, match=r"received.* does not exist; call set_up\(\)"):
            Deduplicator(inbox, lease_seconds=LEASE).process("a", lambda: None)
        inbox.close()


class TestSqlite(InboxContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> tuple[Callable[[], Any], Connect]:
        path = tmp_path / "app.db"
        return (
            lambda: SqliteInbox(path, endpoint="orders"),
            lambda: sqlite3.connect(path, timeout=PATIENCE_SECONDS, check_same_thread=False),
        )


class TestPostgres(InboxContract):
    @pytest.fixture
    def make(self, postgres: str) -> tuple[Callable[[], Any], Connect]:
        # A name that would break out of any quoting done by hand.
        table = f"o\"r'd;--%s {{x}}.{uuid.uuid4().hex[:12]}.received"
        return (
            lambda: PostgresInbox(postgres, endpoint="orders", table=table),
            lambda: psycopg.connect(postgres),
        )
