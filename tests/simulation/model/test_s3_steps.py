"""The S3 store broken at every step, in virtual time: lost 0, early 0, a batch repeated for a death."""

from __future__ import annotations

import pytest

from tests.simulation.model.s3_world import FAULTS, S3World
from tests.simulation.model.store_world import BATCH

SEEDS = range(10)
ACTIONS = 60


def played(world: S3World) -> S3World:
    world.play(["act"] * ACTIONS)
    world.close()
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_broken_at_any_call(seed: int) -> None:
    """503s, lost answers, processes killed and frozen for hours, others in between: at every step of
    commit, split, merge and release. Every confirmed message arrives."""
    world = played(S3World(seed))
    assert world.wrong == []
    assert world.lost == []
    assert world.repeated <= BATCH * world.breaks
    assert sum(world.faults[kind] for kind in FAULTS) > 0


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_repeated_where_nothing_breaks(seed: int) -> None:
    """Parkers, dispatchers and changes of mind, each in the midst of another's calls: every message
    once, and one whose cancellation was confirmed never."""
    world = played(S3World(seed, fault_share=0.08, kinds=["meanwhile"]))
    assert (world.wrong, world.lost, world.repeated) == ([], [], 0)
    assert any(known.cancelled for known in world.known.values())
