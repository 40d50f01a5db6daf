"""Faults by chance that can be had again: a plan's seed decides them all."""

from __future__ import annotations

from tests.services.fault_plan import Fault, FaultPlan

CHANCES = {Fault.LATENCY: 0.1, Fault.TRUNCATED: 0.2}


def drawn(seed: str) -> list[tuple[Fault | None, float]]:
    plan = FaultPlan(seed=seed, chances=CHANCES)
    return [(fault, random.random()) for fault, random in map(plan.draw, range(2000))]


def test_the_same_seed_is_the_same_plan() -> None:
    """Request by request, details included; another seed is another plan."""
    assert drawn("a") == drawn("a")
    assert drawn("a") != drawn("b")


def test_faults_come_as_often_as_their_chance() -> None:
    """And no others."""
    faults = [fault for fault, _ in drawn("a")]
    assert set(faults) == {None, *CHANCES}
    for fault, chance in CHANCES.items():
        assert abs(faults.count(fault) / len(faults) - chance) < 0.03
