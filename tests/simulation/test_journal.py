"""Which copy a party sent on, and why twice: what a duplicate's cause is told by."""

from __future__ import annotations

from dataclasses import replace

from sqsdelay.core.outgoing import requeued
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage, from_boto3
from tests.simulation.journal import Asked, Journal
from tests.simulation.tally import Cause, cause_of, forks

DELAY_QUEUE = "orders-delay.fifo"
BODY = '{"key": "m-1"}'


def received(copy_id: str, *, deduplication_id: str) -> ReceivedMessage:
    raw = {
        "MessageId": copy_id,
        "ReceiptHandle": copy_id,
        "Body": BODY,
        "Attributes": {
            "SentTimestamp": "1700000000000",
            "MessageGroupId": "m-1",
            "MessageDeduplicationId": deduplication_id,
        },
    }
    return from_boto3(raw, received_at=0)


def asked(copy: ReceivedMessage, made: str) -> Asked:
    """The copy's requeue, as the relay makes it."""
    entry = requeued(copy, DelayedMessage("m-1", due_ms=1_700_009_000_000), 9000)
    return Asked(
        body=entry.body, deduplication_id=entry.deduplication_id, timer_seconds=None, made=made
    )


def test_a_requeue_tells_which_copy_it_is_of() -> None:
    """Though the party has received another copy of that message since."""
    journal = Journal()
    first = received("a", deduplication_id=f"send.{64 * '0'}")
    again = asked(first, "b")
    second = received("b", deduplication_id=again.deduplication_id or "")
    for copy in (first, second):
        journal.received("worker", DELAY_QUEUE, [copy], at_ms=1)
    journal.sent("worker", DELAY_QUEUE, [again], at_ms=2, answered=True)
    journal.sent("worker", DELAY_QUEUE, [asked(second, "c")], at_ms=3, answered=True)
    sends = journal.sends("m-1", DELAY_QUEUE)
    assert [(step.copy, step.made) for step in sends] == [("a", "b"), ("b", "c")]
    assert forks("m-1", journal) == []


def test_a_retry_may_be_served_before_what_it_repeats() -> None:
    """The first answer was waited for in vain; a second send after an answer is another matter."""
    journal = Journal()
    send = Asked(body=BODY, deduplication_id=None, timer_seconds=0, made="retry")
    late = replace(send, made="late")
    journal.sent("sender", "orders", [send], at_ms=5, asked_ms=4, answered=True)
    journal.sent("sender", "orders", [late], at_ms=6, asked_ms=1, answered=False)
    journal.sent("sender", "orders", [replace(send, made="third")], at_ms=8, answered=True)
    (pair, *_) = forks("m-1", journal)
    assert cause_of(*pair, journal) is Cause.ANSWER_LOST
    first, _, third = journal.sends("m-1", "orders")
    assert cause_of(first, third, journal) is None
