"""What `make templates` writes, without the CDK: each by CloudFormation, one by Terraform where it is. (SAM
gives a template to CloudFormation as it is.)"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from infra.local import ROOT
from infra.templates import STORES, main
from sqsdelay import DelaySender
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployment import dispatch, receive, sqsdelay
from tests.patience import PATIENCE_SECONDS, ended

TERRAFORM: Final = shutil.which("terraform")
MIRRORS: Final = (Path("/usr/local/share/terraform/plugins"), Path("/opt/tf-plugins"))
"""Where a machine may have providers; elsewhere Terraform asks its registry."""

MAIN: Final = """\
provider "aws" {}

module "delay" {
  source      = "./module"
  endpoint    = "formed"
  release     = "release"
  template    = "sqsdelay-dynamodb"
  code_bucket = "formed-code"
}

output "outputs" { value = module.delay.outputs }
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    main(folder)
    return folder


def delivers(aws: LocalAws, queue: str, outputs: dict[str, str]) -> None:
    """A message hops and arrives; where there is a store, the stack's dispatcher releases from it."""
    sqs = aws.client("sqs")
    # The template's hop is 900 s: too long to watch.
    sqs.set_queue_attributes(QueueUrl=outputs["DelayQueueUrl"], Attributes={"DelaySeconds": "1"})
    DelaySender(sqs, hop_seconds=1).send(queue, "hopped", delay=4)
    expected = ["hopped"]
    if store := outputs.get("StoreUrl"):
        stored = ("--body", "stored", "--due-at", "2020-01-01T00:00:00Z")
        sqsdelay(aws, "send", queue, "--store-only", "--store", store, *stored)
        dispatch(aws, outputs)
        expected.append("stored")
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    assert sorted(m["Body"] for m in receive(aws, url, count=len(expected))) == expected


@pytest.mark.parametrize("name", STORES)
def test_each_template_s_stack_delivers(aws: LocalAws, release: Path, name: str) -> None:
    """By CloudFormation alone: no CDK, no checkout, no bootstrap, the archive in a bucket."""
    s3, formation = aws.client("s3"), aws.client("cloudformation")
    queue, stack_name = f"for-{name}", f"{name}-delay"
    aws.client("sqs").create_queue(QueueName=queue)
    s3.create_bucket(Bucket="codes")
    s3.upload_file(str(release / "functions.zip"), "codes", "sqsdelay-0.1.0.zip")
    given = {"Endpoint": queue, "CodeBucket": "codes", "CodeKey": "sqsdelay-0.1.0.zip"}
    formation.create_stack(
        StackName=stack_name,
        TemplateBody=(release / f"{name}.template.json").read_text(),
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()],
        Capabilities=["CAPABILITY_IAM"],
    )
    formation.get_waiter("stack_create_complete").wait(
        StackName=stack_name, WaiterConfig={"Delay": 1, "MaxAttempts": int(PATIENCE_SECONDS)}
    )
    [stack] = formation.describe_stacks(StackName=stack_name)["Stacks"]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    assert ("StoreUrl" in outputs) == (STORES[name] is not None)
    delivers(aws, queue, outputs)


def terraform(folder: Path, aws: LocalAws, *arguments: str) -> str:
    """What it prints."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "TF_"))}
    done = ended(
        [str(TERRAFORM), *arguments],
        cwd=folder,
        env=inherited | aws.environment() | {"CHECKPOINT_DISABLE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if TERRAFORM is not None:
    # tests/infra/test_release.py compares the module's parameters with the template's on every machine.

    @pytest.mark.nightly
    def test_the_module_delivers(aws: LocalAws, release: Path, tmp_path: Path) -> None:
        """Formatted, valid, applied."""
        aws.client("sqs").create_queue(QueueName="formed")
        aws.client("s3").create_bucket(Bucket="formed-code")
        shutil.copytree(ROOT / "terraform", tmp_path / "module")
        shutil.copytree(release, tmp_path / "release")
        (tmp_path / "main.tf").write_text(MAIN)
        terraform(tmp_path, aws, "fmt", "-check", str(ROOT / "terraform"))
        mirror = next((f"-plugin-dir={path}" for path in MIRRORS if path.is_dir()), "-input=false")
        terraform(tmp_path, aws, "init", mirror)
        terraform(tmp_path, aws, "validate")
        terraform(tmp_path, aws, "apply", "-auto-approve", "-no-color")
        delivers(aws, "formed", json.loads(terraform(tmp_path, aws, "output", "-json", "outputs")))
