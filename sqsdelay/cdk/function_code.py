"""The functions' code: one archive of the handlers, our modules and their pinned dependencies.

An installed package brings the archive, which `make dist` puts into the wheel. In a checkout it is built
when it is first asked for. Either way the same code is the same archive, byte for byte.
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
ARCHIVE: Final = "sqsdelay/cdk/functions.zip"
"""Where a wheel has it."""

GUARD: Final = "lambdas/removal_guard/handler.py"
"""In the archive for installed packages only: it is deployed within the template."""

_ROOMS: Final = (
    *("core", "ports", "ledger", "opentelemetry", "sending", "relaying", "parking", "dispatching"),
    *("sqs", "stores", "stores/dynamodb", "stores/s3", "stores/scheduler"),
)
"""What the functions need of the package; of the stores those that are deployed."""

SOURCES: Final = (
    *("lambdas/*.py", "lambdas/*/*.py"),
    *(f"sqsdelay/{name}.py" for name in ("__init__", "errors")),
    *(f"sqsdelay/cdk/{name}.py" for name in ("__init__", "function_names")),
    *(f"sqsdelay/{room}/*.py" for room in _ROOMS),
)

REQUIREMENTS: Final = "lambdas/requirements.txt"
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
    """The functions' code could not be put together."""


def functions_archive(root: Path = ROOT, build: Path = BUILD) -> Path:
    """The archive to deploy: an installed package's, or one built unless the same inputs were built before.
    boto3 is left out: Lambda's Python runtime brings it. Raises FunctionCodeError: pip could not fetch the
    pinned dependencies; or an installation has no archive. ``root``: the checkout, or the installation, to
    take it from. ``build``: where to put it; outside what git tracks."""
    shipped = root / ARCHIVE
    if shipped.exists():
        return shipped
    if not (root / REQUIREMENTS).exists():
        raise FunctionCodeError(
            "this installation of sqsdelay has no archive of the functions; run `make dist` in a checkout "
            "and install the wheel that it puts into dist/"
        )
    archive = built_archive(root, build)
    if not archive.exists():
        build.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=build) as scratch:
            _build(root, Path(scratch) / "code", Path(scratch) / archive.name)
            os.replace(Path(scratch) / archive.name, archive)
    return archive


def built_archive(root: Path = ROOT, build: Path = BUILD) -> Path:
    """Where the archive of a checkout's sources is, once it was built: its name tells all that goes in."""
    digest = hashlib.sha256(repr((PIP_OPTIONS, _UNUSED, _UNUSED_POWERTOOLS)).encode())
    for path in (root / REQUIREMENTS, *_sources(root)):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return build / f"functions-{digest.hexdigest()[:16]}.zip"


def _sources(root: Path) -> list[Path]:
    return [path for pattern in SOURCES for path in sorted(root.glob(pattern))]


def guard_source(root: Path = ROOT) -> str:
    """The removal guard's one file."""
    if (root / GUARD).exists():
        return (root / GUARD).read_text(encoding="utf-8")
    with zipfile.ZipFile(functions_archive(root)) as archive:
        return archive.read(GUARD).decode()


def _build(root: Path, code: Path, archive: Path) -> None:
    """Put dependencies and sources together in the folder ``code``, and all of it into an archive."""
    _install(root / REQUIREMENTS, code)
    for source in _sources(root):
        target = code / source.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        for path in sorted(code.rglob("*")):
            if path.is_file():
                # The time and the rights of a file here are no part of the code.
                entry = zipfile.ZipInfo(path.relative_to(code).as_posix())
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                zipped.writestr(entry, path.read_bytes())


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
            f"pip could not fetch {requirements.name} of the functions: {last}; "
            "check the connection to the package index and try again"
        )
    for pattern in _UNUSED:
        for path in sorted(target.rglob(pattern)):
            shutil.rmtree(path, ignore_errors=True)
    for unused in _UNUSED_POWERTOOLS:
        shutil.rmtree(target / "aws_lambda_powertools" / unused, ignore_errors=True)
