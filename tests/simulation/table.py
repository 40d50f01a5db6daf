"""The tables in docs/reliability.md, made from the scenarios' tallies: `make faults` rewrites them."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sqsdelay.testing import LocalAws
from tests.services.processes import ROOT
from tests.simulation import store_faults
from tests.simulation.s3_scenarios import S3, S3Scenario
from tests.simulation.scenarios import REAL, VIRTUAL, RealScenario, VirtualScenario
from tests.simulation.tally import Tally

DOCUMENT: Final = ROOT / "docs" / "reliability.md"
BEGIN: Final = "<!-- made by make faults: begin -->"
END: Final = "<!-- made by make faults: end -->"
STORE_BEGIN: Final = "<!-- made by make faults: begin store -->"
STORE_END: Final = "<!-- made by make faults: end store -->"
SIDE_BY_SIDE: Final = 8
"""Real-time scenarios mostly wait."""

HEADER: Final = (
    "fault",
    "time",
    "consumers",
    "sent",
    "unknown",
    "hops",
    "faults",
    "lost",
    "early",
    "altered",
    "error queue",
    "duplicated",
    "why",
)

Scenario = RealScenario | S3Scenario | VirtualScenario
SCENARIOS: Final[tuple[Scenario, ...]] = (*VIRTUAL, *S3, *REAL)
"""In the table's order."""


def row(scenario: Scenario, counted: Tally) -> str:
    """A scenario's line."""
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(counted.causes.items()))
    numbers = (
        counted.sent,
        counted.unknown,
        counted.hops,
        counted.injected,
        len(counted.lost),
        len(counted.early),
        len(counted.altered),
        counted.rejected,
        counted.duplicated,
    )
    cells = (scenario.fault, scenario.time, scenario.consumers, *(f"{n:,}" for n in numbers))
    return "| " + " | ".join([*cells, causes]) + " |"


def table(tallies: Sequence[tuple[Scenario, Tally]]) -> str:
    """All lines, and their sum."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += [row(scenario, counted) for scenario, counted in tallies]
    return "\n".join([*lines, "", summary([counted for _, counted in tallies])])


def summary(tallies: Sequence[Tally]) -> str:
    """One sentence about all scenarios."""
    counted = sum(tallies[1:], tallies[0])
    return (
        f"In all: {counted.sent:,} messages sent, {counted.hops:,} hops, {counted.injected:,} faults; "
        f"lost {len(counted.lost)}, early {len(counted.early)}, altered {len(counted.altered)}, "
        f"duplicated {counted.duplicated:,}."
    )


def cells(document: str, *, begin: str = BEGIN, end: str = END) -> list[dict[str, str]]:
    """A table's rows as a document has them."""
    text = document.partition(begin)[2].partition(end)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    header, *split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, values, strict=True)) for values in split]


def rewritten(document: str, made: str, *, begin: str = BEGIN, end: str = END) -> str:
    """The document with another table."""
    before, _, rest = document.partition(begin)
    return f"{before}{begin}\n{made}\n{end}{rest.partition(end)[2]}"


def run_all(*, messages: int, seeds: int, stretch: float) -> Iterator[tuple[Scenario, Tally]]:
    """Every scenario's tally, checked, in the table's order.

    Raises:
        AssertionError: a promise was broken.
    """
    for virtual in (*VIRTUAL, *S3):
        yield virtual, virtual.run(seeds=range(1, seeds + 1), messages=300)
    with LocalAws() as aws, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        runs = [
            pool.submit(real.run, aws, seed=1, messages=messages, stretch=stretch) for real in REAL
        ]
        for real, run in zip(REAL, runs, strict=True):
            yield real, run.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200, help="per real-time scenario")
    parser.add_argument("--seeds", type=int, default=10, help="per virtual-time scenario")
    parser.add_argument("--store-seeds", type=int, default=10, help="per scenario of the store")
    parser.add_argument("--only-store", action="store_true", help="only the store's table")
    parser.add_argument("--stretch", type=float, default=3, help="of the longest real-time delays")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    rows = []
    for broken in store_faults.SCENARIOS:
        counted_store = broken.run(options.store_seeds)
        rows.append(store_faults.row(broken, counted_store))
        _tell(rows[-1])
        counted_store.check()
    made = store_faults.table(rows)
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text(), made, begin=STORE_BEGIN, end=STORE_END))
    if options.only_store:
        return
    tallies = []
    runs = run_all(messages=options.messages, seeds=options.seeds, stretch=options.stretch)
    for scenario, counted in runs:
        _tell(row(scenario, counted))
        counted.check()
        tallies.append((scenario, counted))
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text(), table(tallies)))


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
