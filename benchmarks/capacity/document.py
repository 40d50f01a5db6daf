"""The page that shows the figures, with a block for each table."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"
DOCUMENT: Final = DOCS / "capacity.md"
BEGIN: Final = "<!-- made by benchmarks.capacity: begin {} -->"
END: Final = "<!-- made by benchmarks.capacity: end {} -->"


def rewritten(document: str, name: str, made: str) -> str:
    """The document with another block of that name.

    Raises:
        ValueError: the document has no such block.
    """
    begin, end = BEGIN.format(name), END.format(name)
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"docs/capacity.md has no block {name!r}; add {begin} and {end}")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"
