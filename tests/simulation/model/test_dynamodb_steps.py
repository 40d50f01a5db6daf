"""The DynamoDB store broken at every step, in virtual time: lost 0, early 0, a batch repeated for a death."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from moto import mock_aws

from tests.simulation.model.dynamodb_world import BATCH, FAULTS, DynamoDbWorld

SEEDS = range(3)
ACTIONS = 35


@pytest.fixture(autouse=True)
def _no_thread_renews_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go by the machine's own time, and by its speed."""
    monkeypatch.setattr(
        "sqsdelay.stores.dynamodb.dynamodb_store.kept_alive",
        lambda renew, lease_seconds: nullcontext(),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_broken_at_any_call(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Throttled, unanswered, killed, frozen for hours, overtaken: every confirmed message arrives."""
    with mock_aws():
        world = DynamoDbWorld(seed)
        for _ in range(ACTIONS):
            world.act()
            world.now_ms += world.chance.choice([0, 10, 5000, 60_000, 600_000])
        world.drain()
        world.close()
    with capsys.disabled():
        told = ", ".join(f"{world.faults[kind]} {kind}" for kind in FAULTS)
        print(  # noqa: T201
            f"\nseed {seed}: {len(world.known)} messages; {told}; {len(world.lost)} lost, "
            f"{world.repeated} repeated after {world.breaks} broken claims and writes"
        )
    assert world.wrong == []
    assert world.lost == []
    assert world.repeated <= BATCH * world.breaks
    assert sum(world.faults.values()) > 0


@pytest.mark.parametrize("seed", range(1))
def test_nothing_is_repeated_where_nothing_breaks(seed: int) -> None:
    """Parkers, dispatchers and changes of mind, each in the midst of another's calls: every message
    once, and one whose cancellation was confirmed never."""
    with mock_aws():
        world = DynamoDbWorld(seed, fault_share=0.08, kinds=["meanwhile"])
        for _ in range(ACTIONS):
            world.act()
            world.now_ms += world.chance.choice([0, 10, 5000, 60_000, 600_000])
        world.drain()
        world.close()
    assert (world.wrong, world.lost, world.repeated) == ([], [], 0)
    assert any(known.cancelled for known in world.known.values())
