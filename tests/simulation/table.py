"""The table in docs/reliability.md, made from the scenarios' tallies: `make faults` rewrites it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Final, TypeVar

from sqsdelay.testing import LocalAws
from tests.services.processes import ROOT
from tests.simulation.scenarios import REAL, VIRTUAL, RealScenario, VirtualScenario
from tests.simulation.store_faults import DYNAMODB, S3, EachPoint, StoreScenario
from tests.simulation.tally import Tally

DOCUMENT: Final = ROOT / "docs" / "reliability.md"
BEGIN: Final = "<!-- made by make faults: begin -->"
END: Final = "<!-- made by make faults: end -->"
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

Computed = VirtualScenario | StoreScenario | EachPoint
Scenario = RealScenario | Computed
T = TypeVar("T", bound=Scenario)
COMPUTED: Final[tuple[Computed, ...]] = (*VIRTUAL, *S3, *DYNAMODB)
SCENARIOS: Final[tuple[Scenario, ...]] = (*COMPUTED, *REAL)
"""In the table's order."""


def line_of(scenario: Scenario, counted: Tally) -> str:
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
    return "| " + " | ".join([_name(scenario), *(f"{n:,}" for n in numbers), causes]) + " |"


def _name(scenario: Scenario) -> str:
    """A line's first cells, which no other line begins with."""
    return f"{scenario.fault} | {scenario.time} | {scenario.consumers}"


def table(rows: Sequence[str]) -> str:
    """These lines, and their sum."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER), *rows]
    return "\n".join([*lines, "", summary("\n".join(lines))])


def summary(made: str) -> str:
    """One sentence about all lines."""
    total = Counter[str]()
    for line in _cells(made):
        total.update({name: int(line[name].replace(",", "")) for name in HEADER[3:-1]})
    return (
        f"In all: {total['sent']:,} messages sent, {total['hops']:,} hops, {total['faults']:,} faults; "
        f"lost {total['lost']}, early {total['early']}, altered {total['altered']}, "
        f"duplicated {total['duplicated']:,}."
    )


def cells(document: str) -> list[dict[str, str]]:
    """The table's rows as a document has them."""
    return _cells(document.partition(BEGIN)[2].partition(END)[0])


def _cells(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    header, *split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, values, strict=True)) for values in split]


def rewritten(document: str, made: str) -> str:
    """The document with another table."""
    before, _, rest = document.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200, help="per real-time scenario")
    parser.add_argument("--seeds", type=int, default=10, help="per virtual-time scenario")
    parser.add_argument("--stretch", type=float, default=3, help="of the longest real-time delays")
    parser.add_argument("line", nargs="*", help="count only the lines that begin with one of these")
    options = parser.parse_args()
    _prepare()

    def chosen(scenarios: Sequence[T]) -> list[T]:
        wanted = tuple(options.line)
        return [each for each in scenarios if not wanted or _name(each).startswith(wanted)]

    # Virtual time computes, real time mostly waits.
    with (
        LocalAws() as aws,
        ThreadPoolExecutor(SIDE_BY_SIDE) as threads,
        ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_prepare) as processes,
    ):
        seeds = range(1, options.seeds + 1)
        runs: list[tuple[Scenario, Future[Tally]]] = []
        runs += [(s, processes.submit(s.run, seeds=seeds, messages=300)) for s in chosen(COMPUTED)]
        told = {"messages": options.messages, "stretch": options.stretch}
        runs += [(s, threads.submit(s.run, aws, seed=1, **told)) for s in chosen(REAL)]
        rows = [_checked(line_of(scenario, run.result()), run.result()) for scenario, run in runs]
    document = DOCUMENT.read_text()
    DOCUMENT.write_text(rewritten(document, table(_with_earlier(rows, document))))


def _with_earlier(rows: Sequence[str], document: str) -> list[str]:
    """A line for each scenario: what was counted now, else what the document has."""
    known = [*rows, *document.partition(BEGIN)[2].partition(END)[0].splitlines()]
    return [next(r for r in known if r.startswith(f"| {_name(s)} |")) for s in SCENARIOS]


def _prepare() -> None:
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")


def _checked(line: str, counted: Tally) -> str:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    counted.check()
    return line


if __name__ == "__main__":
    main()
