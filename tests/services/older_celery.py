"""Older Celerys, each with its kombu, in folders that go before this Python's packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.services.processes import ROOT

VERSIONS: Final = {"5.5.3": "5.5.4", "5.6.3": "5.6.2"}
"""Of Celery, and of kombu: the last of each series."""

_INSTALL_SECONDS: Final = 280


def packages(version: str) -> Path:
    """The folder with this Celery, installed from PyPI the first time."""
    folder = ROOT / "build" / f"celery-{version}"
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wanted = [f"celery=={version}", f"kombu=={VERSIONS[version]}"]
        subprocess.run(
            [*pip, "--no-deps", "--target", str(folder), *wanted],
            check=True,
            timeout=_INSTALL_SECONDS,
        )
        (folder / "installed").touch()
    return folder
