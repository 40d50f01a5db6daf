"""Mutants that no test notices: which are known to mean the same, and what is said of the others."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

EQUIVALENT = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True)
class Survivor:
    """A mutant, by mutmut's name, and by what it changes, which stays when the name's number moves.

    Args:
        where: the module's own name and the function, e.g. ``delay.delay_ms``.
        change: the lines taken away and those put in their place, without their indentation.
    """

    name: str
    where: str
    change: str

    @classmethod
    def of(cls, name: str, diff: str) -> Survivor:
        module, _, function = name.rpartition("__mutmut_")[0].rpartition(".")
        lines = [line for line in diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]
        return cls(
            name,
            f"{module.rpartition('.')[2]}.{_unmangled(function)}",
            "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines),
        )


def _unmangled(function: str) -> str:
    """mutmut's ``x_name`` and ``xǁClassǁname`` as Python has them."""
    return function.removeprefix("xǁ").removeprefix("x_").replace("ǁ", ".")


def read_equivalents(path: Path = EQUIVALENT) -> dict[tuple[str, str], str]:
    """Why a mutant means the same, by where it is and what it puts there."""
    return {
        (mutant["where"], mutant["becomes"]): group["why"]
        for group in tomllib.loads(path.read_text())["group"]
        for mutant in group["mutants"]
    }


def report(
    survivors: Sequence[Survivor],
    *,
    tried: int,
    equivalents: Mapping[tuple[str, str], str],
    limit_percent: float,
) -> tuple[str, bool]:
    """What a run ends with, and whether it has failed."""
    lines, counted = [], []
    for survivor in survivors:
        why = equivalents.get((survivor.where, _becomes(survivor.change)))
        if why is None:
            counted.append(survivor)
        else:
            lines.append(f"the same: {survivor.name}: {why}")
    for survivor in counted:
        lines += [f"survives: {survivor.name}", *(f"    {x}" for x in survivor.change.split("\n"))]
    percent = 100 * len(counted) / tried if tried else 100.0
    failed = percent >= limit_percent
    example = counted[0].name if counted else "NAME"
    lines += [
        f"{len(counted)} of {tried} mutants survive: {percent:.1f} %, "
        f"{'which is not' if failed else 'which is'} below {limit_percent} % "
        f"({len(survivors) - len(counted)} more mean the same)",
        f"look at one: .venv/bin/mutmut show {example}",
    ]
    return "\n".join(lines), failed


def _becomes(change: str) -> str:
    """What is put in: the last new line that has no equal among the old; or the first one taken away."""
    added = [line[2:] for line in change.split("\n") if line.startswith("+")]
    taken = [line[2:] for line in change.split("\n") if line.startswith("-")]
    new = [line for line in added if line not in taken] or [f"without {taken[0]}"]
    return new[-1]
