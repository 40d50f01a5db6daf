"""The least and the most of each setting."""

from __future__ import annotations

import pytest

from sqsdelay.dispatching.dispatcher import MAX_POLL_SECONDS, DispatchSettings
from sqsdelay.errors import ConfigurationError, SendFailed
from sqsdelay.limits import MAX_RECEIVE_WAIT_SECONDS
from sqsdelay.timeouts.settings import TimeoutSettings


@pytest.mark.parametrize("poll_seconds", [0.001, 1, MAX_POLL_SECONDS])
def test_a_dispatchers_sleep(poll_seconds: float) -> None:
    """Any but none, up to an hour."""
    assert DispatchSettings(poll_seconds=poll_seconds).poll_seconds == poll_seconds
    with pytest.raises(ConfigurationError, match=f"use more than 0, at most {MAX_POLL_SECONDS}"):
        DispatchSettings(poll_seconds=MAX_POLL_SECONDS + poll_seconds)


@pytest.mark.parametrize("wait_seconds", [0, MAX_RECEIVE_WAIT_SECONDS])
def test_a_receivers_long_poll(wait_seconds: int) -> None:
    """As SQS has it."""
    assert TimeoutSettings(wait_seconds=wait_seconds).wait_seconds == wait_seconds


@pytest.mark.parametrize("transient", [True, False])
def test_a_refusal_tells_whether_to_try_again(transient: bool) -> None:
    """And by what code."""
    error = SendFailed("refused", code="Throttled", transient=transient)
    assert (str(error), error.code, error.transient) == ("refused", "Throttled", transient)
