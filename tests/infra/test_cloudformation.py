"""The committed templates: as the construct is now, and what CloudFormation takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.cloudformation import FOLDER, STORES, template, text

LARGEST_INLINE_BYTES = 51_200
"""Source: CloudFormation quotas, template body size in a request."""


@pytest.mark.parametrize("name", STORES)
def test_the_template_is_current(name: str) -> None:
    """Whoever changes a construct makes the templates anew."""
    committed = (FOLDER / f"{name}.template.json").read_text()
    assert committed == text(template(name)), "run: .venv/bin/python -m infra.cloudformation"


def test_no_other_file() -> None:
    """Each is made."""
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.template.json" for name in STORES}


def test_cfn_lint_finds_nothing() -> None:
    """Properties, conditions, references: as AWS's own schemas have them."""
    paths = [FOLDER / f"{name}.template.json" for name in STORES]
    linted = subprocess.run(
        [Path(sys.executable).with_name("cfn-lint"), "--regions", "us-east-1", "--", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.mark.parametrize("name", STORES)
def test_a_template_can_be_given_inline(name: str) -> None:
    """To the API or the console, without a bucket for it; and every parameter is used."""
    body = (FOLDER / f"{name}.template.json").read_text()
    compact = json.dumps(json.loads(body), separators=(",", ":"))
    assert len(compact.encode()) <= LARGEST_INLINE_BYTES
    for parameter in json.loads(body)["Parameters"]:
        assert f'{{"Ref":"{parameter}"}}' in compact
