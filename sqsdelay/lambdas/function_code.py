"""A function's code as a plain folder: our modules and their pinned dependencies, nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from sqsdelay.errors import SqsDelayError

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build" / "functions"
SOURCES: Final = (
    "sqsdelay/lambdas/__init__.py",
    "sqsdelay/lambdas/powertools_*.py",
    "sqsdelay/*.py",
    "sqsdelay/core/*.py",
    "sqsdelay/ports/*.py",
    "sqsdelay/ledger/*.py",
    "sqsdelay/processes/*.py",
    "sqsdelay/sending/*.py",
    "sqsdelay/relaying/*.py",
    "sqsdelay/parking/*.py",
    "sqsdelay/dispatching/*.py",
    "sqsdelay/sqs/*.py",
    "sqsdelay/stores/*.py",
    "sqsdelay/stores/dynamodb/*.py",
    "sqsdelay/stores/scheduler/*.py",
)
"""What both functions need, beside their own folders under lambdas; of the stores those that
are deployed."""

REQUIREMENTS: Final = "sqsdelay/lambdas/requirements.txt"
PYTHON_VERSION: Final = "3.14"
PIP_OPTIONS: Final = (
    "--require-hashes",
    "--no-deps",
    "--no-compile",
    "--only-binary=:all:",
    "--implementation=cp",
    f"--python-version={PYTHON_VERSION}",
    "--platform=manylinux2014_aarch64",
)
_UNUSED: Final = ("*.dist-info", "bin", "__pycache__")
_UNUSED_POWERTOOLS: Final = ("event_handler/openapi",)


class FunctionCodeError(SqsDelayError):
    """The function's code could not be put together."""


def delay_consumer_code(root: Path = ROOT, build: Path = BUILD) -> Path:
    """The delay consumer's folder to deploy, built unless the same inputs were built before.

    boto3 is left out: Lambda's Python runtime brings it.

    Args:
        root: the checkout to take sources and requirements from.
        build: where to put the folder; outside what git tracks.

    Raises:
        FunctionCodeError: pip could not fetch the pinned dependencies.
    """
    return _built("delay_consumer", root, build)


def dispatcher_code(root: Path = ROOT, build: Path = BUILD) -> Path:
    """The dispatcher's folder to deploy, as `delay_consumer_code` is the delay consumer's."""
    return _built("dispatcher", root, build)


def _built(function: str, root: Path, build: Path) -> Path:
    sources = [
        path
        for pattern in (f"sqsdelay/lambdas/{function}/*.py", *SOURCES)
        for path in sorted(root.glob(pattern))
    ]
    folder = build / f"{function}-{_fingerprint(root, sources)}"
    if folder.is_dir():
        return folder
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as scratch:
        made = Path(scratch) / "code"
        _install(root / REQUIREMENTS, made)
        for source in sources:
            target = made / source.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        try:
            os.rename(made, folder)
        except OSError:
            # Another synth was faster: its folder came from the same inputs.
            if not folder.is_dir():
                raise
    return folder


def _fingerprint(root: Path, sources: list[Path]) -> str:
    """Names the inputs: the same in any directory."""
    digest = hashlib.sha256(repr((PIP_OPTIONS, _UNUSED, _UNUSED_POWERTOOLS)).encode())
    for path in (root / REQUIREMENTS, *sources):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _install(requirements: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, *PIP_OPTIONS, "--target", str(target), "--requirement", str(requirements)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise FunctionCodeError(
            f"pip could not fetch {requirements.name} of the function: {last}; "
            "check the connection to the package index and try again"
        )
    for pattern in _UNUSED:
        for path in sorted(target.rglob(pattern)):
            shutil.rmtree(path, ignore_errors=True)
    for unused in _UNUSED_POWERTOOLS:
        shutil.rmtree(target / "aws_lambda_powertools" / unused, ignore_errors=True)
