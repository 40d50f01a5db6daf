"""Nothing lost, early or altered on a local SQS server, whatever the network and the machines do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from sqsdelay.testing import LocalAws
from tests.simulation.scenarios import REAL, RealScenario
from tests.simulation.table import SIDE_BY_SIDE
from tests.simulation.tally import Tally

MESSAGES = 100
SEED = 1

pytestmark = pytest.mark.timeout(1800)  # the first test waits for all scenarios


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Tally]]]:
    """The selected scenarios, running side by side on a local AWS of their own: each mostly waits."""
    wanted = {item.name for item in request.session.items if item.parent is request.node}
    with LocalAws() as aws, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        started = {
            scenario.name: pool.submit(scenario.run, aws, seed=SEED, messages=MESSAGES)
            for scenario in REAL
            if f"test_the_promise_is_kept[{scenario.name}]" in wanted
        }
        # pytest changes its environment from test to test, which clients read that are made meanwhile.
        wait(started.values())
        yield started


@pytest.mark.parametrize(
    "scenario",
    [
        *REAL[:2],  # a worker that is killed, and every fault at once
        *(pytest.param(scenario, marks=pytest.mark.nightly) for scenario in REAL[2:]),
    ],
    ids=lambda scenario: scenario.name,
)
def test_the_promise_is_kept(scenario: RealScenario, runs: dict[str, Future[Tally]]) -> None:
    """Every accepted message arrives or is rejected with its reason; duplicates have a known cause."""
    counted = runs[scenario.name].result()
    counted.check()
    assert counted.sent + counted.unknown == MESSAGES
    setting = scenario.setting
    # How many is a matter of speed: on a busy machine what is due by the first hop makes no other.
    assert counted.hops > 0 or setting.denied_seconds
    assert counted.injected > 0 or setting.away_seconds
