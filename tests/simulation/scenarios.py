"""All scenarios: what goes wrong, who consumes meanwhile, and how to run it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqsdelay.testing import LocalAws
from tests.acceptance.faults.real_world import RealWorld, Setting
from tests.services.sqs_proxy import Fault
from tests.simulation.tally import Tally
from tests.simulation.virtual_party import Trouble
from tests.simulation.virtual_world import HOUR_MS, Plan, Run

ONE_KIND: Final = 0.25
"""Chance per request where there is one kind of fault; five attempts in a row fail once in a thousand."""
SELDOM: Final = 0.05
"""The same, where each costs a client its whole time limit."""
EVERY_KIND: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class VirtualScenario:
    """Two workers and a function under virtual time, 900 s a hop, delays up to five hours."""

    fault: str
    plan: Plan

    def run(self, *, seeds: Iterable[int], messages: int) -> Tally:
        """Count all runs together."""
        tallies = [Run(self.plan, seed=seed, messages=messages).tally() for seed in seeds]
        return sum(tallies[1:], tallies[0])


@dataclass(frozen=True, kw_only=True)
class RealScenario:
    """Real processes on a local SQS server, a second a hop, delays up to eight seconds or so."""

    fault: str
    setting: Setting
    consumers: str

    @property
    def name(self) -> str:
        return f"{self.fault}: {self.consumers}"

    def run(self, aws: LocalAws, *, seed: int, messages: int, stretch: float = 1) -> Tally:
        """Run it once, with delays up to ``stretch`` times the setting's."""
        world = RealWorld(aws, self.setting, seed=seed, messages=messages, stretch=stretch)
        return world.run()


VIRTUAL: Final = (
    VirtualScenario(
        fault="calls that fail, before and after SQS acted",
        plan=Plan(chances={Trouble.NOT_REACHED: 0.04, Trouble.ANSWER_LOST: 0.04}),
    ),
    VirtualScenario(
        fault="partial batch failures, either SenderFault",
        plan=Plan(chances={Trouble.PARTIAL: 0.05, Trouble.REFUSED: 0.05}),
    ),
    VirtualScenario(
        fault="consumers die at any call",
        plan=Plan(chances={Trouble.KILLED_BEFORE: 0.01, Trouble.KILLED_AFTER: 0.01}),
    ),
    VirtualScenario(
        fault="processes stopped, machines suspended, for up to 15 min",
        plan=Plan(chances={Trouble.FROZEN: 0.01, Trouble.SUSPENDED: 0.01}),
    ),
    VirtualScenario(
        fault="clocks 10 min off and stepped by up to 20 min",
        plan=Plan(chances={Trouble.STEPPED: 0.1, Trouble.NOT_REACHED: 0.05}, wrong_clocks=True),
    ),
    VirtualScenario(
        fault="clocks 10 min off, the storer's 10 min behind",
        plan=Plan(wrong_clocks=True, parked=True),
    ),
    VirtualScenario(
        fault="destination deleted, back after 2 h",
        plan=Plan(away_ms=(HOUR_MS, 3 * HOUR_MS), quiet_ms=(HOUR_MS // 2, HOUR_MS + HOUR_MS // 2)),
    ),
    VirtualScenario(
        fault="sends to the delay queue denied for 2 h", plan=Plan(denied_ms=(HOUR_MS, 3 * HOUR_MS))
    ),
    VirtualScenario(fault="nobody consumes for 3 h", plan=Plan(idle_ms=(HOUR_MS, 4 * HOUR_MS))),
    VirtualScenario(
        fault="all of these calls, deaths, stops and clocks",
        plan=Plan(chances=dict.fromkeys(Trouble, 0.005), wrong_clocks=True),
    ),
    VirtualScenario(
        fault="the same, FIFO destination",
        plan=Plan(chances=dict.fromkeys(Trouble, 0.005), wrong_clocks=True, fifo=True),
    ),
)


def _one_kind(fault: Fault) -> list[RealScenario]:
    chances = {fault: SELDOM if fault is Fault.STALLED else ONE_KIND}
    return [
        RealScenario(
            fault=fault.value, consumers="worker", setting=Setting(workers=1, chances=chances)
        ),
        RealScenario(
            fault=fault.value, consumers="function", setting=Setting(functions=1, chances=chances)
        ),
    ]


REAL: Final = (
    # The longest first: they run side by side.
    RealScenario(
        fault="SIGKILL, at random and before a delete",
        consumers="worker process",
        setting=Setting(kills=4, delays_ms=(500, 12_000)),
    ),
    RealScenario(
        fault="all requests' faults, and a SIGKILL",
        consumers="two workers, function",
        setting=Setting(workers=1, functions=1, kills=1, chances=dict.fromkeys(Fault, EVERY_KIND)),
    ),
    *(scenario for fault in Fault for scenario in _one_kind(fault)),
    RealScenario(
        fault="destination deleted, back after 6 s",
        consumers="worker, function",
        setting=Setting(workers=1, functions=1, away_seconds=6, delays_ms=(4000, 9000)),
    ),
    RealScenario(
        fault="sends to the delay queue denied for 4 s",
        consumers="worker, function",
        setting=Setting(workers=1, functions=1, denied_seconds=4),
    ),
)
