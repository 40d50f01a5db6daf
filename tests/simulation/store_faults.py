"""Scenarios that break the DynamoDB and S3 stores on purpose, in virtual time: a row each in the docs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from moto import mock_aws

from tests.simulation.model import dynamodb_world, s3_world
from tests.simulation.model.store_world import BATCH, StoreWorld
from tests.simulation.tally import Cause, Tally

ACTIONS: Final = 60
ON_DYNAMODB: Final = 35
SCRIPT: Final = ("park", "park", "dispatch", "change", "dispatch")
"""What happens where every point of a run is broken in turn."""


def tally(world: StoreWorld) -> Tally:
    """What became of a world's messages: each claim or write that was broken off may cost a batch."""
    accepted = [known for known in world.known.values() if known.confirmed]
    bounded = world.repeated <= BATCH * world.breaks
    return Tally(
        sent=len(accepted),
        unknown=len(world.known) - len(accepted),
        hops=0,
        injected=sum(world.faults.values()),
        lost=world.lost,
        early=world.early,
        strange=world.strange,
        duplicated=world.repeated,
        causes=Counter({Cause.CLAIM_BROKEN: world.repeated} if world.repeated else {}),
        undocumented=[] if bounded else [f"{world.repeated} after {world.breaks} breaks"],
    )


@contextmanager
def without_renewals() -> Iterator[None]:
    """No thread renews leases: it would go by the machine's own time, and by its speed."""
    with patch(
        "sqsdelay.stores.dynamodb.dynamodb_store.kept_alive",
        lambda renew, lease_seconds: nullcontext(),
    ):
        yield


def on_dynamodb(
    seed: int, *, actions: int = ON_DYNAMODB, script: Sequence[str] = (), **told: Any
) -> dynamodb_world.DynamoDbWorld:
    """A world after so many actions, or these, and after all that waits was served."""
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
    with (
        patch.dict(os.environ, keys),
        without_renewals(),
        mock_aws(),
        closing(dynamodb_world.DynamoDbWorld(seed, **told)) as world,
    ):
        world.play(script or ["act"] * actions)
    return world


def on_s3(seed: int, *, actions: int = ACTIONS, **told: Any) -> s3_world.S3World:
    """The same in a bucket."""
    with closing(s3_world.S3World(seed, **told)) as world:
        world.play(["act"] * actions)
    return world


Play = Callable[..., StoreWorld]


@dataclass(frozen=True, kw_only=True)
class StoreScenario:
    """Parkers, dispatchers and people who cancel and move, broken by chance at their calls."""

    fault: str
    kinds: Sequence[str]
    play: Play = on_s3
    share: float = 0.03

    def run(self, *, seeds: Iterable[int], messages: int) -> Tally:
        """Count all runs together, each of about so many messages in a bucket, and fewer in a table."""
        actions = ACTIONS * messages // 100 if self.play is on_s3 else ON_DYNAMODB
        return added(
            tally(self.play(seed, actions=actions, fault_share=self.share, kinds=self.kinds))
            for seed in seeds
        )


@dataclass(frozen=True, kw_only=True)
class EachPoint:
    """One run again and again, killed once: before its first call, after it, and so on to the last."""

    fault: str
    seed: int = 2

    def run(self, *, every: int = 1, **_: object) -> Tally:
        """Count the runs together, of one seed; seeds and messages are for those by chance."""
        points = self._played(0).points
        return added(tally(self._played(point)) for point in range(1, points + 1, every))

    def _played(self, point: int) -> dynamodb_world.DynamoDbWorld:
        return on_dynamodb(self.seed, script=SCRIPT, kinds=["killed"], only_at=point)


def added(tallies: Iterable[Tally]) -> Tally:
    """All together."""
    return sum(tallies, Tally(sent=0, unknown=0, hops=0, injected=0))


def _dynamodb(fault: str, kinds: Sequence[str], share: float = 0.05) -> StoreScenario:
    return StoreScenario(fault=fault, kinds=kinds, play=on_dynamodb, share=share)


DYNAMODB: Final = (
    EachPoint(fault="SIGKILL before and after each call, in turn"),
    _dynamodb("SIGKILL at any call", ["killed"]),
    _dynamodb("throttled", ["throttled"]),
    _dynamodb("answers lost", ["answer lost"]),
    _dynamodb("stopped for 70 s to 3 h, so that a lease runs out mid-batch", ["frozen"]),
    _dynamodb("clocks an hour off, nothing else", [], share=0),
    _dynamodb("somebody else acts between two calls", ["meanwhile"], share=0.08),
    _dynamodb("all of these", dynamodb_world.FAULTS, share=0.03),
)

S3: Final = (
    StoreScenario(fault="503s and lost answers", kinds=("503", "answer lost")),
    StoreScenario(fault="killed at any call of commit, split, merge, release", kinds=("killed",)),
    StoreScenario(
        fault="frozen for up to 3 h, another dispatcher in between", kinds=("frozen", "meanwhile")
    ),
    StoreScenario(fault="all of these", kinds=s3_world.FAULTS),
)
