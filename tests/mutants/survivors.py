"""Mutants that no test notices: which are known to mean the same, and what is said of the others."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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

    @property
    def is_less_strict(self) -> bool:
        """Whether nothing but a zip's ``strict=True`` is changed."""
        sides = {"-": "", "+": ""}
        for line in self.change.splitlines():
            sides[line[0]] += line[2:]
        plain = {re.sub(r",\s*(strict=\w+)?,?\s*(?=\))", "", text) for text in sides.values()}
        return "strict=True" in sides["-"] and len(plain) == 1


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


def room_of(name: str) -> str:
    """The room a mutant is in, by mutmut's name of it or a path below the package."""
    return re.split(r"[./]", name)[1]


def report(
    survivors: Sequence[Survivor],
    *,
    tried: Mapping[str, int],
    equivalents: Mapping[tuple[str, str], str],
    limit_percent: float,
    modules: Collection[str] | None = None,
) -> tuple[str, bool]:
    """What a run ends with, a line for each room, and whether any of them has failed.

    An entry of equivalent.toml that no survivor matches fails the run: its code has changed, or a test
    notices it after all.

    Args:
        tried: how many mutants, by room.
        modules: those that were tried; None for all.
    """
    lines, counted = [], []
    stale = {k for k in equivalents if modules is None or k[0].partition(".")[0] in modules}
    for survivor in survivors:
        key = survivor.where, _becomes(survivor.change)
        stale.discard(key)
        why = equivalents.get(key)
        if why is None and survivor.is_less_strict:
            why = "zip is told to be strict where both are of one length: it would say if we were wrong."
        if why is None:
            counted.append(survivor)
        else:
            lines.append(f"the same: {survivor.name}: {why}")
    for survivor in counted:
        lines += [f"survives: {survivor.name}", *(f"    {x}" for x in survivor.change.split("\n"))]
    left = Counter(room_of(survivor.name) for survivor in counted)
    same = Counter(room_of(survivor.name) for survivor in survivors) - left
    lines += [f"matches no survivor, take it out: {where}: {line}" for where, line in sorted(stale)]
    failed = not tried or bool(stale)
    for room, number in sorted(tried.items()):
        percent = 100 * left[room] / number
        failed = failed or percent >= limit_percent
        lines.append(
            f"{room}: {left[room]} of {number} mutants survive: {percent:.1f} %, "
            f"{'which is not' if percent >= limit_percent else 'which is'} below {limit_percent} % "
            f"({same[room]} more mean the same)"
        )
    example = counted[0].name if counted else "NAME"
    return "\n".join([*lines, f"look at one: .venv/bin/mutmut show {example}"]), failed


def _becomes(change: str) -> str:
    """What is put in: the last new line that has no equal among the old; or the first one taken away."""
    added = [line[2:] for line in change.split("\n") if line.startswith("+")]
    taken = [line[2:] for line in change.split("\n") if line.startswith("-")]
    new = [line for line in added if line not in taken] or [f"without {taken[0]}"]
    return new[-1]
