"""The tables in docs/reliability.md, made from the scenarios' tallies: `make faults` rewrites it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Final

from benchmarks.support import blocks
from sqsdelay.testing import LocalAws
from tests.services.processes import ROOT
from tests.simulation.scenarios import REAL, VIRTUAL, RealScenario, VirtualScenario
from tests.simulation.store_faults import DYNAMODB, S3, EachPoint, StoreScenario, added
from tests.simulation.tally import Tally

DOCUMENT: Final = ROOT / "docs" / "reliability.md"
BEGIN: Final = "<!-- made by make faults: begin tables -->"
END: Final = "<!-- made by make faults: end tables -->"
SIDE_BY_SIDE: Final = 8
"""Real-time scenarios mostly wait."""

Scenario = RealScenario | VirtualScenario | StoreScenario | EachPoint
Counted = tuple[Scenario, Tally]

GROUPS: Final[dict[str, Sequence[Scenario]]] = {
    "The relay, in virtual time": VIRTUAL,
    "An S3 store, in virtual time": S3,
    "A DynamoDB store, in virtual time": DYNAMODB,
    "The relay, in real time": REAL,
}
"""In the page's order, a table each."""


def tables(counted: Sequence[Counted]) -> str:
    """A table for each group, a line for each fault, and their sums."""
    made = [_table(title, [c for c in counted if c[0] in group]) for title, group in GROUPS.items()]
    total = f"In all: {totals(added(tally for _, tally in counted))}"
    return "\n\n".join([*(each for each in made if each), total])


def _table(title: str, counted: Sequence[Counted]) -> str:
    lines = []
    for fault in dict.fromkeys(scenario.fault for scenario, _ in counted):
        sum_ = added(tally for scenario, tally in counted if scenario.fault == fault)
        lines.append(f"| {fault} | {sum_.sent:,} | {sum_.injected:,} | {sum_.duplicated:,} |")
    header = f"| {title} | sent | faults | duplicated |\n|---|---|---|---|"
    return "\n".join([header, *lines]) if lines else ""


def totals(counted: Tally) -> str:
    """Everything that was counted, and the causes of the duplicates."""
    causes = "; ".join(f"{cause} {count:,}" for cause, count in counted.causes.most_common())
    return (
        f"{counted.sent:,} messages sent, {counted.unknown:,} unknown, {counted.hops:,} hops, "
        f"{counted.injected:,} faults; lost {len(counted.lost)}, early {len(counted.early)}, "
        f"altered {len(counted.altered)}, error queue {counted.rejected:,}, "
        f"duplicated {counted.duplicated:,}. Causes: {causes or 'none'}."
    )


def told(document: str) -> str:
    """What a document has between the marks."""
    return document.partition(BEGIN)[2].partition(END)[0]


def rewritten(document: str, made: str) -> str:
    """The document with other tables."""
    return blocks.rewritten(document, "make faults", "tables", made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200, help="per real-time scenario")
    parser.add_argument("--seeds", type=int, default=10, help="per virtual-time scenario")
    parser.add_argument("--stretch", type=float, default=3, help="of the longest real-time delays")
    parser.add_argument("fault", nargs="*", help="print those that begin with one of these only")
    options = parser.parse_args()
    _prepare()
    wanted = tuple(options.fault)

    # Virtual time computes, real time mostly waits.
    with (
        LocalAws() as aws,
        ThreadPoolExecutor(SIDE_BY_SIDE) as threads,
        ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_prepare) as processes,
    ):
        seeds = range(1, options.seeds + 1)
        runs: list[tuple[Scenario, Future[Tally]]] = []
        for computed in (*VIRTUAL, *S3, *DYNAMODB):
            if computed.fault.startswith(wanted or ""):
                runs.append((computed, processes.submit(computed.run, seeds=seeds, messages=300)))
        given = {"messages": options.messages, "stretch": options.stretch}
        for real in REAL:
            if real.fault.startswith(wanted or ""):
                runs.append((real, threads.submit(real.run, aws, seed=1, **given)))
        counted = [(scenario, _checked(scenario, run.result())) for scenario, run in runs]
    if not wanted:
        made = tables(counted)
        DOCUMENT.write_text(rewritten(DOCUMENT.read_text(), made))


def _prepare() -> None:
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")


def _checked(scenario: Scenario, counted: Tally) -> Tally:
    sys.stdout.write(f"{scenario.fault}: {totals(counted)}\n")
    sys.stdout.flush()
    counted.check()
    return counted


if __name__ == "__main__":
    main()
