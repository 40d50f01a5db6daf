"""Telling copies of a message apart, and processing each message once."""

from __future__ import annotations

import logging
from typing import Any

import jmespath  # type: ignore[import-untyped]
import pytest

from sqsdelay.errors import ConfigurationError, MalformedMessage, StoreUnavailable
from sqsdelay.limits import MAX_RETENTION_SECONDS
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
    with pytest.raises(MalformedMessage, match="this has neither"):
        message_id({"body": "x"})


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["lease_seconds", "remember_seconds"])
def test_durations_are_checked(inbox: Any, name: str, seconds: float) -> None:
    """Value and remedy are said."""
    settings: dict[str, Any] = {"lease_seconds": 60.0, name: seconds}
    with pytest.raises(ConfigurationError, match=f"{name}=.*use more than 0"):
        Deduplicator(inbox, **settings)


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
    assert receiver.process("a", lambda: None) is Copy.IN_PROGRESS
    clock.advance(60)
    assert receiver.process("a", lambda: None) is Copy.FIRST


def test_the_effects_own_error_is_the_one_raised(
    inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    """A claim that cannot be given up ends with its lease, and is logged."""
    inbox.fails = {"release"}
    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        Deduplicator(inbox, lease_seconds=60).process("a", lambda: 1 / 0)
    assert "message a stays claimed until its lease ends: release: no" in caplog.text


def test_a_message_is_known_as_long_as_sqs_keeps_a_copy(inbox: Inbox) -> None:
    """Fourteen days, unless told otherwise."""
    clock = ManualClock()
    receiver = Deduplicator(inbox, lease_seconds=60, clock=clock)
    receiver.process("a", lambda: None)
    clock.advance(MAX_RETENTION_SECONDS - 1)
    assert receiver.process("a", lambda: None) is Copy.DUPLICATE


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
    assert "old entries are not deleted now" in caplog.text
