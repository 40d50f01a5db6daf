"""Scenarios that break the DynamoDB store on purpose, in virtual time: a row each in the docs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from moto import mock_aws

from tests.simulation.model.dynamodb_world import FAULTS, DynamoDbWorld
from tests.simulation.model.store_world import BATCH, StoreWorld

ACTIONS: Final = 35
SCRIPT: Final = ("park", "park", "dispatch", "change", "dispatch")
"""What happens where every point of a run is broken in turn."""

HEADER: Final = (
    "fault",
    "stored",
    "faults",
    "claims and writes broken",
    "lost",
    "early",
    "otherwise wrong",
    "delivered again",
    "at most",
)


@dataclass(frozen=True, kw_only=True)
class StoreTally:
    """What became of the messages of some runs.

    ``stored`` were confirmed and not changed. ``again`` are deliveries above each message's first; each
    claim or write that was broken off may cost a batch of them.
    """

    stored: int = 0
    faults: int = 0
    broken: int = 0
    lost: Sequence[str] = ()
    early: Sequence[str] = ()
    wrong: Sequence[str] = ()
    again: int = 0

    @classmethod
    def of(cls, world: StoreWorld) -> StoreTally:
        return cls(
            stored=sum(known.confirmed for known in world.known.values()),
            faults=sum(world.faults.values()),
            broken=world.breaks,
            lost=world.lost,
            early=world.early,
            wrong=world.strange,
            again=world.repeated,
        )

    def __add__(self, other: StoreTally) -> StoreTally:
        return StoreTally(
            stored=self.stored + other.stored,
            faults=self.faults + other.faults,
            broken=self.broken + other.broken,
            lost=[*self.lost, *other.lost],
            early=[*self.early, *other.early],
            wrong=[*self.wrong, *other.wrong],
            again=self.again + other.again,
        )

    @property
    def most_again(self) -> int:
        """A batch for each claim or write that was broken off."""
        return BATCH * self.broken

    def check(self) -> None:
        """Fail unless the promise was kept.

        Raises:
            AssertionError
        """
        assert not self.lost, f"lost: {self.lost}"
        assert not self.early, f"early: {self.early}"
        assert not self.wrong, f"wrong: {self.wrong}"
        assert self.again <= self.most_again, f"{self.again} delivered again"


@contextmanager
def without_renewals() -> Iterator[None]:
    """No thread renews leases: it would go by the machine's own time, and by its speed."""
    with patch(
        "sqsdelay.stores.dynamodb.dynamodb_store.kept_alive",
        lambda renew, lease_seconds: nullcontext(),
    ):
        yield


def played(
    seed: int, *, actions: int = ACTIONS, script: Sequence[str] = (), **told: Any
) -> DynamoDbWorld:
    """A world after so many actions, or these, and after all that waits was served."""
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
    with (
        patch.dict(os.environ, keys),
        without_renewals(),
        mock_aws(),
        closing(DynamoDbWorld(seed, **told)) as world,
    ):
        world.play(script or ["act"] * actions)
    return world


@dataclass(frozen=True, kw_only=True)
class StoreScenario:
    """Parkers, dispatchers and people who change their minds, broken by chance at their calls."""

    fault: str
    kinds: Sequence[str]
    share: float = 0.05

    def run(self, seeds: int) -> StoreTally:
        """Count so many runs together."""
        worlds = (
            played(seed, fault_share=self.share, kinds=self.kinds) for seed in range(1, seeds + 1)
        )
        return sum(map(StoreTally.of, worlds), StoreTally())


@dataclass(frozen=True, kw_only=True)
class EachPoint:
    """One run again and again, killed once: before its first call, after it, and so on to the last."""

    fault: str
    seed: int = 2

    def run(self, seeds: int = 1, *, every: int = 1) -> StoreTally:
        """Count the runs together, of one seed each; ``seeds`` is for those by chance."""
        points = self._played(0).points
        return sum(
            (StoreTally.of(self._played(point)) for point in range(1, points + 1, every)),
            StoreTally(),
        )

    def _played(self, point: int) -> DynamoDbWorld:
        return played(self.seed, script=SCRIPT, kinds=["killed"], only_at=point)


SCENARIOS: Final = (
    EachPoint(fault="SIGKILL before and after each call, in turn"),
    StoreScenario(fault="SIGKILL at any call", kinds=["killed"]),
    StoreScenario(fault="throttled", kinds=["throttled"]),
    StoreScenario(fault="answers lost", kinds=["answer lost"]),
    StoreScenario(
        fault="stopped for 70 s to 3 h, so that a lease runs out mid-batch", kinds=["frozen"]
    ),
    StoreScenario(fault="clocks an hour off, nothing else", kinds=[], share=0),
    StoreScenario(fault="somebody else acts between two calls", kinds=["meanwhile"], share=0.08),
    StoreScenario(fault="all of these", kinds=FAULTS, share=0.03),
)


def row(scenario: EachPoint | StoreScenario, counted: StoreTally) -> str:
    """A scenario's line."""
    numbers = (
        counted.stored,
        counted.faults,
        counted.broken,
        len(counted.lost),
        len(counted.early),
        len(counted.wrong),
        counted.again,
        counted.most_again,
    )
    return "| " + " | ".join([scenario.fault, *(f"{n:,}" for n in numbers)]) + " |"


def table(rows: Sequence[str]) -> str:
    """The table with these lines."""
    return "\n".join(["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER), *rows])
