"""How long tests wait for what must happen."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

Found = TypeVar("Found")

PATIENCE_SECONDS: Final[int] = 480
"""Ends a hang. Nothing takes this long, even beside fifteen times the work; benchmarks judge speed."""


def wait_for(
    what: Callable[[], Found], missing: str = "it did not happen", seconds: float = PATIENCE_SECONDS
) -> Found:
    """What ``what`` gives, as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, missing
        time.sleep(0.02)
    return found


def ended(
    command: Sequence[str | Path] | str, *, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; what it printed."""
    given: dict[str, Any] = {"timeout": PATIENCE_SECONDS} | more
    return subprocess.run(command, capture_output=True, text=True, check=check, **given)
