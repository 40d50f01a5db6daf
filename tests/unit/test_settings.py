"""The least and the most of each setting."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from sqsdelay import DelayConsumer
from sqsdelay.core.limits import DELAY_QUEUE_VISIBILITY_SECONDS, MAX_RECEIVE_WAIT_SECONDS
from sqsdelay.dispatching.dispatcher import MAX_POLL_SECONDS, DispatchSettings
from sqsdelay.errors import ConfigurationError, SendFailed
from sqsdelay.timeouts.manager import TimeoutSettings


@pytest.mark.parametrize("poll_seconds", [0.001, 1, MAX_POLL_SECONDS])
def test_a_dispatchers_sleep(poll_seconds: float) -> None:
    """Any but none, up to an hour."""
    assert DispatchSettings(poll_seconds=poll_seconds).poll_seconds == poll_seconds
    with pytest.raises(ConfigurationError, match=f"use more than 0, at most {MAX_POLL_SECONDS}"):
        DispatchSettings(poll_seconds=MAX_POLL_SECONDS + poll_seconds)


@pytest.mark.parametrize("wait_seconds", [0, MAX_RECEIVE_WAIT_SECONDS])
def test_a_receivers_long_poll(wait_seconds: int) -> None:
    """As SQS has it. A worker's copies are hidden for 180 s at most: later they would not deduplicate."""
    assert TimeoutSettings(wait_seconds=wait_seconds).wait_seconds == wait_seconds
    for hidden in (1, DELAY_QUEUE_VISIBILITY_SECONDS):
        DelayConsumer("orders", wait_seconds=wait_seconds, visibility_seconds=hidden)


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        (DispatchSettings, "number_of_retries", -1),
        (DispatchSettings, "batch_size", 0),
        (DispatchSettings, "poll_seconds", 0),
        (DispatchSettings, "store_breaker_seconds", 0),
        (DispatchSettings, "fetch_breaker_seconds", -1),
        (DispatchSettings, "dispatch_breaker_seconds", float("nan")),
        (DispatchSettings, "maximum_recovery_failures_per_second", 0),
        (partial(DelayConsumer, "orders"), "receivers", 0),
        (partial(DelayConsumer, "orders"), "wait_seconds", MAX_RECEIVE_WAIT_SECONDS + 1),
        (partial(DelayConsumer, "orders"), "visibility_seconds", 0),
        (partial(DelayConsumer, "orders"), "visibility_seconds", 181),
        (TimeoutSettings, "outage_seconds", 0),
        (TimeoutSettings, "announce_again_seconds", -1),
        (TimeoutSettings, "batch_size", 0),
        (TimeoutSettings, "poll_seconds", 0),
        (TimeoutSettings, "wait_seconds", MAX_RECEIVE_WAIT_SECONDS + 1),
        (TimeoutSettings, "number_of_retries", -1),
    ],
)
def test_what_is_out_of_range_is_refused(settings: Any, name: str, value: float) -> None:
    """Value, limit, remedy."""
    with pytest.raises(ConfigurationError, match=f"{name}={value}; use"):
        settings(**{name: value})


@pytest.mark.parametrize("transient", [True, False])
def test_a_refusal_tells_whether_to_try_again(transient: bool) -> None:
    """And by what code."""
    error = SendFailed("refused", code="Throttled", transient=transient)
    assert (str(error), error.code, error.transient) == ("refused", "Throttled", transient)
