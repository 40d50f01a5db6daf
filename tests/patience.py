"""How long tests wait for what must happen."""

from __future__ import annotations

from typing import Final

PATIENCE_SECONDS: Final[int] = 480
"""Ends a hang. Nothing takes this long, even beside fifteen times the work; benchmarks judge speed."""
