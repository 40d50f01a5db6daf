"""A function's code: our modules and their pinned dependencies, nothing else.

In a checkout it is a plain folder, built when it is first asked for. An installed package brings it as
an archive, put together when the wheel was built.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from sqsdelay.errors import SqsDelayError

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build" / "functions"
ARCHIVES: Final = "sqsdelay/lambdas/archives"
"""Where a wheel has the archives."""

FUNCTIONS: Final = ("delay_consumer", "dispatcher")
"""Those with code of the package; the removal guard is in its template."""

SOURCES: Final = (
    "sqsdelay/lambdas/__init__.py",
    "sqsdelay/lambdas/powertools_*.py",
    "sqsdelay/lambdas/relay*.py",
    "sqsdelay/lambdas/settings.py",
    "sqsdelay/__init__.py",
    "sqsdelay/errors.py",
    "sqsdelay/limits.py",
    "sqsdelay/core/*.py",
    "sqsdelay/ports/*.py",
    "sqsdelay/ledger/*.py",
    "sqsdelay/opentelemetry/*.py",
    "sqsdelay/sending/*.py",
    "sqsdelay/relaying/*.py",
    "sqsdelay/parking/*.py",
    "sqsdelay/dispatching/*.py",
    "sqsdelay/sqs/*.py",
    "sqsdelay/stores/*.py",
    "sqsdelay/stores/dynamodb/*.py",
    "sqsdelay/stores/s3/*.py",
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
    """The delay consumer's code to deploy: an installed package's archive, or a folder, built unless
    the same inputs were built before.

    boto3 is left out: Lambda's Python runtime brings it.

    Args:
        root: the checkout, or the installation, to take it from.
        build: where to put the folder; outside what git tracks.

    Raises:
        FunctionCodeError: pip could not fetch the pinned dependencies.
    """
    return _code("delay_consumer", root, build)


def dispatcher_code(root: Path = ROOT, build: Path = BUILD) -> Path:
    """The dispatcher's code to deploy, as `delay_consumer_code` is the delay consumer's."""
    return _code("dispatcher", root, build)


def write_archives(target: Path, root: Path = ROOT, build: Path = BUILD) -> list[Path]:
    """Write each function's code into ``target`` as ``<function>.zip``, for Lambda to take.

    The same code makes the same archive, byte for byte: whoever compares hashes deploys nothing new.

    Raises:
        FunctionCodeError: pip could not fetch the pinned dependencies.
        OSError: ``target`` cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for function in FUNCTIONS:
        code, archive = _code(function, root, build), target / f"{function}.zip"
        if code.is_dir():
            _zip(code, archive)
        else:
            shutil.copyfile(code, archive)
        written.append(archive)
    return written


def _zip(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                # The time and the rights of a file here are no part of the code.
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                zipped.writestr(entry, path.read_bytes())


def _code(function: str, root: Path, build: Path) -> Path:
    archive = root / ARCHIVES / f"{function}.zip"
    return archive if archive.exists() else _built(function, root, build)


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
