"""The least and the most of each setting; and circuit breakers, with the seed's meaning."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from sqsdelay import AsyncDelaySender, DelayConsumer, DelaySender
from sqsdelay.core.limits import (
    DELAY_QUEUE_VISIBILITY_SECONDS,
    MAX_DUE_MS,
    MAX_RECEIVE_WAIT_SECONDS,
)
from sqsdelay.dispatching.dispatcher import (
    MAX_POLL_SECONDS,
    CircuitBreaker,
    DispatchSettings,
    FailureRateBreaker,
)
from sqsdelay.errors import ConfigurationError, CriticalError, SendFailed
from sqsdelay.receiving.deduplication import Deduplicator
from sqsdelay.relaying.outcomes import RelaySettings
from sqsdelay.s3 import Bucket
from sqsdelay.sending.router import SenderSettings
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


WORKER = partial(DelayConsumer, "orders")
DEDUPLICATOR = partial(Deduplicator, Mock(), remember_seconds=60, lease_seconds=60)
HURRIED = partial(SenderSettings, deadline_seconds=1, begin_within_seconds=0.5)
ASYNC_SENDER = partial(AsyncDelaySender, Mock())
NO_DURATION = (0, -1, math.nan, math.inf)
LONGEST = f"more than 0, at most {MAX_DUE_MS // 1000}"
FARTHEST = "900 (what plain SQS delays) to 253402300799 (the year 9999)"


@pytest.mark.parametrize(
    ("settings", "name", "values", "instead"),
    [
        (DispatchSettings, "number_of_retries", [-1], "0 or more"),
        (DispatchSettings, "batch_size", [0], "1 or more"),
        (DispatchSettings, "poll_seconds", [0], f"more than 0, at most {MAX_POLL_SECONDS}"),
        (DispatchSettings, "store_breaker_seconds", [0], "more than 0"),
        (DispatchSettings, "fetch_breaker_seconds", [-1], "more than 0"),
        (DispatchSettings, "dispatch_breaker_seconds", [math.nan], "more than 0"),
        (DispatchSettings, "maximum_recovery_failures_per_second", [0], "1 or more"),
        (WORKER, "receivers", [0], "1 or more"),
        (WORKER, "wait_seconds", [MAX_RECEIVE_WAIT_SECONDS + 1], "0 to 20"),
        (WORKER, "visibility_seconds", [0, 181], "1 to 180: a copy that comes back later"),
        (TimeoutSettings, "outage_seconds", [0], "more than 0"),
        (TimeoutSettings, "announce_again_seconds", [-1], "more than 0"),
        (TimeoutSettings, "batch_size", [0], "1 or more"),
        (TimeoutSettings, "poll_seconds", [0], "more than 0"),
        (TimeoutSettings, "wait_seconds", [MAX_RECEIVE_WAIT_SECONDS + 1], "0 to 20"),
        (TimeoutSettings, "number_of_retries", [-1], "0 or more"),
        (SenderSettings, "hop_seconds", [0, 901], "1 to 900, the delay queue's"),
        (SenderSettings, "concurrency", [0], "1 or more"),
        (SenderSettings, "max_delay_seconds", [899, -1, MAX_DUE_MS], FARTHEST),
        (SenderSettings, "linger_ms", [-1, 1001, math.nan, math.inf], "0 to 1000, where 0 is off"),
        (HURRIED, "linger_ms", [500, 1000], "less than 500 with deadline_seconds=1, or a send"),
        (DelaySender, "deadline_seconds", [0.5, 61, "10", None], "1 to 60"),
        (ASYNC_SENDER, "linger_ms", [-1, math.nan], "0 to 1000, where 0 is off"),
        (ASYNC_SENDER, "max_waiting", [0, -1], "1 or more"),
        (RelaySettings, "hop_seconds", [0, 901], "1 to 900, the delay queue's"),
        (RelaySettings, "max_receives", [0], "1 or more"),
        (RelaySettings, "max_delay_seconds", [899, -1, MAX_DUE_MS], FARTHEST),
        (DEDUPLICATOR, "lease_seconds", NO_DURATION, LONGEST),
        (DEDUPLICATOR, "remember_seconds", NO_DURATION, LONGEST),
        (partial(Bucket, "bodies", Mock()), "above_bytes", [-1], "0 to 1048576, the limit of SQS"),
    ],
)
def test_what_is_out_of_range_is_refused(
    settings: Any, name: str, values: Sequence[Any], instead: str
) -> None:
    """At once; value, limit, remedy."""
    for value in values:
        with pytest.raises(ConfigurationError, match=re.escape(f"{name}={value!r}; use {instead}")):
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
