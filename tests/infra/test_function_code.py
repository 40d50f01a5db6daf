"""The function's code: the same everywhere, small, complete, and built outside the sources."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from sqsdelay.lambdas.delay_consumer import contract as delay_consumer
from sqsdelay.lambdas.dispatcher import contract as dispatcher
from sqsdelay.lambdas.function_code import (
    ROOT,
    FunctionCodeError,
    delay_consumer_code,
    dispatcher_code,
)

MAX_ZIPPED_BYTES = 2 * 1024 * 1024


BUILDS = {"delay_consumer": delay_consumer_code, "dispatcher": dispatcher_code}
HANDLERS = {"delay_consumer": delay_consumer.HANDLER, "dispatcher": dispatcher.HANDLER}


@dataclass(frozen=True, kw_only=True)
class Built:
    """A function's folder, built afresh."""

    function: str
    folder: Path

    def again(self, root: Path, build: Path) -> Path:
        """Build it from another checkout."""
        return BUILDS[self.function](root=root, build=build)


@pytest.fixture(scope="session", params=sorted(BUILDS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Each function in turn."""
    folder = BUILDS[request.param](build=tmp_path_factory.mktemp("build"))
    return Built(function=request.param, folder=folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The sources in another directory."""
    root = tmp_path / "elsewhere"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "sqsdelay", root / "sqsdelay", ignore=ignored)
    return root


def test_same_inputs_make_the_same_folder_in_any_directory(
    built: Built, checkout: Path, tmp_path: Path
) -> None:
    """A deploy from another machine changes nothing when nothing changed."""
    again = built.again(checkout, tmp_path / "build")
    assert again.name == built.folder.name
    assert contents(again) == contents(built.folder)


def test_changed_source_makes_another_folder(built: Built, checkout: Path, tmp_path: Path) -> None:
    """A folder built before a change is not taken for it."""
    limits = checkout / "sqsdelay" / "limits.py"
    limits.write_text(limits.read_text() + "\n# changed\n")
    changed = built.again(checkout, tmp_path / "build")
    assert changed.name != built.folder.name
    assert (changed / "sqsdelay" / "limits.py").read_bytes() == limits.read_bytes()


def test_nothing_is_written_into_the_sources(checkout: Path, tmp_path: Path) -> None:
    """Building leaves the checkout as it was."""
    before = contents(checkout)
    dispatcher_code(root=checkout, build=tmp_path / "build")
    assert contents(checkout) == before


def test_small_and_without_what_lambda_brings(built: Built, tmp_path: Path) -> None:
    """At most 2 MB zipped, no boto3, no build output, no metadata, no other function."""
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in contents(built.folder).items():
            zipped.writestr(name, data)
    assert archive.stat().st_size <= MAX_ZIPPED_BYTES
    top = {path.name for path in built.folder.iterdir()}
    assert {"sqsdelay", "aws_lambda_powertools"} <= top
    assert not {"boto3", "botocore", "bin", "cdk.out"} & top
    assert not [n for n in contents(built.folder) if "__pycache__" in n or ".dist-info" in n]
    functions = {
        path.name for path in (built.folder / "sqsdelay" / "lambdas").iterdir() if path.is_dir()
    }
    assert functions == {built.function}


def test_of_the_stores_just_those_that_are_deployed(built: Built) -> None:
    """The others' drivers are not in a function."""
    modules = {name for name in contents(built.folder) if name.startswith("sqsdelay/stores/")}
    assert "sqsdelay/stores/dynamodb/dynamodb_store.py" in modules
    assert not [name for name in modules if "sqlite" in name or "postgres" in name]


OPEN_STORE = (
    "from sqsdelay.stores import open_place; "
    "open_place('dynamodb://orders.parked', endpoint='orders').close(); "
    "open_place('s3://parked', endpoint='orders').close(); "
    "role = 'arn:aws:iam::123456789012:role/orders'; "
    "open_place(f'scheduler://orders?role={role}', endpoint='orders').close()"
)


def test_handler_loads_from_the_folder_alone(built: Built, tmp_path: Path) -> None:
    """With boto3 as Lambda's runtime brings it, and nothing else installed, the handler imports, and
    its store opens."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    packages = Path(boto3.__file__).parents[1]
    for name in ("boto3", "botocore", "s3transfer", "urllib3", "dateutil", "jmespath", "six.py"):
        (runtime / name).symlink_to(packages / name)
    module, _, function = HANDLERS[built.function].rpartition(".")
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; "
        f"import {module} as m; print(m.__file__, callable(m.{function})); {OPEN_STORE}"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", script, str(built.folder), str(runtime)],
        env={"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    handler = built.folder / "sqsdelay" / "lambdas" / built.function / "handler.py"
    assert done.stdout.split() == [str(handler), "True"]


def test_pins_are_those_everything_is_tested_with() -> None:
    """The function runs the versions of the top-level lock, each with its hashes."""
    pin = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
    locked = dict(pin.findall((ROOT / "requirements.txt").read_text()))
    requirements = (ROOT / "sqsdelay" / "lambdas" / "requirements.txt").read_text()
    pins = dict(pin.findall(requirements))
    assert pins.items() <= locked.items()
    assert {"aws-lambda-powertools", "tenacity"} <= set(pins)
    assert requirements.count("--hash=sha256:") >= len(pins)


def test_unreachable_index_is_one_clear_line(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its dependencies nothing half-built is left to deploy."""
    (checkout / "sqsdelay" / "lambdas" / "requirements.txt").write_text(
        f"no-such==1 --hash=sha256:{'0' * 64}\n"
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    build = tmp_path / "build"
    with pytest.raises(FunctionCodeError, match=r"could not fetch requirements.txt.*try again"):
        delay_consumer_code(root=checkout, build=build)
    assert list(build.iterdir()) == []
