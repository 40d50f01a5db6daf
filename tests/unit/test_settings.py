"""The least and the most of each setting; and circuit breakers, with the seed's meaning."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from sqsdelay import DelayConsumer
from sqsdelay.core.limits import DELAY_QUEUE_VISIBILITY_SECONDS, MAX_RECEIVE_WAIT_SECONDS
from sqsdelay.dispatching.dispatcher import (
    MAX_POLL_SECONDS,
    CircuitBreaker,
    DispatchSettings,
    FailureRateBreaker,
)
from sqsdelay.errors import ConfigurationError, CriticalError, SendFailed
from sqsdelay.testing import ManualClock
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


def test_triggers_when_failures_last(clock: ManualClock) -> None:
    """The first failure arms; 30 seconds of failures trigger, not a failure less."""
    breaker = CircuitBreaker("fetch", 30, clock)
    breaker.failed(OSError("down"))
    clock.advance(29.999)
    breaker.failed(OSError("down"))
    clock.advance(0.001)
    last = OSError("still down")
    told = "fetch circuit breaker: failing for 30 s (limit 30 s), last with: still down"
    with pytest.raises(CriticalError) as critical:
        breaker.failed(last)
    assert (str(critical.value), critical.value.__cause__) == (told, last)


def test_a_success_disarms(clock: ManualClock) -> None:
    """Failures with a success between them are disturbances, not an outage."""
    breaker = CircuitBreaker("fetch", 30, clock)
    breaker.failed(OSError())
    clock.advance(29)
    breaker.succeeded()
    clock.advance(29)
    breaker.failed(OSError())
    clock.advance(29)
    breaker.failed(OSError())


def test_triggered_it_is_armed_anew(clock: ManualClock) -> None:
    """A host that carries on is told again after another such time, not at every failure."""
    told: list[CriticalError] = []
    breaker = CircuitBreaker("fetch", 30, clock, told.append)
    for seconds, times in ((0, 0), (30, 1), (1, 1), (29, 2)):
        clock.advance(seconds)
        breaker.failed(OSError())
        assert len(told) == times


def test_a_wall_clock_that_is_set_plays_no_part(clock: ManualClock) -> None:
    """Durations are monotonic."""
    breaker = CircuitBreaker("fetch", 30, clock)
    breaker.failed(OSError())
    clock.error_ms = 3_600_000
    breaker.failed(OSError())


def test_rate_triggers_above_the_limit_within_a_second(clock: ManualClock) -> None:
    """Two failures in a second are too many for 1 a second, two in two are not. Then it counts anew."""
    breaker, lost = FailureRateBreaker("recovery", 1, clock), OSError("lost")
    breaker.failed(OSError())
    clock.advance(1)
    assert not breaker.armed
    breaker.failed(OSError())
    clock.advance(0.5)
    assert breaker.armed
    with pytest.raises(CriticalError, match=r"2 failures in a second \(limit 1\)") as critical:
        breaker.failed(lost)
    assert critical.value.__cause__ is lost
    breaker.failed(OSError())
