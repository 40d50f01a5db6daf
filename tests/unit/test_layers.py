"""The arrows of the design: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sqsdelay"

CORE = {
    "backoff",
    "batch",
    "circuit_breaker",
    "clock",
    "decision",
    "delay",
    "dispatch_settings",
    "endpoint",
    "errors",
    "fifo",
    "ledger",
    "limits",
    "marks",
    "message",
    "message_id",
    "one_line",
    "payload",
    "ports",
    "received",
    "rejection",
    "route",
    "store",
    "stored",
    "timeout_message",
    "timeout_settings",
    "wire",
}
COST = {"cost"}
"""Arithmetic on the core's numbers and a file of prices that is part of the package."""

USE_CASES = {
    "announcements",
    "collision",
    "consumer",
    "deduplication",
    "delivery",
    "destinations",
    "dispatcher",
    "due_consumer",
    "error_queue",
    "events",
    "exactly_once",
    "forks",
    "journal",
    "migration",
    "moves",
    "offloading",
    "parking",
    "routing",
    "schedule",
    "size_limits",
    "sender",
    "status",
    "timeout_announcer",
    "timeout_arrivals",
    "timeout_dispatch",
    "timeout_manager",
    "timeout_retries",
    "timeout_task",
    "visibility",
}
ADAPTERS: dict[str, set[str]] = {
    "sqs": {"boto3", "botocore", "tenacity", "mypy_boto3_sqs"},
    "rabbitmq": {"pika", "tenacity"},
    "ledgers": set(),
    "s3": {"boto3", "botocore", "mypy_boto3_s3"},
    "stores": {
        "boto3",
        "botocore",
        "psycopg",
        "psycopg_pool",
        "mypy_boto3_dynamodb",
        "mypy_boto3_s3",
    },
}


def imports(path: Path) -> set[str]:
    """Every module a file imports, at any depth, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def rooms(path: Path) -> set[str]:
    """The rooms of sqsdelay (first name below the package) a file imports."""
    own = {name.split(".")[1] for name in imports(path) if name.startswith("sqsdelay.")}
    return {name for name in own if (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir()}


def third_party(path: Path) -> set[str]:
    top = {name.split(".")[0] for name in imports(path)}
    return top - set(sys.stdlib_module_names) - {"sqsdelay", "__future__"}


@pytest.mark.parametrize("room", sorted(CORE))
def test_core_imports_the_core_and_the_standard_library_only(room: str) -> None:
    """The core decides without I/O, so it can be tested without any."""
    path = PACKAGE / f"{room}.py"
    assert rooms(path) <= CORE
    assert third_party(path) == set()
    assert not {"os", "socket", "subprocess", "http"} & {n.split(".")[0] for n in imports(path)}


@pytest.mark.parametrize("path", sorted((PACKAGE / "cost").glob("*.py")), ids=lambda p: p.name)
def test_cost_imports_the_core_and_the_standard_library_only(path: Path) -> None:
    """What a delay costs can be worked out anywhere, without a client or a network."""
    assert rooms(path) <= CORE | COST
    assert third_party(path) == set()


@pytest.mark.parametrize("room", sorted(r for r in USE_CASES if (PACKAGE / f"{r}.py").exists()))
def test_use_cases_import_core_and_ports_only(room: str) -> None:
    """A use case works on any adapter."""
    path = PACKAGE / f"{room}.py"
    assert rooms(path) <= CORE | COST | USE_CASES
    assert third_party(path) == set()


ADAPTER_FILES = [p for name in ADAPTERS for p in sorted((PACKAGE / name).rglob("*.py"))]


@pytest.mark.parametrize("path", ADAPTER_FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_adapters_know_one_vendor(path: Path) -> None:
    """An adapter imports its own vendor, and no other adapter and no surface."""
    adapter = path.relative_to(PACKAGE).parts[0]
    assert rooms(path) <= CORE | COST | USE_CASES | {adapter}
    assert third_party(path) <= ADAPTERS[adapter]


def test_surfaces_are_imported_by_nobody() -> None:
    """The command line and the functions are the outermost layer."""
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in ("celery.py", "cli", "spark"):
            continue
        assert not rooms(path) & {"celery", "cli", "spark"}, path
        assert not {n.split(".")[0] for n in imports(path)} & {"lambdas", "infra", "tests"}, path


def test_spark_is_imported_by_its_own_room_only() -> None:
    """The core, the functions and the other commands run without it; commands load it when they run."""
    spark = {"pyspark", "pyarrow"}
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "lambdas").rglob("*.py")]:
        if not path.is_relative_to(PACKAGE / "spark") and "pipeline" not in path.parts:
            assert not third_party(path) & spark, path
    program = (
        "import sys, sqsdelay.cli, sqsdelay.spark; print({'pyspark', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout == "set()\n"
