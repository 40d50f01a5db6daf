"""The DynamoDB store broken at every step, in virtual time: lost 0, early 0, a batch repeated for a death."""

from __future__ import annotations

import pytest

from tests.simulation.model.dynamodb_world import FAULTS
from tests.simulation.store_faults import EachPoint, StoreTally, played

SEEDS = range(3)


def test_a_seed_replays() -> None:
    """To the letter: the same messages, delivered at the same millisecond."""
    first, again = (played(5, actions=8) for _ in range(2))
    assert first.delivered == again.delivered
    assert first.faults == again.faults
    assert first.now_ms() == again.now_ms()
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
    StoreTally.of(world).check()
    assert sum(world.faults.values()) > 0


def test_killed_at_a_point() -> None:
    """Once, and at that one; the table in the docs has every point."""
    counted = EachPoint(fault="every fortieth").run(every=40)
    counted.check()
    assert counted.faults > 2
    assert counted.stored > 0


@pytest.mark.parametrize("seed", [5])
def test_nothing_is_repeated_where_nothing_breaks(seed: int) -> None:
    """Parkers, dispatchers and changes of mind, each in the midst of another's calls: every message
    once, and one whose cancellation was confirmed never."""
    world = played(seed, fault_share=0.08, kinds=["meanwhile"])
    assert (world.wrong, world.lost, world.repeated) == ([], [], 0)
    assert any(known.cancelled for known in world.known.values())
