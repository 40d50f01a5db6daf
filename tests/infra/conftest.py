"""CDK apps as ``cdk.json`` configures them, and the app run as a command."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk.assertions import Template

from infra.cdk_command import ROOT
from infra.context import Deployment
from infra.endpoint_stack import EndpointStack, stack_name
from sqsdelay.core.endpoint import Endpoint

CONTEXT: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]
ACCOUNT = "123456789012"
REGION = "eu-west-1"


@pytest.fixture
def stack() -> Stack:
    """An empty stack of somebody's app."""
    return Stack(App(context=CONTEXT), "theirs")


@pytest.fixture(scope="session")
def endpoint_template() -> Callable[..., Template]:
    """The template of an endpoint, `orders` unless named, under a deployment's settings; each made
    once."""
    made: dict[str, Template] = {}

    def template(name: str = "orders", **settings: Any) -> Template:
        key = repr((name, sorted(settings.items())))
        if key not in made:
            endpoint = Endpoint.parse(name)
            stack = EndpointStack(
                App(context=CONTEXT),
                stack_name(endpoint),
                endpoint=endpoint,
                deployment=Deployment(endpoints=(endpoint,), **settings),
            )
            made[key] = Template.from_stack(stack)
        return made[key]

    return template


@pytest.fixture
def run_app(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run app.py as the CDK's command line does; what it makes is in ``tmp_path``."""

    def run(script: str = "app.py", **context: str) -> subprocess.CompletedProcess[str]:
        command = json.loads((ROOT / "cdk.json").read_text())["app"].replace("app.py", script)
        return subprocess.run(
            command,
            shell=True,
            cwd=ROOT,
            env=os.environ
            | {"CDK_OUTDIR": str(tmp_path), "CDK_CONTEXT_JSON": json.dumps(CONTEXT | context)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run
