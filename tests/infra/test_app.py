"""app.py and the CDK's command line: quiet, quick, checked, and clear about what is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.endpoint_stack import stack_name
from infra.local import ROOT
from sqsdelay.cdk.function_code import functions_archive
from sqsdelay.cdk.unrestricted_delay import STORES
from sqsdelay.core.endpoint import Endpoint
from tests.infra.conftest import WANTED
from tests.patience import ended
from tests.services.packages import older_cdk

RunApp = Callable[..., subprocess.CompletedProcess[str]]


def test_app_is_thin() -> None:
    """Context in, stacks out: everything else has a room of its own."""
    assert len((ROOT / "app.py").read_text().splitlines()) < 50


def findings(folder: Path) -> object:
    """What AwsSolutions and Serverless say of all stacks."""
    return json.loads((folder / "validation-report.json").read_text())["pluginReports"]


def test_bad_context_is_one_line(run_app: RunApp) -> None:
    """No stack trace, and nothing to deploy: a misspelt store would be one that was left out."""
    done = run_app(endpoint="orders", Store="dynamodb")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("sqsdelay: context key 'Store' is unknown; did you mean 'store'?")


def test_nothing_is_found_in_all_there_is(all_there_is: Path) -> None:
    """Neither by the nag packs nor by CloudFormation's own validation: else `cdk deploy` ends with an
    error."""
    names = (*(f"orders-{store}" for store in STORES), WANTED["endpoint"])
    made = {
        path.name.removesuffix(".template.json") for path in all_there_is.glob("*.template.json")
    }
    assert made == {stack_name(Endpoint.parse(name)) for name in names}
    assert findings(all_there_is) == []


def test_nag_packs_would_find_something(
    run_app: RunApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packs are at work: a bare queue in the same app, which needs no endpoint for that, fails both
    of them."""
    source = (ROOT / "app.py").read_text()
    bare = (
        "        from aws_cdk import Stack, aws_sqs\n"
        '        aws_sqs.Queue(Stack(app, "bare"), "Queue")\n'
    )
    changed = tmp_path / "changed.py"
    marker = "        if not deployment.endpoints"
    changed.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        + source.replace("from __future__ import annotations\n", "").replace(marker, bare + marker)
    )
    # CloudFormation's own takes longer than the packs.
    monkeypatch.setenv("CDK_VALIDATION", "false")
    run_app(script=str(changed))
    report = (tmp_path / "validation-report.json").read_text()
    assert "AwsSolutions-SQS3" in report
    assert "Serverless-SQSRedrivePolicy" in report


@pytest.fixture(autouse=True, scope="module")
def built_code() -> None:
    """The function's code, which only the first synthesis has to fetch dependencies for."""
    functions_archive()


def cdk(*arguments: str, output: Path, validated: bool = True) -> subprocess.CompletedProcess[str]:
    """The command line as a person calls it, with no account to ask and no network to ask it through;
    without CloudFormation's validation of the templates it takes half the time."""
    unreachable = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    if not validated:
        unreachable["CDK_VALIDATION"] = "false"
    return ended(
        ["npx", "cdk", *arguments, "--output", str(output)],
        cwd=ROOT,
        env=os.environ
        | unreachable
        | {"CDK_HOME": str(output / "home"), "npm_config_userconfig": os.devnull},
        stdin=subprocess.DEVNULL,
    )


def test_no_endpoint_is_no_failure_and_several_are_several_stacks(tmp_path: Path) -> None:
    """`cdk ls` and `cdk synth` work in a fresh checkout, and say what to give. After this first call
    nothing is on stderr: no notices, no telemetry, no talk about Node's age or flags. Each endpoint has
    a stack, in which every finding is fixed, or acknowledged with a reason; and the asset holds code,
    nothing of what synthesis made."""
    listed = cdk("ls", output=tmp_path, validated=False)
    assert (listed.returncode, listed.stdout) == (0, "sqsdelay-no-endpoint-given\n")
    synthesised = cdk("synth", "--app", str(tmp_path), output=tmp_path)
    assert synthesised.returncode == 0
    assert "use -c endpoint=NAME" in synthesised.stdout
    several = ("-c", "endpoint=orders,in_voices,ordered.fifo")
    done = cdk("synth", "--quiet", "sqsdelay-orders", *several, output=tmp_path, validated=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    manifest = json.loads((tmp_path / "manifest.json").read_text())["artifacts"]
    stacks = [name for name, each in manifest.items() if each["type"] == "aws:cloudformation:stack"]
    assert len(stacks) == 3
    assert "sqsdelay-orders" in stacks
    assert findings(tmp_path) == []
    [asset] = tmp_path.glob("asset.*")
    assert asset.read_bytes() == functions_archive().read_bytes()


@pytest.mark.nightly
def test_the_oldest_cdk_of_the_range_makes_the_same(all_there_is: Path, tmp_path: Path) -> None:
    """Every part with every store: the template is no other, so an update of the CDK changes nothing."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (oldest,) = re.findall(r"aws-cdk-lib>=([\d.]+)", str(extra["cdk"]))
    program = (
        "import json, sys; from aws_cdk import App; from tests.infra.conftest import *; "
        "synthesise(App(context=CONTEXT, outdir=sys.argv[1]), *ALL_THERE_IS)"
    )
    paths = f"{older_cdk(oldest + '.0')}:{ROOT}"
    env = os.environ | {"PYTHONPATH": paths, "CDK_VALIDATION": "false"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    made = {path.name: path for path in all_there_is.glob("*.template.json")}
    assert len(made) > len(STORES)
    for name, newest in made.items():
        assert json.loads((tmp_path / name).read_text()) == json.loads(newest.read_text())
