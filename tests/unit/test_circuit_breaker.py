"""Circuit breakers, with the seed's meaning."""

from __future__ import annotations

import pytest

from sqsdelay.dispatching.settlement import CircuitBreaker, FailureRateBreaker
from sqsdelay.errors import ConfigurationError, CriticalError
from sqsdelay.testing import ManualClock


def test_triggers_when_failures_last(clock: ManualClock) -> None:
    """The first failure arms; 30 seconds of failures trigger, not a failure less."""
    breaker = CircuitBreaker("fetch", 30, clock)
    breaker.failed(OSError("down"))
    clock.advance(29.999)
    breaker.failed(OSError("down"))
    clock.advance(0.001)
    with pytest.raises(CriticalError) as critical:
        breaker.failed(OSError("still down"))
    assert str(critical.value) == (
        "fetch circuit breaker: failing for 30 s (limit 30 s), last with: still down"
    )


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
    """Two failures in a second are too many for 1 a second; two in two seconds are not."""
    breaker = FailureRateBreaker("recovery", 1, clock)
    breaker.failed(OSError())
    clock.advance(1)
    breaker.failed(OSError())
    clock.advance(0.5)
    with pytest.raises(CriticalError, match=r"2 failures in a second \(limit 1\)"):
        breaker.failed(OSError("lost"))


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_duration_that_is_none_is_refused(seconds: float) -> None:
    """A breaker of 0 seconds would trigger at the first hiccup."""
    with pytest.raises(ConfigurationError, match="use more than 0"):
        CircuitBreaker("store", seconds, ManualClock())
    with pytest.raises(ConfigurationError, match="use 1 or more"):
        FailureRateBreaker("recovery", 0, ManualClock())


def test_what_triggered_is_the_critical_errors_cause(clock: ManualClock) -> None:
    """Its own traceback says where the last failure came from."""
    last = OSError("last")
    for breaker, seconds in (
        (CircuitBreaker("fetch", 30, clock), 30),
        (FailureRateBreaker("recovery", 1, clock), 0.5),
    ):
        breaker.failed(OSError("first"))
        clock.advance(seconds)
        with pytest.raises(CriticalError) as critical:
            breaker.failed(last)
        assert critical.value.__cause__ is last
