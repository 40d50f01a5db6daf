"""The broker's clock, learned from its answers: never ahead, whatever the local clock does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsdelay.core.delay import MAX_DRIFT_RATE, PROOF_LIFETIME_SECONDS, BrokerClock, SystemClock
from sqsdelay.testing import ManualClock

MINUTE = 60_000


class Drifting(ManualClock):
    """A monotonic clock that runs fast, or slow, by ``rate``."""

    rate = 0.0

    def monotonic(self) -> float:
        return super().monotonic() * (1 + self.rate)


@pytest.mark.parametrize("rate", [-500e-6, 0, 499e-6])
def test_a_monotonic_clock_that_runs_fast_puts_it_ahead_of_nothing(rate: float) -> None:
    """500 ppm, as far as NTP steers: in five minutes 150 ms, which a message would be early by. The latest
    allows for one that runs slow."""
    local = Drifting(1_000_000)
    local.rate = rate
    clock = BrokerClock(local)
    clock.observe(local.true_ms)
    clock.observe(local.true_ms - 999, asked_at=local.monotonic())
    for _ in range(29):
        local.advance(10)
        assert local.true_ms - 300 <= clock.now_ms() <= local.true_ms
        assert local.true_ms <= clock.latest_ms() <= local.true_ms + 300


def test_without_proof_it_is_the_local_clock_and_says_so() -> None:
    """Callers can tell a learned clock from a guess. How long ago a stamp was made, nobody knows."""
    clock = BrokerClock(ManualClock(1_000_000))
    assert clock.latest_ms() == clock.now_ms() == 1_000_000
    assert not clock.synchronised
    clock.observe(999_995)
    assert clock.latest_ms() == clock.now_ms() == 999_995


@given(
    st.integers(-10 * MINUTE, 10 * MINUTE),
    st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 2000)), min_size=1, max_size=80),
)
def test_a_wrong_local_clock_is_corrected_and_never_ahead(
    error_ms: int, answers: list[tuple[int, int]]
) -> None:
    """Ten minutes off either way, the estimate lags by the fastest recent answer's travel at most."""
    local = ManualClock(1_000_000_000, error_ms=error_ms)
    clock = BrokerClock(local)
    proofs = []
    for pause_ms, travel_ms in answers:
        local.advance(pause_ms / 1000)
        proofs.append((local.true_ms, travel_ms))
        local.advance(travel_ms / 1000)
        clock.observe(local.true_ms - travel_ms)
        assert clock.synchronised
        lags = [ms + (local.true_ms - proof) * MAX_DRIFT_RATE for proof, ms in proofs[-64:]]
        assert local.true_ms - min(lags) - 1 <= clock.now_ms() <= local.true_ms


def test_a_proof_can_be_older_than_its_telling() -> None:
    """Processing time between receipt and observation does not count as travel."""
    local = ManualClock(1_000_000, error_ms=-5000)
    clock = BrokerClock(local)
    received_at, proof = local.monotonic(), local.true_ms
    local.advance(7)
    clock.observe(proof, at=received_at)
    assert clock.now_ms() == local.true_ms - 7000 * MAX_DRIFT_RATE - 0.5


@pytest.mark.parametrize("step_ms", [-450, 450])
def test_a_small_step_of_the_wall_clock_plays_no_part(step_ms: int) -> None:
    """NTP may step by half a second at any time; an estimate that followed would be early by it."""
    local = ManualClock(1_000_000)
    clock = BrokerClock(local)
    clock.observe(local.true_ms)
    local.error_ms = step_ms
    local.advance(1)
    assert local.true_ms - 1 <= clock.now_ms() <= local.true_ms


@pytest.mark.parametrize("step_ms", [-501, 10 * MINUTE])
def test_after_a_large_step_or_a_freeze_the_broker_is_asked_again(step_ms: int) -> None:
    """If the monotonic clock stood still in a frozen process, its estimate would be late by hours."""
    local = ManualClock(1_000_000)
    clock = BrokerClock(local)
    clock.observe(local.true_ms)
    local.error_ms = step_ms
    assert not clock.synchronised
    clock.observe(local.true_ms)
    assert clock.now_ms() == local.true_ms


def test_an_old_proof_is_forgotten_and_a_younger_one_serves() -> None:
    """Clocks drift; a proof holds for five minutes, then the best of the younger ones counts."""
    local = ManualClock(1_000_000)
    clock = BrokerClock(local)
    clock.observe(local.true_ms)
    local.advance(PROOF_LIFETIME_SECONDS - 1)
    clock.observe(local.true_ms - 300)
    clock.observe(local.true_ms - 400)
    local.advance(2)
    assert clock.now_ms() == local.true_ms - 301
    local.advance(PROOF_LIFETIME_SECONDS)
    assert not clock.synchronised


def test_the_system_clock_tells_epoch_milliseconds() -> None:
    """Wall time is in milliseconds since 1970, monotonic time in seconds."""
    clock = SystemClock()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.monotonic() <= clock.monotonic()


@given(
    st.integers(-10 * MINUTE, 10 * MINUTE),
    st.lists(
        st.tuples(st.integers(0, 1500), st.integers(0, 2000), st.integers(0, 2000)),
        min_size=1,
        max_size=80,
    ),
)
def test_the_latest_is_never_behind(error_ms: int, answers: list[tuple[int, int, int]]) -> None:
    """From dates of whole seconds the broker's time is known to a second and the quickest answer."""
    local = ManualClock(1_000_000_123, error_ms=error_ms)
    clock = BrokerClock(local)
    assert clock.latest_ms() == clock.now_ms()
    for pause_ms, there_ms, back_ms in answers:
        local.advance(pause_ms / 1000)
        asked_at = local.monotonic()
        local.advance(there_ms / 1000)
        date = local.true_ms // 1000 * 1000
        local.advance(back_ms / 1000)
        clock.observe(date, asked_at=asked_at)
        assert clock.now_ms() <= local.true_ms <= clock.latest_ms()
        assert clock.latest_ms() <= local.true_ms + 1003 + there_ms + back_ms


@pytest.mark.parametrize("behind_ms", [900, 2_100, 180_000])
def test_dates_behind_are_told_of(behind_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    """As by a proxy that dates answers anew: messages are late. Said once. SQS's own machines may differ."""
    local = ManualClock(1_000_000_000)
    clock = BrokerClock(local)
    for _ in range(200):
        clock.observe(local.true_ms - behind_ms, asked_at=local.monotonic())
        clock.observe(local.true_ms)
        local.advance(1)
    assert (clock.now_ms() < local.true_ms - 1000) is (behind_ms > 1000)
    told = f"answers tell times {behind_ms / 1000 - 1:.1f} s apart; messages may be late"
    assert [line.split(":")[0] for line in caplog.messages] == [told] * (behind_ms > 2000)


@pytest.mark.parametrize("wrong_ms", [-1_100, -60_000, -600_000, 2_100, 600_000])
def test_one_wrong_date_makes_nothing_early(wrong_ms: int) -> None:
    """One machine's, or a proxy's: what is handed over would be early, or a delay that waits in a store."""
    local = ManualClock(1_000_000_000)
    clock = BrokerClock(local)
    for n in range(400):
        local.advance(1)
        clock.observe(local.true_ms + (n == 1 and wrong_ms), asked_at=local.monotonic())
        assert clock.now_ms() <= local.true_ms <= clock.latest_ms()
        if not 0 < n < 303:  # Before it, and once it is forgotten.
            assert clock.latest_ms() - 1001 <= local.true_ms <= clock.now_ms() + 1000


@pytest.mark.parametrize("idle_seconds", [301, 3_600, 43_200])
@pytest.mark.parametrize("frozen", [False, True])
def test_after_a_long_pause_the_last_date_still_bounds_a_stamp(
    idle_seconds: int, frozen: bool
) -> None:
    """A function's first batch had nothing to check a stamp by. The monotonic clock may have stood still."""
    local = Drifting(1_000_000_000)
    clock = BrokerClock(local)
    clock.observe(local.true_ms, asked_at=local.monotonic())
    local.advance(idle_seconds)
    local.rate = -idle_seconds / local.true_ms * 1000 * frozen
    clock.observe(local.true_ms + 600_000)
    assert not clock.synchronised
    clock.observe(local.true_ms - 1)
    assert clock.now_ms() == local.true_ms - 1


@pytest.mark.parametrize("stamp_first", [True, False])
@pytest.mark.parametrize(("ahead_ms", "learned"), [(999, True), (2_001, False), (600_000, False)])
def test_a_stamp_far_ahead_of_the_answers_dates_proves_nothing(
    stamp_first: bool, ahead_ms: int, learned: bool
) -> None:
    """It would make messages early for five minutes. Of SQS's machines one may be a second ahead, and a date
    tells whole seconds."""
    local = ManualClock(1_000_000_000)
    clock = BrokerClock(local)
    clock.observe(local.true_ms - 300)
    if stamp_first:
        clock.observe(local.true_ms + ahead_ms)
    clock.observe(local.true_ms, asked_at=local.monotonic())
    if not stamp_first:
        # As many as one function is given at once leave the dates that bound them.
        for stamp_ms in [local.true_ms] * 99 + [local.true_ms + ahead_ms]:
            clock.observe(stamp_ms)
    assert clock.now_ms() == local.true_ms + learned * ahead_ms
    local.advance(60)
    assert local.true_ms - 30 <= clock.now_ms() - learned * ahead_ms <= local.true_ms
