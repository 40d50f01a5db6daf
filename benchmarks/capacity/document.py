"""The page that shows the figures, with a block for each table."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.support import blocks

DOCS: Final = Path(__file__).parents[2] / "docs"
DOCUMENT: Final = DOCS / "capacity.md"


def rewritten(document: str, name: str, made: str) -> str:
    """The document with another block of that name.

    Raises:
        ValueError: the document has no such block.
    """
    return blocks.rewritten(document, "benchmarks.capacity", name, made)
