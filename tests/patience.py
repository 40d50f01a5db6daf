"""How long tests wait for what must happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

Found = TypeVar("Found")

PATIENCE_SECONDS: Final[int] = 480
"""Ends a hang. Nothing takes this long, even beside fifteen times the work; benchmarks judge speed."""


def wait_for(
    what: Callable[[], Found],
    missing: str = "it did not happen",
    seconds: float = PATIENCE_SECONDS,
) -> Found:
    """What ``what`` gives, as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, missing
        time.sleep(0.02)
    return found
