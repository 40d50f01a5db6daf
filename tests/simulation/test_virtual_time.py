"""Nothing lost, early or altered under virtual time, whatever fails; each duplicate has a known cause."""

from __future__ import annotations

import pytest

from tests.simulation.scenarios import VIRTUAL, VirtualScenario
from tests.simulation.store_faults import S3, StoreScenario
from tests.simulation.virtual_party import Trouble
from tests.simulation.virtual_world import Plan, Run

MESSAGES = 200


@pytest.mark.parametrize(
    "seed", [11, *(pytest.param(n, marks=pytest.mark.nightly) for n in (12, 13))]
)
@pytest.mark.parametrize("scenario", VIRTUAL, ids=lambda scenario: scenario.fault)
def test_the_promise_is_kept(scenario: VirtualScenario, seed: int) -> None:
    """Every accepted message arrives, on time, as sent; many hops."""
    counted = scenario.run(seeds=[seed], messages=MESSAGES)
    counted.check()
    assert counted.sent + counted.unknown == MESSAGES
    spared = "nobody" in scenario.fault or scenario.plan.parked
    assert counted.hops > 4 * counted.sent or spared
    if scenario.plan.chances:
        assert counted.injected > 15


@pytest.mark.parametrize("scenario", S3, ids=lambda scenario: scenario.fault)
def test_the_s3_store_keeps_it(scenario: StoreScenario) -> None:
    """Broken at its calls: nothing lost or early, and repeated no more than a batch for each break."""
    counted = scenario.run(seeds=[11], messages=MESSAGES)
    counted.check()
    assert counted.sent > MESSAGES / 4
    assert counted.injected > 20


def test_the_same_seed_is_the_same_run() -> None:
    """A failure can be seen again: by its seed."""
    plan = Plan(chances=dict.fromkeys(Trouble, 0.02), wrong_clocks=True)
    first, second, other = (Run(plan, seed=s, messages=60).tally() for s in (5, 5, 6))
    assert first == second
    assert first != other
