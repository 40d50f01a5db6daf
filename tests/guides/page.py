"""A page of the documentation, and the blocks of code on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, its text, and where it stands."""

    page: str
    number: int
    language: str
    text: str

    def commands(self) -> list[str]:
        """The commands of a console block, one a line, continued lines joined."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        return [line for line in joined.splitlines() if line and not line.startswith("#")]


def pages() -> list[str]:
    """README and every page of the documentation, as paths from the root."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order; the numbers count those that can be run."""
    found: list[Block] = []
    number = 0
    for language, text in _FENCE.findall((ROOT / page).read_text()):
        found.append(Block(page, number, language, text))
        number += language in ("console", "bash", "python")
    return found


def runnable(page: str) -> list[Block]:
    """The blocks of commands and of Python."""
    return [block for block in blocks(page) if block.language in ("console", "bash", "python")]
