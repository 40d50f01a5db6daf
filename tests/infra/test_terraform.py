"""The committed Terraform modules: as the construct is now, whole, and in the words of the template."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cloudformation import STORES, template
from infra.hcl import Expression, Nested, block, written
from infra.terraform import FOLDER, Module
from sqsdelay.cli import app


@pytest.mark.parametrize("name", STORES)
def test_the_module_is_current_and_whole(name: str) -> None:
    """Each queue, policy, function and alarm of the template is there: whoever changes a construct makes
    the modules anew."""
    made = template(name)
    files = Module(made).files()
    committed = {path.name: path.read_text() for path in (FOLDER / name).iterdir()}
    assert committed == files, "run: .venv/bin/python -m infra.terraform"
    main = files["main.tf"]
    for logical_id, resource in made["Resources"].items():
        if "RemovalGuard" not in logical_id:
            assert f'"{Module.label(logical_id)}" {{' in main, resource["Type"]
    kinds = [resource["Type"] for resource in made["Resources"].values()]
    for kind, word in (
        ("AWS::SQS::Queue", "aws_sqs_queue"),
        ("AWS::SQS::QueuePolicy", "aws_sqs_queue_policy"),
        ("AWS::CloudWatch::Alarm", "aws_cloudwatch_metric_alarm"),
        ("AWS::DynamoDB::Table", "aws_dynamodb_table"),
    ):
        assert main.count(f'resource "{word}" ') == kinds.count(kind)
    assert main.count("prevent_destroy = true") == kinds.count("AWS::SQS::Queue") + kinds.count(
        "AWS::DynamoDB::Table"
    )
    declared = set(re.findall(r'variable "(\w+)"', files["variables.tf"]))
    assert set(re.findall(r"var\.(\w+)", main)) == declared


def test_terraforms_syntax() -> None:
    """Blocks, nested ones, aligned attributes; and text that would be a template is none."""
    made = block(
        "thing",
        {"a": 1, "long_name": Expression("var.x"), "none": None, "b": Nested({"c": [True]})},
    )
    assert made == "thing {\n  a         = 1\n  long_name = var.x\n  b {\n    c = [true]\n  }\n}"
    assert written('${x} %{y} "') == '"$${x} %%{y} \\""'
    assert written({"aws:x": 1, "y": 2}) == '{\n  "aws:x" = 1\n  y       = 2\n}'


def test_the_archives_are_written(tmp_path: Path) -> None:
    """What the module and the template ask for; a folder that is none is told."""
    done = CliRunner().invoke(app, ["functions", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert {p.name for p in (tmp_path / "new").iterdir()} == {
        "delay_consumer.zip",
        "dispatcher.zip",
    }
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["functions", str(tmp_path / "file")])
    assert "name a folder that can be written" in str(done.exception)
