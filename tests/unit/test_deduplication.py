"""Telling copies of a message apart, and processing each message once."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import jmespath  # type: ignore[import-untyped]
import pytest

from sqsdelay.core.limits import MAX_RETENTION_SECONDS
from sqsdelay.errors import MalformedMessage, StoreUnavailable
from sqsdelay.receiving import deduplication
from sqsdelay.receiving.deduplication import IDEMPOTENCY_KEY, Copy, Deduplicator, message_id
from sqsdelay.stores.sqlite.sqlite_store import SqliteInbox
from sqsdelay.testing import ManualClock


def boto3_message(given: str | None) -> dict[str, Any]:
    attributes = {"sqsdelay.MessageId": {"DataType": "String", "StringValue": given}}
    return {"MessageId": "sqs-1", "Body": "x"} | (
        {"MessageAttributes": attributes} if given else {}
    )


def record(given: str | None) -> dict[str, Any]:
    attributes = {"sqsdelay.MessageId": {"dataType": "String", "stringValue": given}}
    return {"messageId": "sqs-1", "body": "x", "messageAttributes": attributes if given else {}}


@pytest.mark.parametrize("shape", [boto3_message, record])
def test_the_senders_id_goes_before_sqs_own(shape: Any) -> None:
    """Copies of a hand-over have different SQS ids; a direct message may have no other."""
    assert message_id(shape("order-7")) == "order-7"
    assert message_id(shape(None)) == "sqs-1"


@pytest.mark.parametrize("given", ["order-7", None])
def test_powertools_key_is_the_same_id(given: str | None) -> None:
    """The JMESPath expression finds in a record what `message_id` finds."""
    assert jmespath.search(IDEMPOTENCY_KEY, record(given)) == message_id(record(given))


def test_what_is_no_message_is_refused() -> None:
    """An id made up from nothing would take all such messages for one."""
    with pytest.raises(MalformedMessage) as raised:
        message_id({"body": "x"})
    assert str(raised.value) == (
        "a received message has a MessageId (boto3) or messageId (Lambda event); this has neither"
    )


class Inbox(SqliteInbox):
    """In memory; fails where it is told to."""

    def __init__(self) -> None:
        self.fails: set[str] = set()
        super().__init__(":memory:", endpoint="orders")
        self.set_up()

    def _run(self, query: str, **arguments: object) -> tuple[list[tuple[Any, ...]], int]:
        if query in self.fails:
            raise StoreUnavailable(f"{query}: no")
        return super()._run(query, **arguments)


@pytest.fixture
def inbox() -> Any:
    inbox = Inbox()
    yield inbox
    inbox.close()


def test_an_inbox_that_cannot_be_asked_keeps_the_effect_from_happening(inbox: Inbox) -> None:
    """Better later than twice."""
    inbox.fails = {"begin"}
    with pytest.raises(StoreUnavailable):
        Deduplicator(inbox, lease_seconds=60).process("a", lambda: 1 / 0)


def test_the_shortest_lease_is_one(inbox: Inbox) -> None:
    """Rounded up: a lease of nothing would let two receivers work on one message."""
    receiver = Deduplicator(inbox, lease_seconds=0.0001, clock=ManualClock())
    copies = []
    receiver.process("a", lambda: copies.append(receiver.process("a", lambda: None)))
    assert copies == [Copy.IN_PROGRESS]


def test_an_effect_that_is_not_remembered_is_told(inbox: Inbox) -> None:
    """The receiver must not delete the copy; after the lease it is processed again: at least once."""
    clock = ManualClock()
    receiver = Deduplicator(inbox, lease_seconds=60, clock=clock)
    inbox.fails = {"done"}
    with pytest.raises(StoreUnavailable):
        receiver.process("a", lambda: None)
    inbox.fails = set()
    clock.advance(59.999)
    assert receiver.process("a", lambda: None) is Copy.IN_PROGRESS
    clock.advance(0.001)
    assert receiver.process("a", lambda: None) is Copy.FIRST


def test_the_effects_own_error_is_the_one_raised(
    inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    """A claim that cannot be given up ends with its lease, and is logged."""
    inbox.fails = {"release"}
    receiver = Deduplicator(inbox, lease_seconds=deduplication._LONGEST_SECONDS)
    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        receiver.process("a", lambda: 1 / 0)
    assert caplog.messages == ["message a stays claimed until its lease ends: release: no"]
    inbox.fails = set()
    with pytest.raises(ZeroDivisionError):
        receiver.process("b", lambda: 1 / 0)
    assert receiver.process("b", lambda: None) is Copy.FIRST


def test_a_message_is_known_as_long_as_sqs_keeps_a_copy(inbox: Inbox) -> None:
    """Fourteen days, unless told otherwise."""
    clock = ManualClock()
    receiver = Deduplicator(inbox, lease_seconds=60, clock=clock)
    receiver.process("a", lambda: None)
    clock.advance(MAX_RETENTION_SECONDS - 0.001)
    assert receiver.process("a", lambda: None) is Copy.DUPLICATE
    clock.advance(0.001)
    assert receiver.process("a", lambda: None) is Copy.FIRST


def test_in_a_transaction_a_message_is_known_as_long(tmp_path: Path) -> None:
    """From the receiver's now on; what was rolled back is not known."""
    clock, path = ManualClock(), tmp_path / "inbox.db"
    inbox = SqliteInbox(str(path), endpoint="orders")
    inbox.set_up()
    receiver = Deduplicator(inbox, lease_seconds=60, remember_seconds=10, clock=clock)

    def first(message_id: str, *, commit: bool = True) -> bool:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            new = receiver.first(message_id, connection)
            connection.execute("COMMIT" if commit else "ROLLBACK")
            return new

    assert [first("a", commit=False), first("a"), first("a"), first("b")] == [
        True,
        True,
        False,
        True,
    ]
    clock.advance(9.999)
    assert (receiver.forget(), first("a")) == (0, False)
    clock.advance(0.001)
    assert (receiver.forget(), first("a")) == (2, True)
    inbox.close()


def test_old_entries_go_by_and_by(inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    """Receivers that run for months need no one to clean up; a failing clean-up harms nobody."""
    clock = ManualClock()
    receiver = Deduplicator(inbox, lease_seconds=60, remember_seconds=10, clock=clock)
    for n in range(99):
        receiver.process(f"old-{n}", lambda: None)
    clock.advance(10)
    receiver.process("hundredth", lambda: None)
    assert receiver.forget() == 0
    inbox.fails = {"forget"}
    with caplog.at_level(logging.WARNING):
        copies = [receiver.process(f"new-{n}", lambda: None) for n in range(100)]
    assert set(copies) == {Copy.FIRST}
    assert caplog.messages == ["old entries are not deleted now: forget: no"]


def test_all_old_entries_go_when_asked(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose time is over by the receiver's clock, part by part."""
    clock, left, asked = ManualClock(), [3, 2, 0], []

    def forget(now_ms: int, *, limit: int) -> int:
        asked.append((now_ms, limit))
        return left.pop(0)

    monkeypatch.setattr(inbox, "forget", forget)
    assert Deduplicator(inbox, lease_seconds=60, clock=clock).forget() == 5
    assert set(asked) == {(clock.now_ms(), deduplication._FORGET_AT_ONCE)}
