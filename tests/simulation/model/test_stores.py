"""The DynamoDB and S3 stores broken at every step, in virtual time: lost 0, early 0, a batch repeated for a
death."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulation.store_faults import ACTIONS, EachPoint, Play, on_dynamodb, on_s3, tally


def seeds(of_dynamodb: Sequence[int], of_s3: Sequence[int]) -> list[object]:
    """The first of each store; the others by night."""
    return [
        pytest.param(play, seed, marks=[pytest.mark.nightly] if n else [], id=f"{store}-{seed}")
        for store, play, given in (("dynamodb", on_dynamodb, of_dynamodb), ("s3", on_s3, of_s3))
        for n, seed in enumerate(given)
    ]


def test_a_seed_replays() -> None:
    """To the letter: the same messages, delivered at the same millisecond."""
    first, again = (on_dynamodb(5, actions=8) for _ in range(2))
    assert first.delivered == again.delivered
    assert first.faults == again.faults
    assert first.now_ms() == again.now_ms()
    assert first.delivered


@pytest.mark.parametrize(("play", "seed"), seeds(range(3), range(10)))
def test_broken_at_any_call(play: Play, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Throttled, unanswered, killed, frozen for hours, overtaken; in S3 at every step of commit, split,
    merge and release: every confirmed message arrives."""
    by_day = (play, seed) == (on_dynamodb, 0)
    world = play(seed, actions=25) if by_day else play(seed)
    with capsys.disabled():
        told = ", ".join(f"{world.faults[kind]} {kind}" for kind in world.kinds)
        print(  # noqa: T201
            f"\nseed {seed}: {len(world.known)} messages; {told}; {len(world.lost)} lost, "
            f"{world.repeated} repeated after {world.breaks} broken claims and writes"
        )
    tally(world).check()
    assert sum(world.faults.values()) > 0


def test_killed_at_a_point() -> None:
    """Once, and at that one; the table in the docs has every point."""
    counted = EachPoint(fault="every sixtieth").run(every=60)
    counted.check()
    assert counted.injected > 2
    assert counted.sent > 0


@pytest.mark.parametrize(("play", "seed"), seeds(range(5, 8), range(4)))
def test_nothing_is_repeated_where_nothing_breaks(play: Play, seed: int) -> None:
    """Parkers, dispatchers and changes of mind, each in the midst of another's calls: every message
    once, and one whose cancellation was confirmed never."""
    actions = ACTIONS if play is on_s3 else 6 if seed == 5 else 9
    world = play(seed, actions=actions, fault_share=0.08, kinds=["meanwhile"])
    assert (world.wrong, world.lost, world.repeated) == ([], [], 0)
    assert any(known.cancelled for known in world.known.values())
