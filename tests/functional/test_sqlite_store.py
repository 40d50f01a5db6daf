"""What only SQLite shows: processes on one file, its durability, its names, delivery inside an app."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching import ExactlyOnce
from sqsdelay.dispatching.dispatcher import DelayedDelivery, Dispatcher, DispatchSettings
from sqsdelay.errors import ConfigurationError, CriticalError, StoreMissing, StoreUnavailable
from sqsdelay.ports.stores import Claim, TransactionMode
from sqsdelay.stores import open_store
from sqsdelay.stores.sqlite.sqlite_store import RESERVE_BYTES, SqliteClaim, SqliteStore
from sqsdelay.testing import InMemoryOutbox, ManualClock
from tests.messages import a_message
from tests.patience import wait_for


def message(message_id: str, due_ms: int, size: int = 1) -> StoredMessage:
    return a_message(message_id, due_ms, body=b"x" * size)


def soon(message_id: str, in_ms: int = 0) -> StoredMessage:
    return message(message_id, SystemClock().now_ms() + in_ms)


@contextmanager
def opened(folder: Path, **arguments: Any) -> Iterator[SqliteStore]:
    with closing(SqliteStore(folder / "store.db", endpoint="orders", **arguments)) as store:
        store.set_up()
        yield store


def test_commits_survive_the_power(tmp_path: Path) -> None:
    """WAL, and every commit is written through (FULL)."""
    with opened(tmp_path) as store:
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Bodies wait in it in the clear, in the journal beside it too; a mode that was set is kept."""
    before = os.umask(0o022)
    try:
        with opened(tmp_path) as store:
            store.store([soon("m")])
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(
        ("store.db", "store.db-wal", "store.db-shm", "store.db-reserve"), 0o600
    )
    (tmp_path / "store.db").chmod(0o640)
    with opened(tmp_path):
        assert (tmp_path / "store.db").stat().st_mode & 0o777 == 0o640


def test_a_dead_dispatchers_lease_runs_out(tmp_path: Path) -> None:
    """Its messages are free after the lease, not before, and it cannot settle them any more."""
    clock = ManualClock()
    with opened(tmp_path, clock=clock, lease_seconds=60) as store:
        store.store([message("a", clock.now_ms())])
        dead = store._leased(1, clock.now_ms(), ())
        clock.advance(59.999)
        assert store.next_due_ms() is None
        clock.advance(0.001)
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            assert [m.message_id for m in claim.messages] == ["a"]
            assert dead.remove(["a"]) == [False]
            assert claim.remove(["a"]) == [True]


def test_two_endpoints_share_a_file(tmp_path: Path) -> None:
    """Each has its table, whatever its name."""
    names = ["orders", 'o"; DROP TABLE "orders.delayed']
    for name in names:
        with closing(SqliteStore(tmp_path / "store.db", endpoint=name)) as store:
            store.set_up()
            assert store.store([message(name, 0)]) == [True]
    for name in names:
        with closing(SqliteStore(tmp_path / "store.db", endpoint=name)) as store:
            assert [m.message_id for m in store.pending(10)] == [name]


def test_a_missing_table_and_a_bad_name_say_so(tmp_path: Path) -> None:
    """With the command that mends it."""
    with closing(SqliteStore(tmp_path / "store.db", endpoint="orders")) as store:
        with pytest.raises(StoreMissing, match=r"orders.delayed does not exist.*store create"):
            store.initialize(TransactionMode.AT_LEAST_ONCE)
        with pytest.raises(StoreMissing):
            store.store([message("a", 0)])
    with pytest.raises(ConfigurationError, match="not a table name"):
        SqliteStore(tmp_path / "store.db", endpoint="orders", table="a\0b")
    with pytest.raises(StoreUnavailable, match="unable to open"):
        SqliteStore(tmp_path / "missing" / "store.db", endpoint="orders")


def test_a_path_no_file_can_have_says_so(tmp_path: Path) -> None:
    """Opened from Python as from a URL: one clear error, and nothing of the path in it."""
    told = "contains a NUL character; correct the path"
    with pytest.raises(ConfigurationError, match=told):
        SqliteStore(f"{tmp_path}/a\0b", endpoint="orders")
    with pytest.raises(ConfigurationError, match=told):
        open_store(f"sqlite:///{tmp_path}/a%00b", endpoint="orders")
    assert list(tmp_path.iterdir()) == []


def test_stored_in_the_callers_transaction(tmp_path: Path) -> None:
    """A message commits with the work that caused it, or is never there."""
    with opened(tmp_path) as store, closing(sqlite3.connect(tmp_path / "store.db")) as own:
        store.store([message("a", 0)], transaction=own)
        own.rollback()
        assert store.pending_count() == 0
        store.store([message("a", 0)], transaction=own)
        own.commit()
        assert store.pending_count() == 1
        with pytest.raises(ConfigurationError, match=r"give the sqlite3\.Connection"):
            store.store([message("b", 0)], transaction="x")


def test_an_effect_may_store_the_next_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly once, a repeating timer: the next message commits with the removal of those that are due, which
    have their effect in one call. If they cannot be removed, it is undone, and they have it next time."""
    with opened(tmp_path) as store:
        store.store([message("tick-0", 1), message("tick-1", 1)])

        def deliver(transaction: Any, messages: Any) -> None:
            store.store([message("tick-2", 10**14)])
            transaction.execute("CREATE TABLE ticks AS SELECT ? AS id", [messages[0].message_id])
            messages.clear()  # a list of its own: what it does with that keeps nothing in the store

        def reject(transaction: Any, message: StoredMessage, reason: str) -> None:
            raise AssertionError(reason)

        dispatcher = Dispatcher(store, ExactlyOnce(deliver=deliver, reject=reject))
        dispatcher.start()
        with monkeypatch.context() as broken:
            broken.setattr(SqliteClaim, "remove", Mock(side_effect=StoreUnavailable("disk error")))
            with pytest.raises(StoreUnavailable):
                dispatcher.dispatch()
        assert len(dispatcher.dispatch().released) == 2
        assert [m.message_id for m in store.pending(10)] == ["tick-2"]
        assert store._connection.execute("SELECT id FROM ticks").fetchall() == [("tick-0",)]


def test_a_store_error_within_an_effect_is_that_messages_failure(tmp_path: Path) -> None:
    """An effect may use another store; that one's trouble must not hold up the rest of this one."""
    with opened(tmp_path) as store, closing(SqliteStore(tmp_path / "no.db", endpoint="x")) as other:
        store.store([message("bad", 1), message("good", 2)])
        rejected, tried = list[str](), list[list[str]]()

        def deliver(transaction: Any, messages: Sequence[StoredMessage]) -> None:
            tried.append([each.message_id for each in messages])
            if "bad" in tried[-1]:
                other.store([message("next", 3)])

        def reject(transaction: Any, message: StoredMessage, reason: str) -> None:
            rejected.append(f"{message.message_id}: {reason}")

        dispatcher = Dispatcher(store, ExactlyOnce(deliver=deliver, reject=reject))
        dispatcher.start()
        assert [each.message_id for each in dispatcher.dispatch().released] == ["good"]
        assert (len(rejected), tried) == (1, [["bad", "good"], ["bad"], ["good"]])
        assert rejected[0].startswith("bad: StoreMissing: StoreMissing: table x.delayed does not")


class Broken(SqliteStore):
    """A store whose disk fails when told to."""

    broken = False

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        self._fail()
        return super().store(messages, transaction=transaction)

    @contextmanager
    def claim(self, limit: int, **given: Any) -> Iterator[Claim]:
        self._fail()
        with super().claim(limit, **given) as claim:
            yield claim

    def _fail(self) -> None:
        if self.broken:
            raise StoreUnavailable("disk I/O error")


def test_the_store_breaker_triggers(tmp_path: Path) -> None:
    """Storing that fails for too long is critical; a single success disarms."""
    clock = ManualClock()
    with closing(Broken(tmp_path / "store.db", endpoint="orders")) as store:
        store.set_up()
        delivery = DelayedDelivery(store, InMemoryOutbox(SystemClock()), clock=clock)
        store.broken = True
        with pytest.raises(StoreUnavailable):
            delivery.store([soon("a")])
        clock.advance(30)
        with pytest.raises(CriticalError, match="store circuit breaker: failing for 30 s"):
            delivery.store([soon("a")])
        store.broken = False
        delivery.store([soon("a")])
        store.broken = True
        with pytest.raises(StoreUnavailable):
            delivery.store([soon("b")])


def test_dispatching_that_stopped_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An application learns of it at its next store, and at the end; its operator from the log."""
    settings = DispatchSettings(fetch_breaker_seconds=0.01)
    with closing(Broken(tmp_path / "store.db", endpoint="orders")) as store:
        delivery = DelayedDelivery(store, InMemoryOutbox(SystemClock()), settings=settings)
        delivery.start()
        store.broken = True

        def stopped() -> bool:
            with suppress(StoreUnavailable):
                try:
                    delivery.store([soon("a")])
                except CriticalError as critical:
                    return "dispatching has stopped: fetch circuit breaker" in str(critical)
            return False

        wait_for(stopped)
        with pytest.raises(CriticalError, match="dispatching has stopped"):
            delivery.stop()
    (line,) = [text for text in caplog.messages if text.startswith("dispatching stops")]
    assert line.startswith("dispatching stops: CriticalError(")


def test_what_waits_for_a_destination_out_of_reach_is_not_read(tmp_path: Path) -> None:
    """However many: the work to find what is due behind them stays the same (virtual machine steps)."""
    work = []
    with opened(tmp_path) as store:
        now = SystemClock().now_ms()
        store.store([soon("due", -1)])
        for count in (100, 10_000):
            full = [a_message(f"{count}.{n}", now - 9_000, to="full") for n in range(count)]
            store.store(full)
            steps: list[None] = []
            store._connection.set_progress_handler(partial(steps.append, None), 10)
            with store.claim(9, due_by_ms=now, except_destinations=["full"]) as claim:
                assert [each.message_id for each in claim.messages] == ["due"]
            assert store.next_due_ms(except_destinations=["full"]) == claim.messages[0].due_ms
            store._connection.set_progress_handler(None, 0)
            work.append(len(steps))
    assert work[1] < 2 * work[0]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_deleted_keeps_nothing_more(tmp_path: Path, replaced: bool) -> None:
    """The open one still takes rows, where nobody finds them: an error, and not True."""
    with opened(tmp_path) as store, closing(sqlite3.connect(tmp_path / "store.db")) as own:
        assert store.store([message("a", 1)], transaction=own) == [True]
        own.commit()
        for file in tmp_path.iterdir():
            file.unlink()
        if replaced:
            with opened(tmp_path) as another:
                another.set_up()
        storing = [partial(store.store, [message("b", 1)], transaction=of) for of in (None, own)]
        uses: list[Callable[[], object]] = [*storing, store.set_up, store.pending_count]
        for use in uses:
            with pytest.raises(StoreUnavailable, match="was deleted or replaced while it was open"):
                use()


def test_a_relative_path_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that goes to another folder, and a child that begins anew there, keep to the file."""
    monkeypatch.chdir(tmp_path)
    with closing(SqliteStore("store.db", endpoint="orders")) as store:
        store.set_up()
        (elsewhere := tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(elsewhere)
        assert store.store([soon("a")]) == [True]
        store._begin_anew()
        assert store.pending_count() == 1
    assert not list(elsewhere.iterdir())


def test_leases_write_no_bodies(tmp_path: Path) -> None:
    """A message of 1 MiB is claimed, renewed, and after a failure claimed again: a page or two each time."""
    clock, journal = ManualClock(), tmp_path / "store.db-wal"
    with opened(tmp_path, clock=clock) as store:
        store.store([message("a", clock.now_ms(), 1 << 20)])
        for _ in range(3):
            store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            claim = store._leased(1, clock.now_ms(), ())
            clock.advance(1)
            claim.renew()
            assert 0 < journal.stat().st_size < 20_000
            assert claim.count_failures(["a"], retry_after_seconds=1) == [True]
            clock.advance(1)


def fill(store: SqliteStore, clock: ManualClock, size: int) -> int:
    """Store due messages until there is no room; how many."""

    def store_for_ever() -> None:
        for start in range(0, 1 << 30, 10):
            store.store([message(f"m{start + n}", clock.now_ms(), size) for n in range(10)])

    with pytest.raises(StoreUnavailable, match="full"):
        store_for_ever()
    return store.pending_count()


@pytest.mark.parametrize("pages", [300, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_messages_leave_a_full_file(tmp_path: Path, pages: int) -> None:
    """Neither a claim nor a removal needs a page more: all of thousands, and there is room again."""
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        stored = fill(store, clock, 100)
        assert stored > 7 * pages
        outbox = InMemoryOutbox(clock)
        dispatcher = Dispatcher(store, outbox, clock=clock)
        while dispatcher.dispatch().claimed:
            pass
        assert len(outbox.sent) == stored
        assert fill(store, clock, 100) > stored / 2


@pytest.mark.parametrize("size", [pytest.param(100, marks=pytest.mark.nightly), 100_000])
def test_messages_leave_a_full_disk(tmp_path: Path, size: int) -> None:
    """The reserve is given up for them, told once, and made again when there is room."""
    clock = ManualClock()
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=True)
    try:
        with opened(disk, clock=clock) as store:
            stored = fill(store, clock, size)
        with opened(disk, clock=clock) as store:
            outbox = InMemoryOutbox(clock)
            dispatcher = Dispatcher(store, outbox, clock=clock)
            while dispatcher.dispatch().claimed:
                pass
            assert len(outbox.sent) == stored
            assert not (disk / "store.db-reserve").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        with opened(disk, clock=clock) as store:
            store.store([message("more", clock.now_ms())])
            assert (disk / "store.db-reserve").stat().st_size == RESERVE_BYTES
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_read_only_file_says_so(tmp_path: Path) -> None:
    """With what to do; what only reads still works."""
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        store.store([message("m", clock.now_ms())])
        store._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreUnavailable, match=r"is read-only: .*; let this user write"):
            store.store([message("n", clock.now_ms())])
        assert store.pending_count() == 1


def test_a_lease_by_a_clock_an_hour_ahead_ends_like_any_other(tmp_path: Path) -> None:
    """Free a lease after its holder has died, not 3,660 s; one who lives keeps it."""
    clock = ManualClock()
    ahead = ManualClock(clock.now_ms() + 3_600_000)
    with opened(tmp_path, clock=clock) as store, opened(tmp_path, clock=ahead) as other:
        store.store([message("m", clock.now_ms())])
        held = other._leased(1, ahead.now_ms(), ())
        for _ in range(10):
            with store.claim(1, due_by_ms=clock.now_ms()) as claim:
                assert list(claim.messages) == []
            held.renew()
            clock.advance(20)
            ahead.advance(20)
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            assert list(claim.messages) == []
        clock.advance(60)
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            assert [each.message_id for each in claim.messages] == ["m"]
