"""The S3 store's scenarios: what breaks at its calls, and what became of the messages. One row each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.simulation.causes import Cause
from tests.simulation.model.s3_world import FAULTS, S3World
from tests.simulation.model.store_world import BATCH
from tests.simulation.tally import Tally

_ACTIONS: Final = 60


@dataclass(frozen=True, kw_only=True)
class S3Scenario:
    """Parkers, dispatchers that split and merge, and people who cancel and move, under virtual time."""

    fault: str
    kinds: Sequence[str]
    consumers: str = "S3 store: parkers, dispatchers"
    time: str = "virtual"

    def run(self, *, seeds: Iterable[int], messages: int) -> Tally:
        """Count all runs together, each of about so many messages."""
        tallies = [self._tally(seed, messages) for seed in seeds]
        return sum(tallies[1:], tallies[0])

    def _tally(self, seed: int, messages: int) -> Tally:
        world = S3World(seed, kinds=self.kinds)
        world.play(["act"] * (_ACTIONS * messages // 100))
        world.close()
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


S3: Final = (
    S3Scenario(fault="503s and lost answers", kinds=("503", "answer lost")),
    S3Scenario(fault="killed at any call of commit, split, merge, release", kinds=("killed",)),
    S3Scenario(
        fault="frozen for up to 3 h, another dispatcher in between", kinds=("frozen", "meanwhile")
    ),
    S3Scenario(fault="all of these", kinds=FAULTS),
)
