"""The tables in docs/reliability.md, made from the scenarios' tallies: `make faults` rewrites them."""

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
from tests.simulation import store_faults
from tests.simulation.scenarios import REAL, S3, VIRTUAL, RealScenario, S3Scenario, VirtualScenario
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
StoreScenario = store_faults.EachPoint | store_faults.StoreScenario
STORE: Final[tuple[StoreScenario, ...]] = store_faults.SCENARIOS
T = TypeVar("T", bound=Scenario | StoreScenario)
COMPUTED: Final[tuple[VirtualScenario | S3Scenario, ...]] = (*VIRTUAL, *S3)
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


def _name(scenario: Scenario | StoreScenario) -> str:
    """A line's first cells, which no other line of its table begins with."""
    if isinstance(scenario, StoreScenario):
        return scenario.fault
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


def cells(document: str, *, begin: str = BEGIN, end: str = END) -> list[dict[str, str]]:
    """A table's rows as a document has them."""
    return _cells(document.partition(begin)[2].partition(end)[0])


def _cells(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    header, *split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, values, strict=True)) for values in split]


def rewritten(document: str, made: str, *, begin: str = BEGIN, end: str = END) -> str:
    """The document with another table."""
    before, _, rest = document.partition(begin)
    return f"{before}{begin}\n{made}\n{end}{rest.partition(end)[2]}"


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

    stores = chosen(STORE)
    # Virtual time computes, real time mostly waits.
    with (
        LocalAws() as aws,
        ThreadPoolExecutor(SIDE_BY_SIDE) as threads,
        ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_prepare) as processes,
    ):
        store_runs = [processes.submit(each.run, options.seeds) for each in stores]
        seeds = range(1, options.seeds + 1)
        runs: list[tuple[Scenario, Future[Tally]]] = []
        runs += [(s, processes.submit(s.run, seeds=seeds, messages=300)) for s in chosen(COMPUTED)]
        told = {"messages": options.messages, "stretch": options.stretch}
        runs += [(s, threads.submit(s.run, aws, seed=1, **told)) for s in chosen(REAL)]
        rows = [_checked(line_of(scenario, run.result()), run.result()) for scenario, run in runs]
        store_rows = [
            _checked(store_faults.row(scenario, run.result()), run.result())
            for scenario, run in zip(stores, store_runs, strict=True)
        ]
    document = DOCUMENT.read_text()
    store_rows = _with_earlier(store_rows, STORE, document, STORE_BEGIN, STORE_END)
    made = store_faults.table(store_rows)
    document = rewritten(document, made, begin=STORE_BEGIN, end=STORE_END)
    rows = _with_earlier(rows, SCENARIOS, document, BEGIN, END)
    DOCUMENT.write_text(rewritten(document, table(rows)))


def _with_earlier(
    rows: Sequence[str],
    scenarios: Sequence[Scenario | StoreScenario],
    document: str,
    begin: str,
    end: str,
) -> list[str]:
    """A line for each scenario: what was counted now, else what the document has."""
    known = [*rows, *document.partition(begin)[2].partition(end)[0].splitlines()]
    return [next(r for r in known if r.startswith(f"| {_name(s)} |")) for s in scenarios]


def _prepare() -> None:
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")


def _checked(line: str, counted: Tally | store_faults.StoreTally) -> str:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    counted.check()
    return line


if __name__ == "__main__":
    main()
