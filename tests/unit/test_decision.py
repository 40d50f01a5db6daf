"""The decision at a hop, at its edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsdelay.core.delay import (
    Decision,
    HandOver,
    Requeue,
    check_hop,
    checked_max_delay,
    decide,
    too_far,
)
from sqsdelay.errors import ConfigurationError
from sqsdelay.limits import MAX_DUE_MS

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("remaining_ms", "decision"),
    [
        (-1, HandOver(0)),
        (0, HandOver(0)),
        (1, HandOver(1)),
        (899_001, HandOver(900)),
        (900_000, HandOver(900)),
        (900_001, Requeue(901)),
        (901_000, Requeue(901)),
        (31_536_000_000, Requeue(31_536_000)),
    ],
)
def test_edges_of_the_message_timer(remaining_ms: int, decision: Decision) -> None:
    """Up to 900 s, rounded up, a message timer holds it; a millisecond more takes another hop."""
    assert decide(NOW + remaining_ms, NOW, hop_seconds=900) == decision


@given(
    st.integers(0, 253_402_300_799_000), st.integers(0, 253_402_300_799_000), st.integers(1, 900)
)
def test_a_hand_over_is_never_early_nor_a_second_late(due: int, now: int, hop: int) -> None:
    """The message timer ends at or after due, by less than a second if due has not passed."""
    decision = decide(due, now, hop_seconds=hop)
    if isinstance(decision, HandOver):
        assert 0 <= decision.delay_seconds <= hop
        shown = now + decision.delay_seconds * 1000
        assert shown >= due
        assert shown - max(due, now) < 1000
    else:
        assert isinstance(decision, Requeue)
        assert due - now > hop * 1000


@pytest.mark.parametrize("hop_seconds", [1, 900])
def test_the_shortest_and_the_longest_hop(hop_seconds: int) -> None:
    """Both are a delay queue's."""
    check_hop(hop_seconds)


@pytest.mark.parametrize("seconds", [900, 901, 3600, MAX_DUE_MS // 1000])
def test_the_farthest_delay_of_an_endpoint(seconds: int) -> None:
    """From what plain SQS delays to the year 9999, both included; to the second, rounded up."""
    assert checked_max_delay(seconds) == seconds
    assert too_far(NOW + seconds * 1000, NOW, seconds) is None
    assert f"due in {seconds + 1} s" in str(too_far(NOW + seconds * 1000 + 1, NOW, seconds))


@pytest.mark.parametrize("seconds", [899, MAX_DUE_MS // 1000 + 1, "3600", 3600.0, None, True])
def test_no_farthest_delay(seconds: int) -> None:
    """Below, beyond, and what a settings file may hold."""
    with pytest.raises(ConfigurationError, match=f"max_delay_seconds={seconds!r}; use 900 "):
        checked_max_delay(seconds)
