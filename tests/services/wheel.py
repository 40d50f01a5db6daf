"""The wheel of this repository, and environments outside it in which it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from sqsdelay.cdk.function_code import functions_archive
from tests.patience import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parents[2]


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run to the end; returns what it printed."""
    arguments = [str(part) for part in command]
    done = subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package_files(folder: Path) -> set[str]:
    """What of the package stands in a folder."""
    return {
        str(path.relative_to(folder))
        for path in (folder / "sqsdelay").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def build_wheel(folder: Path) -> Path:
    """Built from a copy: a build in place would pick up what an earlier one left behind."""
    sources = folder / "sources"
    functions = {
        str(p.relative_to(ROOT)) for p in (ROOT / "lambdas").rglob("*.*") if p.suffix != ".pyc"
    }
    built = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"}
    # The archive as after an earlier build of the same sources: nothing is fetched again.
    archive = str(functions_archive().relative_to(ROOT))
    for name in package_files(ROOT) | functions | built | {archive}:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, sources / name)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "-w", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, sources)
    (wheel,) = folder.glob("sqsdelay-*.whl")
    return wheel


def install_wheel(wheel: Path, folder: Path) -> Path:
    """A fresh environment with the wheel; returns its Python.

    The dependencies are this environment's: they are the pinned ones.
    """
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel)
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(here)
    return python
