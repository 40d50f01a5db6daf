"""Debian's packages, installed where a test needs what the machine has not."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

_APT_SECONDS: Final = 280
_LOCK: Final = Path(tempfile.gettempdir()) / "sqsdelay-tests-apt.lock"


def install(*packages: str, unless: Callable[[], bool], instead: str = "") -> None:
    """Install packages unless what they bring is there; one process of the tests at a time.

    Args:
        instead: another remedy for who is not root.

    Raises:
        RuntimeError: something is missing, and only root may install it.
    """
    if unless():
        return
    if os.geteuid() != 0:
        raise RuntimeError(f"missing: apt-get install {' '.join(packages)}{instead}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if unless():
            return  # another process has installed it meanwhile
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            subprocess.run(
                ["apt-get", "-qq", *command],
                env=environment,
                check=True,
                timeout=_APT_SECONDS,
                stdout=subprocess.DEVNULL,
            )
