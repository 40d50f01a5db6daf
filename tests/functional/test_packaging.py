"""The wheel built from this repository: complete, installable, and quick to import."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
EXTRAS = {
    "demo", "lambda", "postgres", "cdk", "rabbitmq", "spark", "report", "celery", "dramatiq", "taskiq",
    "console", "opentelemetry", "docs", "dev",
}  # fmt: skip


def run(*command: str | Path, folder: Path = ROOT) -> str:
    arguments = [str(part) for part in command]
    done = subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package_files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in (folder / "sqsdelay").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build in place would pick up what an earlier one left behind."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("built")
    for name in package_files(ROOT) | {"pyproject.toml", "README.md", "LICENSE"}:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, sources / name)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "-w", built)
    run(sys.executable, "-m", "pip", "wheel", *options, sources)
    (wheel,) = built.glob("sqsdelay-*.whl")
    return wheel


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_carries_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    """Modules, SQL, prices, templates, the type marker; no tests, no infrastructure code."""
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert carried == package_files(ROOT)
    assert {"sqsdelay/py.typed", "sqsdelay/cost/prices.json"} <= carried
    assert {"sqsdelay/stores/postgres/store.sql", "sqsdelay/stores/sqlite/store.sql"} <= carried


def test_installed_alone_it_runs(wheel: Path, tmp_path: Path) -> None:
    """In a fresh environment the command starts; the package data is where the code looks for it."""
    venv, python = tmp_path / "venv", tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel)
    # The dependencies are this environment's: they are the pinned ones.
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(here)

    def ask(program: str) -> str:
        return run(python, "-c", program, folder=tmp_path)

    assert str(site) in ask("import sqsdelay; print(sqsdelay.__file__)")
    assert "Usage: sqsdelay" in run(venv / "bin" / "sqsdelay", "--help", folder=tmp_path)
    cost = run(venv / "bin" / "sqsdelay", "cost", "--delay", "365d", folder=tmp_path)
    assert "0.03504" in cost
    store = (
        "from sqsdelay.stores import open_store as o; s = o('sqlite:///s.db', endpoint='orders')"
    )
    assert ask(f"{store}; s.set_up(); print(s.pending_count())") == "0\n"


def test_every_extra_resolves_to_what_the_lock_file_pins(wheel: Path) -> None:
    """Each requirement has its pin, and the pin satisfies it; tests run with exactly these."""
    text = (ROOT / "requirements.txt").read_text()
    pins = {
        canonicalize_name(name): Version(version)
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*?\])?==([^ ;\\]+)", text, re.M)
    }
    told = metadata(wheel)
    assert set(told.get_all("Provides-Extra", [])) == EXTRAS
    unmet = []
    for line in told.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name == "sqsdelay":
            assert requirement.extras <= EXTRAS
        elif name not in pins or pins[name] not in requirement.specifier:
            unmet.append(line)
    assert unmet == []


@pytest.mark.parametrize(
    "module", ["sqsdelay", "sqsdelay.core.message", "sqsdelay.sending.sender", "sqsdelay.core.wire"]
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    """Not a vendor's library, not an event loop, no command line: those come with their first use."""
    heavy = (
        "aiohttp", "asyncio", "boto3", "botocore", "celery", "jinja2", "kombu", "matplotlib", "numpy",
        "pandas", "pika", "psycopg", "pyarrow", "pyspark", "requests", "rich", "ssl", "tenacity",
        "typer", "urllib3",
    )  # fmt: skip
    program = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    assert run(sys.executable, "-c", program).strip() == "[]"
