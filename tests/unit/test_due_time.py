"""When a message is due, from what its sender said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sqsdelay.core.delay import DueTime, due_time
from sqsdelay.core.message import Message
from sqsdelay.core.stored_message import to_store
from sqsdelay.errors import InvalidDelay, InvalidMessage
from sqsdelay.limits import MAX_DUE_MS


@pytest.mark.parametrize(
    ("due", "given", "absolute", "due_ms"),
    [
        (due_time(None, None), False, False, 7_000),
        (due_time(0, None), True, False, 7_000),
        (due_time(timedelta(seconds=1.5), None), True, False, 8_500),
        (due_time(None, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)), True, True, 2_000),
        (due_time(None, datetime(1960, 1, 1, tzinfo=UTC)), True, True, 0),
    ],
)
def test_a_delay_counts_from_now_and_a_due_time_from_nothing(
    due: DueTime, given: bool, absolute: bool, due_ms: int
) -> None:
    assert (due.given, due.absolute, due.due_ms(7_000)) == (given, absolute, due_ms)


def test_no_due_time_lies_after_the_last_year() -> None:
    assert DueTime(delay_ms=1).due_ms(MAX_DUE_MS - 1) == MAX_DUE_MS
    with pytest.raises(InvalidDelay, match="after the limit"):
        DueTime(delay_ms=1).due_ms(MAX_DUE_MS)
    with pytest.raises(InvalidDelay, match="after the limit"):
        DueTime(at_ms=MAX_DUE_MS + 1).due_ms(0)


def test_a_store_takes_what_a_sender_takes() -> None:
    """Both build from one checked message: what SQS would refuse when it is due is refused now."""
    with pytest.raises(InvalidMessage, match="trace_header=''"):
        to_store(Message("x", trace_header=""), "orders", now_ms=0)
