"""Rows that somebody wrote by hand into a SQLite store: messages, and what is none."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_DUE_MS, MAX_STORED_ID_CHARS
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching import ExactlyOnce
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import StoreError
from sqsdelay.ledger import events
from sqsdelay.ledger.events import from_json, to_json
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.sqs.timeouts import SqsTimeouts
from sqsdelay.stores.sql import read_queries
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing import InMemoryQueues, ManualClock
from sqsdelay.timeouts.manager import TimeoutManager, TimeoutSettings
from tests.messages import a_message

NOW_MS = ManualClock().now_ms()
INSERT = (
    'INSERT INTO "orders.delayed" (message_id, destination, due_ms, body, headers, failures) '
    "VALUES (?, ?, ?, ?, ?, ?)"
)

ODD_ROWS: dict[str, tuple[tuple[Any, ...], str]] = {
    "no-destination": (("", NOW_MS, b"x", "{}", 0), "destination '' is empty"),
    "binary-destination": ((b"\xff", NOW_MS, b"x", "{}", 0), "is empty; name a queue"),
    "negative": (("orders", -1, b"x", "{}", 0), "due_ms=-1 is outside 0"),
    "far-back": (("orders", -(2**63), b"x", "{}", 0), "is outside 0"),
    "half": (("orders", NOW_MS - 0.5, b"x", "{}", 0), "is outside 0"),
    "no-number": (("orders", "tomorrow", b"x", "{}", 0), "due_ms='tomorrow' is outside 0"),
    "minus-infinity": (("orders", float("-inf"), b"x", "{}", 0), "due_ms=-inf is outside"),
    "never": (("orders", 2**63 - 1, b"x", "{}", 0), "is outside 0"),
    "text": (("orders", NOW_MS, "no bytes", "{}", 0), "body is str; a store keeps bytes"),
    "number": (("orders", NOW_MS, 17, "{}", 0), "body is int; a store keeps bytes"),
    "binary-headers": (("orders", NOW_MS, b"x", b"\xff", 0), "headers in the store cannot be read"),
    "i" * 251: (("orders", NOW_MS, b"x", "{}", 0), "1 to 250 characters"),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """With every odd row, one of undecodable text, and two messages."""
    store = SqliteStore(tmp_path / "store.db", endpoint="orders", clock=ManualClock())
    store.set_up()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for message_id, (row, _) in ODD_ROWS.items():
            connection.execute(INSERT, [message_id, *row])
        connection.execute(
            'INSERT INTO "orders.delayed" (message_id, destination, due_ms, body, headers) '
            "VALUES ('no-utf-8', CAST(x'6fff' AS TEXT), ?, x'78', '{}')",
            [NOW_MS],
        )
    connection.close()
    store.store([message("early", NOW_MS - 1000), message("late", NOW_MS)])
    yield store
    store.close()


def message(message_id: str, due_ms: int) -> StoredMessage:
    return a_message(message_id, due_ms, body=b"ok")


def queues() -> InMemoryQueues:
    queues = InMemoryQueues(ManualClock())
    for name in ("orders", "orders-delay-error", "orders-timeouts", "orders-timeouts-dispatcher"):
        queues.create_queue(name)
    return queues


def reasons(queues: InMemoryQueues) -> dict[str, str]:
    found = {}
    for kept in queues._queues["orders-delay-error"].messages.values():
        about = json.loads(kept.message.attributes["sqsdelay.Error"]["StringValue"])
        found[about["messageId"]] = about["reason"]
    return found


def check_aside(store: SqliteStore, queues: InMemoryQueues) -> None:
    told = reasons(queues)
    assert set(told) == {*ODD_ROWS, "no-utf-8"}
    for message_id, (_, reason) in ODD_ROWS.items():
        if message_id != "binary-destination":
            assert reason in told[message_id], message_id
    assert len(queues._queues["orders"].messages) == 2
    assert (store.pending_count(), store.next_due_ms()) == (0, None)


def test_what_is_no_message_goes_to_the_error_queue(store: SqliteStore) -> None:
    """With its reason; the messages beside it are released in the same claims."""
    world = queues()
    outbox = SqsOutbox(world, Endpoint.parse("orders"))
    dispatcher = Dispatcher(store, outbox, clock=ManualClock())
    dispatcher.start()
    while dispatcher.dispatch().claimed:
        pass
    check_aside(store, world)


def test_a_timeout_manager_puts_them_aside_too(store: SqliteStore) -> None:
    """Before they are announced: an id that is none would come back as unreadable."""
    world = queues()
    transport = SqsTimeouts(world, Endpoint.parse("orders"))
    manager = TimeoutManager(
        store, transport, settings=TimeoutSettings(wait_seconds=0), clock=ManualClock()
    )
    for _ in range(5):
        manager.announce()
        manager.dispatch()
    check_aside(store, world)


def test_exactly_once_effects_never_see_them(store: SqliteStore) -> None:
    """``reject`` gets them with the reason, in the same transaction; ``deliver`` the messages only."""
    delivered: list[str] = []
    rejected: dict[str, str] = {}

    def deliver(transaction: Any, messages: Sequence[StoredMessage]) -> None:
        delivered.extend(each.message_id for each in messages)

    def reject(transaction: Any, message: StoredMessage, reason: str) -> None:
        rejected[message.message_id] = reason

    effects = ExactlyOnce(deliver=deliver, reject=reject)
    dispatcher = Dispatcher(store, effects, clock=ManualClock())
    dispatcher.start()
    while dispatcher.dispatch().claimed:
        pass
    # A destination that is no text SQS knows is nothing that an effect in the database depends on.
    assert delivered[0] == "early"
    assert set(delivered) <= {"early", "late", "no-utf-8", "binary-destination"}
    assert set(delivered) | set(rejected) == {*ODD_ROWS, "no-utf-8", "early", "late"}


def test_they_are_listed_and_found(store: SqliteStore) -> None:
    """What is due before 1970 too; what has no due time, or none that ever comes, has no place."""
    listed = [each.message_id for each in store.pending(100)]
    assert set(listed) == {*ODD_ROWS, "no-utf-8", "early", "late"} - {"no-number", "never"}
    found = store.find("text")
    assert found is not None
    assert (found.body, found.due_ms) == (b"no bytes", NOW_MS)
    assert "body is str" in (found.unreadable or "")


def test_an_id_that_is_no_text_is_told_and_left(
    store: SqliteStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can remove it by its id: the log names it, and the others go on."""
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(
            'INSERT INTO "orders.delayed" (message_id, destination, due_ms, body, headers) '
            "VALUES (x'ff', 'orders', 1, x'78', '{}')"
        )
    connection.close()
    with store.claim(100, due_by_ms=NOW_MS) as claim:
        assert {"early", "late"} <= {each.message_id for each in claim.messages}
    assert any("its message_id is b'\\xff' and not text" in each for each in caplog.messages)


def test_a_new_table_refuses_them(tmp_path: Path) -> None:
    """Whoever writes a row by hand hears of it from the database; a program that copies a message from
    another store in sqsdelay's terms."""
    store = SqliteStore(tmp_path / "new.db", endpoint="orders")
    store.set_up()
    with sqlite3.connect(tmp_path / "new.db") as connection:
        for message_id, (row, _) in ODD_ROWS.items():
            with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
                connection.execute(INSERT, [message_id, *row])
    connection.close()
    odd = a_message("a", -1, to="", body=b"", unreadable="odd")
    with pytest.raises(StoreError, match="CHECK constraint failed"):
        store.store([odd])
    store.close()


@pytest.mark.parametrize("file", ["sqlite/store.sql", "postgres/store.sql"])
def test_the_constraints_limits_are_the_codes(file: str) -> None:
    """Limits stand once in limits.py; a constraint can only repeat them."""
    created = "".join(read_queries(file).values())
    assert f"length(message_id) BETWEEN 1 AND {MAX_STORED_ID_CHARS}" in created
    assert f"due_ms BETWEEN 0 AND {MAX_DUE_MS}" in created


@pytest.mark.parametrize(
    ("due_ms", "told"), [(-1, None), (0, 0), (MAX_DUE_MS, MAX_DUE_MS), (MAX_DUE_MS + 1, None)]
)
def test_their_events_can_be_read_back(due_ms: int, told: int | None) -> None:
    """A ledger with such a row's rejection stays a ledger."""
    odd = a_message("", due_ms, to="", unreadable="odd")
    (event,) = events.rejected([(odd, "Unreadable: odd")], at_ms=NOW_MS)
    again = from_json(to_json(event))
    assert (again.endpoint, again.message_id, again.due_ms) == ("-", "-", told)
