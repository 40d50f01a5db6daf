"""The DynamoDB store broken at every step, in virtual time: lost 0, early 0, a batch repeated for a death."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import Any

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


def played(seed: int, *, actions: int = ACTIONS, **told: Any) -> DynamoDbWorld:
    """A world after so many actions, and after all that waits was served."""
    with mock_aws(), closing(DynamoDbWorld(seed, **told)) as world:
        for _ in range(actions):
            world.act()
            world.now_ms += world.chance.choice([0, 10, 5000, 60_000, 600_000])
        world.drain()
    return world


def test_a_seed_replays() -> None:
    """To the letter: the same messages, delivered at the same millisecond."""
    first, again = (played(5, actions=8) for _ in range(2))
    assert first.delivered == again.delivered
    assert first.faults == again.faults
    assert first.now_ms == again.now_ms
    assert first.delivered


@pytest.mark.parametrize("seed", SEEDS)
def test_broken_at_any_call(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Throttled, unanswered, killed, frozen for hours, overtaken: every confirmed message arrives."""
    world = played(seed)
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


@pytest.mark.parametrize("seed", [5])
def test_nothing_is_repeated_where_nothing_breaks(seed: int) -> None:
    """Parkers, dispatchers and changes of mind, each in the midst of another's calls: every message
    once, and one whose cancellation was confirmed never."""
    world = played(seed, fault_share=0.08, kinds=["meanwhile"])
    assert (world.wrong, world.lost, world.repeated) == ([], [], 0)
    assert any(known.cancelled for known in world.known.values())
