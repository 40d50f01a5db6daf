"""docs/celery.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "celery.md"


def guide_blocks(language: str) -> list[str]:
    """The guide's code blocks in one language."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
