"""Circuit breakers, with the seed's meaning."""

from __future__ import annotations

import pytest

from sqsdelay.dispatching.dispatcher import CircuitBreaker, FailureRateBreaker
from sqsdelay.errors import CriticalError
from sqsdelay.testing import ManualClock


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
