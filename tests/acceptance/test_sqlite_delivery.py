"""Delivery from a SQLite file as time passes: inside an application, and between processes."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqsdelay.core.delay import SystemClock
from sqsdelay.dispatching.dispatcher import DelayedDelivery
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing import InMemoryOutbox
from tests.acceptance.dispatcher_process import message
from tests.patience import PATIENCE_SECONDS, wait_for


@contextmanager
def opened(folder: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(folder / "store.db", endpoint="orders")) as store:
        store.set_up()
        yield store


def test_another_process_writing_is_waited_for(tmp_path: Path) -> None:
    """A write lock held for a moment is no error."""
    with opened(tmp_path) as store, closing(sqlite3.connect(tmp_path / "store.db")) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        storing = threading.Thread(target=store.store, args=([message("a")],))
        storing.start()
        time.sleep(0.2)
        assert storing.is_alive()
        other.execute("COMMIT")
        storing.join(PATIENCE_SECONDS)
        assert store.pending_count() == 1


def test_delivery_inside_an_application(tmp_path: Path) -> None:
    """Stored here, dispatched by a thread, never before the due time."""
    outbox = InMemoryOutbox(SystemClock())
    late: list[int] = []
    with (
        closing(SqliteStore(tmp_path / "store.db", endpoint="orders")) as store,
        DelayedDelivery(store, outbox, on_round=lambda r: late.extend(r.late_ms())) as delivery,
    ):
        time.sleep(1)
        delivery.store([message("b", 600), message("a")])
        wait_for(lambda: not store.pending_count())
    assert [m.message_id for m in outbox.sent] == ["a", "b"]
    assert min(late) >= 0


def test_another_processs_message_is_found_in_time(tmp_path: Path) -> None:
    """Nothing wakes the dispatcher here, so it looks twice a second."""
    outbox = InMemoryOutbox(SystemClock())
    with opened(tmp_path) as other, opened(tmp_path) as store, DelayedDelivery(store, outbox):
        assert store.poll_seconds <= 0.5
        time.sleep(1)
        other.store([message("a")])
        wait_for(lambda: outbox.sent)
