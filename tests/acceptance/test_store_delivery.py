"""Delivery from a store as time passes: S3 with three levels of slots of seconds and two dispatchers; a
SQLite file inside an application and between processes."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from botocore.config import Config

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.message import new_message_id
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import DelayedDelivery, Dispatcher, DispatchSettings
from sqsdelay.stores import S3Store
from sqsdelay.stores.s3.layout import parse
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing import InMemoryOutbox
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.dispatcher_process import dispatching, message
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS, wait_for

MESSAGES = 3_000
FIRST_MS, SPREAD_MS = 10_000, 28_000
CANCELLED = 10


def test_thousands_through_all_levels(local_aws: LocalAws) -> None:
    """Each arrives once, none early, none that was cancelled; coarse slots were split on the way, and
    nothing stays in the bucket but decisions."""
    clock = SystemClock()
    bucket = f"wheel-{uuid.uuid4().hex[:8]}"
    client = local_aws.client("s3", config=Config(max_pool_connections=40))

    def opened() -> S3Store:
        slots = (24, 6, 2)
        store = S3Store(bucket, endpoint="orders", prefix="delays", client=client, slots=slots)
        store._turner.split_messages = 50
        return store

    with closing(opened()) as store, closing(opened()) as other:
        store.set_up()
        start_ms = clock.now_ms() + FIRST_MS
        sent = [_message(start_ms + SPREAD_MS * n // MESSAGES, n) for n in range(MESSAGES)]
        for start in range(6):
            assert all(store.store(sent[start::6]))
        cancelled = [m.message_id for m in sent[-400 :: 400 // CANCELLED]]
        assert store.cancel(cancelled) == [True] * CANCELLED
        levels = _levels(client, bucket)
        outbox = InMemoryOutbox(clock)
        early: list[str] = []

        def note(message: StoredMessage) -> None:
            if message.due_ms > clock.now_ms():
                early.append(message.message_id)

        outbox.fail = note
        settings = DispatchSettings(release_ahead_seconds=0, batch_size=300, poll_seconds=0.5)
        both = (Dispatcher(each, outbox, settings=settings) for each in (store, other))
        deadline = time.monotonic() + PATIENCE_SECONDS
        with dispatching(*both):
            while len(outbox.sent) < MESSAGES - CANCELLED and time.monotonic() < deadline:
                time.sleep(0.5)
                levels |= _levels(client, bucket)
        arrived = Counter(each.message_id for each in outbox.sent)
        assert arrived == Counter({m.message_id for m in sent} - set(cancelled))
        assert early == []
        assert store.pending_count() + len(store.pending(10)) == 0
        assert levels == {24, 6, 2}


def _message(due_ms: int, n: int) -> StoredMessage:
    return a_message(new_message_id(due_ms), due_ms, body=b"%d" % n)


def _levels(client: object, bucket: str) -> set[int]:
    """The lengths of slots that hold anything."""
    found: set[int] = set()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)  # type: ignore[attr-defined]
    for page in pages:
        for each in page.get("Contents", ()):
            named = parse(each["Key"].removeprefix("delays/orders/v1/"))
            if named is not None:
                found.add(named[0].slot.seconds)
    return found


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
