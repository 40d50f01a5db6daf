"""The folder is the layer: who may import whom is read off each module's path."""

from __future__ import annotations

import ast
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.patience import ended

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sqsdelay"

TOP = {"__init__", "errors", "celery", "dramatiq", "taskiq", "s3"}
"""The only files directly under the package: its door, what everybody uses, and what is one file: task
queues' transports and large bodies."""

CORE = {"core"}
PORTS = {"ports", "ledger"}
USE_CASES: dict[str, set[str]] = {
    "sending": {"parking"},
    "relaying": {"parking"},
    "parking": set(),
    "dispatching": set(),
    "timeouts": {"dispatching"},
    "receiving": set(),
    "operating": {"parking", "sending"},
}
"""Each room of use cases, and the other rooms of use cases it stands on."""

ADAPTERS: dict[str, set[str]] = {
    "sqs": {"boto3", "botocore", "tenacity", "mypy_boto3_sqs", "pycurl"},
    "rabbitmq": {"pika", "tenacity"},
    "s3": {"boto3", "botocore", "mypy_boto3_s3"},
    "ledger/firehose": {"boto3", "botocore"},
    "stores": set(),
    "stores/shared": {"boto3", "botocore", "urllib3"},
    "stores/sqlite": set(),
    "stores/postgres": {"psycopg", "psycopg_pool"},
    "stores/s3": {"boto3", "botocore", "mypy_boto3_s3"},
    "stores/dynamodb": {"boto3", "botocore", "mypy_boto3_dynamodb", "tenacity"},
    "stores/scheduler": {"boto3", "botocore"},
}
"""Each adapter, and what it may import besides the standard library: one vendor."""

SURFACES = {
    "cdk",
    "celery",
    "cli",
    "console",
    "cost",
    "dramatiq",
    "lambdas",
    "opentelemetry",
    "spark",
    "taskiq",
    "testing",
}

WHERE = (
    "a decision without I/O belongs in sqsdelay/core, what a use case needs from outside in "
    "sqsdelay/ports, a use case in one of sqsdelay/{"
    + ",".join(USE_CASES)
    + "}, a vendor's API in an "
    "adapter (sqsdelay/{sqs,rabbitmq,s3,stores}), what users touch in a surface "
    "(sqsdelay/{" + ",".join(sorted(SURFACES - TOP)) + "})"
)


UNTIE = "a circle of imports; move what both need into a module below them, or pass it in"


def module_name(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(path: Path) -> str:
    """The room a file is in: its folder below the package; of a file at the top its own name."""
    first, *rest = path.relative_to(PACKAGE).parts
    if not rest:
        return Path(first).stem
    if (first, *rest) == ("ledger", "firehose.py"):
        return "ledger/firehose"  # an adapter beside the files that a ledger may be
    if first == "stores" and rest != ["__init__.py"]:
        # A vendor's room each; beside them what they share, and the door that opens them.
        return f"stores/{rest[0]}" if len(rest) > 1 else "stores/shared"
    return first


def imports(path: Path) -> tuple[str, ...]:
    """Every module a file imports, at any depth, under TYPE_CHECKING too, as dotted names."""
    return _imported(path, path.read_text())


@cache
def _imported(path: Path, source: str) -> tuple[str, ...]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def own_files(path: Path) -> set[Path]:
    """The files of the package that a file imports."""
    found = set()
    for name in imports(path):
        if name.split(".")[0] != "sqsdelay":
            continue
        for parts in (name.split("."), name.split(".")[:-1]):
            module = PACKAGE.joinpath(*parts[1:])
            # What is left of a package that is gone, a folder of compiled modules, is none.
            places = (module / "__init__.py", module.with_suffix(".py"))
            if file := next((place for place in places if place.exists()), None):
                found.add(file)
                break
        else:
            raise AssertionError(f"{path} imports {name}, which is not there")
    return found - {path}


def third_party(path: Path) -> set[str]:
    """What a file imports from other distributions."""
    top = {name.split(".")[0] for name in imports(path)}
    return top - set(sys.stdlib_module_names) - {"sqsdelay", "__future__"}


def allowed_rooms(name: str) -> set[str]:
    """The rooms that a file of this room may import, its own included."""
    everybody = {"errors"} | CORE
    if name == "errors":
        return {"errors"}
    if name in CORE:
        return everybody
    if name in PORTS:
        return everybody | PORTS
    if name in USE_CASES:
        return everybody | PORTS | {name} | USE_CASES[name]
    if name == "stores":
        return everybody | PORTS | {each for each in ADAPTERS if each.startswith("stores")}
    if name.startswith("stores/"):
        return everybody | PORTS | set(USE_CASES) | {name, "stores/shared"}
    if name in ADAPTERS:
        return everybody | PORTS | set(USE_CASES) | {name}
    return everybody | PORTS | set(USE_CASES) | set(ADAPTERS) | SURFACES | {"__init__"}


def complaint(path: Path) -> str | None:
    """What is wrong with a file's place or its imports, and where it belongs; None for nothing."""
    name, shown = room(path), path.relative_to(PACKAGE.parent)
    known = TOP | CORE | PORTS | set(USE_CASES) | set(ADAPTERS) | SURFACES
    if name not in known:
        return f"{shown}: {name!r} is no room of the package; {WHERE}"
    wrong = sorted({room(file) for file in own_files(path)} - allowed_rooms(name))
    if name == "__init__":
        wrong = []
    if wrong:
        return f"{shown} imports {', '.join(wrong)}, a layer above or beside it; {WHERE}"
    inner = {"errors"} | CORE | PORTS | set(USE_CASES)
    vendors = third_party(path) - ADAPTERS.get(name, set())
    if vendors and (name in inner or name in ADAPTERS):
        return f"{shown} imports {', '.join(sorted(vendors))}, which its room may not; {WHERE}"
    impure = {"os", "socket", "subprocess", "http"} & {n.split(".")[0] for n in imports(path)}
    if impure and name in CORE:
        return f"{shown} imports {', '.join(sorted(impure))}: the core does no I/O; {WHERE}"
    return None


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_what_its_folder_may(path: Path) -> None:
    """The folder is the layer: core, ports and ledger, use cases, adapters, surfaces."""
    assert complaint(path) is None


@pytest.mark.parametrize(
    ("place", "source", "words"),
    [
        ("reminders.py", "import boto3\n", "'reminders' is no room of the package"),
        ("core/reminders.py", "import boto3\n", "imports boto3, which its room may not"),
        ("core/reminders.py", "import os\n", "the core does no I/O"),
        ("core/reminders.py", "from sqsdelay.sqs.client import default_client\n", "imports sqs"),
        ("sending/reminders.py", "from sqsdelay.relaying.relay import Relay\n", "imports relaying"),
        ("sqs/reminders.py", "import psycopg\n", "imports psycopg"),
        ("sqs/reminders.py", "from sqsdelay.cli import main\n", "imports cli"),
    ],
)  # fmt: skip
def test_a_misplaced_module_is_told_where_it_belongs(
    place: str, source: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's new file fails with a sentence that says which room is the right one."""
    monkeypatch.setattr(Path, "read_text", lambda self, *a, **k: source)
    told = complaint(PACKAGE / place)
    assert told is not None
    assert words in told
    assert "belongs in sqsdelay/core" in told


def circles(files: dict[str, set[str]]) -> list[str]:
    """The modules of a circle of imports; empty where there is none."""
    try:
        TopologicalSorter(files).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_circle() -> None:
    """No module imports itself by way of others, imports under TYPE_CHECKING included."""
    arrows = {
        module_name(path): {
            module_name(file) for file in own_files(path) if file != PACKAGE / "__init__.py"
        }
        for path in FILES
    }
    circle = circles(arrows)
    assert not circle, f"{' imports '.join(circle)}: {UNTIE}"


def test_no_circle_of_rooms() -> None:
    """Nor does a room."""
    arrows: dict[str, set[str]] = {}
    for path in FILES:
        if path != PACKAGE / "__init__.py":
            here = arrows.setdefault(room(path), set())
            here |= {room(file) for file in own_files(path)} - {room(path), "__init__"}
    circle = circles(arrows)
    assert not circle, f"{' imports '.join(circle)}: {UNTIE}"


def test_a_circle_is_noticed() -> None:
    """The test above can fail."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


def test_nothing_outside_is_imported() -> None:
    """The package stands without the app that deploys it and without the tests."""
    for path in FILES:
        assert not {n.split(".")[0] for n in imports(path)} & {"infra", "tests"}, path


def test_spark_is_imported_by_its_own_room_only() -> None:
    """The core, the functions and the other commands run without it; commands load it when they run."""
    spark = {"pyspark", "pyarrow"}
    pipeline = {PACKAGE / "cli" / f"{name}.py" for name in ("cost", "pipeline", "spark_job")}
    for path in FILES:
        if not path.is_relative_to(PACKAGE / "spark") and path not in pipeline:
            assert not third_party(path) & spark, path
    program = (
        "import sys, sqsdelay.cli, sqsdelay.spark; print({'pyspark', 'pyarrow'} & set(sys.modules))"
    )
    assert ended([sys.executable, "-c", program], check=True).stdout == "set()\n"
