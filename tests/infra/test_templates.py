"""The templates that `make templates` writes, and the Terraform module around them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.cdk_command import ROOT
from infra.templates import STORES, main

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
    linted = subprocess.run(
        [
            Path(sys.executable).with_name("cfn-lint"),
            "--regions",
            "us-east-1",
            "--ignore-checks",
            "W3005",
            "--",
            *paths,
        ],
        capture_output=True,
        text=True,
        check=False,
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
