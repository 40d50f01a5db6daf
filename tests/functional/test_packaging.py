"""The wheel built from this repository: complete, installable, and quick to import."""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sqsdelay.cdk.function_code import ARCHIVE, FunctionCodeError, functions_archive
from tests.services.packages import build_wheel, install_wheel, package_files, run

ROOT = Path(__file__).parents[2]
EXTRAS = {
    "demo", "lambda", "postgres", "cdk", "rabbitmq", "spark", "report", "celery", "dramatiq", "taskiq",
    "console", "opentelemetry", "curl", "docs", "dev",
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once."""
    return build_wheel(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that has the wheel."""
    return install_wheel(wheel, tmp_path_factory.mktemp("fresh") / "venv")


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_carries_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    """Modules, SQL, prices, templates, the type marker, the functions' archives; no tests, no app."""
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert carried == package_files(ROOT) | {ARCHIVE}
    assert {"sqsdelay/py.typed", "sqsdelay/cost/prices.json"} <= carried
    assert {
        f"sqsdelay/stores/{place}store.sql" for place in ("", "postgres/", "sqlite/")
    } <= carried


def test_installed_alone_it_runs(python: Path, tmp_path: Path) -> None:
    """In a fresh environment the command starts; the package data is where the code looks for it."""

    def ask(program: str) -> str:
        return run(python, "-c", program, folder=tmp_path)

    assert str(python.parents[1]) in ask("import sqsdelay; print(sqsdelay.__file__)")
    command = python.with_name("sqsdelay")
    assert "Usage: sqsdelay" in run(command, "--help", folder=tmp_path)
    assert "0.03504" in run(command, "cost", "--delay", "365d", "--all", folder=tmp_path)
    store = (
        "from sqsdelay.stores import open_store as o; s = o('sqlite:///s.db', endpoint='orders')"
    )
    assert ask(f"{store}; s.set_up(); print(s.pending_count())") == "0\n"
    demo = json.loads(run(command, "demo", "--hop", "1", "--json", folder=tmp_path))
    assert (demo["sent"], demo["delivered"], demo["lost"]) == (36, 36, 0)


def test_an_app_of_another_repository_deploys_what_this_checkout_does(
    python: Path, tmp_path: Path
) -> None:
    """The guide's app, in a folder of its own, without a build, a checkout, or our feature flags: its
    template and its functions are the same, hash for hash."""
    guide = (ROOT / "docs" / "deploy.md").read_text()
    (app,) = re.findall(r"```python\n(from aws_cdk import App.*?)```", guide, re.DOTALL)
    (tmp_path / "app.py").write_text(app)
    run("env", f"CDK_OUTDIR={tmp_path / 'wheel'}", python, "app.py", folder=tmp_path)
    exec(app.replace("App()", f"App(outdir={str(tmp_path / 'checkout')!r})"), {})
    made = []
    for folder in (tmp_path / "wheel", tmp_path / "checkout"):
        made.append((folder / "shop.template.json").read_text())
        (asset,) = folder.glob("asset.*.zip")
        assert asset.read_bytes() == functions_archive().read_bytes()
    assert made[0] == made[1]
    kinds = {resource["Type"] for resource in json.loads(made[0])["Resources"].values()}
    assert {"AWS::SQS::Queue", "AWS::Lambda::Function", "AWS::CloudWatch::Alarm"} <= kinds
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    assert not list(site.glob("build/*"))


def test_an_sdist_has_what_a_wheel_is_built_from(wheel: Path) -> None:
    """The functions' handlers and pins too."""
    sources = wheel.parent / "sources"
    program = "from setuptools import build_meta as b; print(b.build_sdist('.'))"
    name = run(sys.executable, "-c", program, folder=sources).splitlines()[-1]
    with tarfile.open(sources / name) as archive:
        held = {member.partition("/")[2] for member in archive.getnames()}
    functions = {
        str(p.relative_to(ROOT)) for p in (ROOT / "lambdas").rglob("*.*") if p.suffix != ".pyc"
    }
    assert functions <= held
    assert package_files(ROOT) <= held


def test_a_wheel_without_the_archive_says_how_to_get_one(tmp_path: Path) -> None:
    """A build fetches nothing: where none was built before, there is none, and one line tells it."""
    with zipfile.ZipFile(build_wheel(tmp_path, archive=False)) as wheel:
        assert ARCHIVE not in wheel.namelist()
        wheel.extractall(tmp_path / "site")
    with pytest.raises(FunctionCodeError, match=r"no archive of the functions; run `make dist`"):
        functions_archive(tmp_path / "site")


def test_the_description_shows_on_an_index(wheel: Path) -> None:
    """Which has no files beside it."""
    targets = re.findall(r"\]\(([^)]*)\)", str(metadata(wheel).get_payload()))
    assert len(targets) > 30
    assert [each for each in targets if not each.startswith("https://")] == []


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


@pytest.mark.parametrize("module", ["sqsdelay", "sqsdelay.core.message", "sqsdelay.sending.sender"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    """Not a vendor's library, not an event loop, no command line: those come with their first use."""
    heavy = (
        "aiohttp", "asyncio", "boto3", "botocore", "celery", "jinja2", "kombu", "matplotlib", "numpy",
        "pandas", "pika", "psycopg", "pyarrow", "pyspark", "requests", "rich", "ssl", "tenacity",
        "typer", "urllib3",
    )  # fmt: skip
    program = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    assert run(sys.executable, "-c", program).strip() == "[]"
