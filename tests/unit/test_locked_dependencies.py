"""What `make setup`, the functions' bundle and the CDK install: pinned, and known by its hash."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sqsdelay.cdk.function_code import PIP_OPTIONS

ROOT = Path(__file__).parents[2]
LOCKS = (
    "requirements.txt",
    "requirements-demo.txt",
    "lambdas/requirements.txt",
    "tests/fuzz/requirements.txt",
    "tests/mutants/requirements.txt",
    "tests/acceptance/task_queues/requirements.txt",
)
PIN = re.compile(r"[a-z0-9._-]+(\[[a-z,]+\])?==[^\s;]+( ; .+)?", re.IGNORECASE)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def locked(lock: str) -> dict[str, set[str]]:
    """The hashes of every requirement, as pip reads the file."""
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    found: dict[str, set[str]] = {}
    for line in lines:
        if not line or line.startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+(?=--)", line)
        # Neither an option (another index), nor an address, nor a range.
        assert PIN.fullmatch(requirement), line
        assert hashes, line
        assert all(HASH.fullmatch(one) for one in hashes), line
        found[requirement.partition(";")[0].strip()] = set(hashes)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_pinned_and_hashed(lock: str) -> None:
    """A package that was replaced on its index is not installed."""
    assert locked(lock)


@pytest.mark.parametrize("lock", ["lambdas/requirements.txt", "requirements-demo.txt"])
def test_what_runs_is_what_is_tested(lock: str) -> None:
    """The functions' packages and the demo's are those of the tests, of the same version and content."""
    tested = locked("requirements.txt")
    for requirement, hashes in locked(lock).items():
        assert hashes <= tested[requirement], requirement


def test_the_demo_installs_no_more_than_it_needs() -> None:
    """A tenth of the packages, and none of the large ones."""
    needed = {requirement.partition("==")[0] for requirement in locked("requirements-demo.txt")}
    assert {"boto3", "ministack", "rich", "setuptools", "typer"} <= needed
    assert not needed & {"pyspark", "aws-cdk-lib", "pyarrow", "mypy", "matplotlib", "pytest"}


def test_hashes_are_demanded() -> None:
    """pip compares them only if told to, should a requirement ever come without."""
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes -r requirements.txt" in makefile
    # The build, too, takes what is locked: isolated, it would fetch setuptools by itself.
    assert "--no-deps --no-build-isolation -e ." in makefile
    assert "--require-hashes" in PIP_OPTIONS


def test_the_cdks_command_line_is_known_by_its_hash() -> None:
    """`npm ci` installs what package-lock.json says, and refuses any other content."""
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    installed = {name: package for name, package in packages.items() if name}
    assert "node_modules/aws-cdk" in installed
    for name, package in installed.items():
        assert package["integrity"].startswith("sha512-"), name
    assert "npm ci " in (ROOT / "Makefile").read_text()
