"""What a release carries: the functions' archive, the same everywhere, small and complete; the templates that
`make templates` writes; the Terraform module around them."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import boto3
import pytest

from infra.local import ROOT
from infra.templates import STORES, main
from sqsdelay.cdk import function_names, removal_guard
from sqsdelay.cdk.function_code import FunctionCodeError, functions_archive, guard_source
from tests.patience import ended

MAX_ZIPPED_BYTES = 2 * 1024 * 1024


def contents(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, built afresh."""
    return functions_archive(build=tmp_path_factory.mktemp("build"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The sources in another directory."""
    root = tmp_path / "elsewhere"
    for part in ("sqsdelay", "lambdas"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def test_same_inputs_make_the_same_archive_in_any_directory(
    built: Path, checkout: Path, tmp_path: Path
) -> None:
    """A deploy from another machine changes nothing when nothing changed; the sources stay as they were."""
    for path in checkout.rglob("*.py"):
        path.touch()
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    again = functions_archive(checkout, tmp_path / "build")
    assert again.name == built.name
    assert again.read_bytes() == built.read_bytes()
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before


def test_changed_source_makes_another_archive(built: Path, checkout: Path, tmp_path: Path) -> None:
    """One built before a change is not taken for it."""
    limits = checkout / "sqsdelay" / "core" / "limits.py"
    limits.write_text(limits.read_text() + "\n# changed\n")
    changed = functions_archive(checkout, tmp_path / "build")
    assert changed.name != built.name
    assert contents(changed)["sqsdelay/core/limits.py"] == limits.read_bytes()


def test_small_and_without_what_lambda_brings(built: Path) -> None:
    """At most 2 MB, no boto3, no constructs, no build output, no metadata."""
    assert built.stat().st_size <= MAX_ZIPPED_BYTES
    names = contents(built)
    top = {name.split("/")[0] for name in names}
    assert {"sqsdelay", "lambdas", "aws_lambda_powertools"} <= top
    assert not {"boto3", "botocore", "bin", "cdk.out"} & top
    assert not [name for name in names if "__pycache__" in name or ".dist-info" in name]
    constructs = {name for name in names if name.startswith("sqsdelay/cdk/")}
    assert constructs == {"sqsdelay/cdk/__init__.py", "sqsdelay/cdk/function_names.py"}


def test_of_the_stores_just_those_that_are_deployed(built: Path) -> None:
    """The others' drivers are not in a function."""
    modules = {name for name in contents(built) if name.startswith("sqsdelay/stores/")}
    assert "sqsdelay/stores/dynamodb/dynamodb_store.py" in modules
    assert not [name for name in modules if "sqlite" in name or "postgres" in name]


def test_the_guard_is_deployed_with_what_its_construct_tells_it() -> None:
    """Its one file stands in the template, and imports nothing of ours."""
    source = guard_source()
    assert f'LEFT_OUT = "{removal_guard.LEFT_OUT}"\n' in source
    assert f"SETTLING_SECONDS = {removal_guard.SETTLING_SECONDS}\n" in source
    assert "sqsdelay" not in source.split('"""', 2)[2]


OPEN_STORE = (
    "from sqsdelay.stores import open_place; "
    "open_place('dynamodb://orders.parked', endpoint='orders').close(); "
    "open_place('s3://parked', endpoint='orders').close(); "
    "role = 'arn:aws:iam::123456789012:role/orders'; "
    "open_place(f'scheduler://orders?role={role}', endpoint='orders').close()"
)


@pytest.mark.parametrize(
    "handler", [function_names.CONSUMER_HANDLER, function_names.DISPATCHER_HANDLER]
)
def test_handler_loads_from_the_archive_alone(built: Path, tmp_path: Path, handler: str) -> None:
    """With boto3 as Lambda's runtime brings it, and nothing else installed, the handler imports, and
    its store opens."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    packages = Path(boto3.__file__).parents[1]
    for name in ("boto3", "botocore", "s3transfer", "urllib3", "dateutil", "jmespath", "six.py"):
        (runtime / name).symlink_to(packages / name)
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path / "code")
    module, _, function = handler.rpartition(".")
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; "
        f"import {module} as m; print(m.__file__, callable(m.{function})); {OPEN_STORE}"
    )
    done = ended(
        [sys.executable, "-I", "-S", "-B", "-c", script, str(tmp_path / "code"), str(runtime)],
        env={"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-1"},
    )
    assert done.returncode == 0, done.stderr
    file = (tmp_path / "code").joinpath(*module.split(".")).with_suffix(".py")
    assert done.stdout.split() == [str(file), "True"]


def test_pins_are_those_everything_is_tested_with() -> None:
    """The function runs the versions of the top-level lock, each with its hashes."""
    pin = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
    locked = dict(pin.findall((ROOT / "requirements.txt").read_text()))
    requirements = (ROOT / "lambdas" / "requirements.txt").read_text()
    pins = dict(pin.findall(requirements))
    assert pins.items() <= locked.items()
    assert {"aws-lambda-powertools", "tenacity"} <= set(pins)
    assert requirements.count("--hash=sha256:") >= len(pins)


def test_unreachable_index_is_one_clear_line(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its dependencies nothing half-built is left to deploy."""
    (checkout / "lambdas" / "requirements.txt").write_text(f"no-such==1 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    build = tmp_path / "build"
    with pytest.raises(FunctionCodeError, match=r"could not fetch requirements.txt.*try again"):
        functions_archive(checkout, build)
    assert list(build.iterdir()) == []


LARGEST_INLINE_BYTES = 51_200
"""Source: CloudFormation quotas, template body size in a request."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    main(folder)
    return folder


def test_a_release_holds_the_templates_and_the_code(release: Path) -> None:
    """Each can be given to the API inline, needs no bootstrapped account, and uses every parameter."""
    files = {f"{name}.template.json" for name in STORES}
    assert {path.name for path in release.iterdir()} == {*files, "functions.zip"}
    for file in files:
        body = (release / file).read_text()
        assert len(body.encode()) <= LARGEST_INLINE_BYTES
        assert "cdk-" not in body.replace("cdk-nag", "")
        parameters = json.loads(body)["Parameters"]
        assert set(parameters) == {"Endpoint", "CodeBucket", "CodeKey", "AlarmTopicArn"}
        assert all(f'{{"Ref":"{name}"}}' in body for name in parameters)


def test_cfn_lint_finds_nothing(release: Path) -> None:
    """Properties, conditions, references: as AWS's own schemas have them. The CDK writes a DependsOn beside
    each reference to a role (W3005)."""
    paths = sorted(release.glob("*.template.json"))
    linted = ended(
        [
            Path(sys.executable).with_name("cfn-lint"),
            "--regions",
            "us-east-1",
            "--ignore-checks",
            "W3005",
            "--",
            *paths,
        ]
    )
    assert (linted.returncode, linted.stdout) == (0, "")


def test_the_module_gives_the_template_its_parameters(release: Path) -> None:
    """All of them, and no other; in 80 lines, for somebody reads them."""
    module = (ROOT / "terraform" / "main.tf").read_text()
    assert len(module.splitlines()) <= 80
    (given,) = re.findall(r"parameters = \{\n(.*?)\n  \}", module, re.DOTALL)
    for name in STORES:
        template = json.loads((release / f"{name}.template.json").read_text())
        assert set(re.findall(r"^ +(\w+) +=", given, re.MULTILINE)) == set(template["Parameters"])
    declared = set(re.findall(r'variable "(\w+)"', module))
    assert set(re.findall(r"var\.(\w+)", module)) == declared
