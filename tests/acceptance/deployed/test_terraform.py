"""The committed Terraform module, by the real tool, where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from infra.terraform import FOLDER
from sqsdelay import DelaySender
from sqsdelay.lambdas.function_code import write_archives
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployed.test_with_store import dispatch, sqsdelay
from tests.acceptance.deployment import receive
from tests.patience import PATIENCE_SECONDS

TERRAFORM: Final = shutil.which("terraform")
MIRRORS: Final = (Path("/usr/local/share/terraform/plugins"), Path("/opt/tf-plugins"))
"""Where a machine may have providers; elsewhere Terraform asks its registry."""

OLDER_PROVIDER: Final = {"runtime": "python3.13", "max_message_size": 262_144}
"""What version 5 of the AWS provider takes; the module's own are newer."""

MAIN: Final = """\
provider "aws" {}

module "delay" {
  source                 = "./module"
  endpoint               = "formed"
  delay_consumer_archive = "delay_consumer.zip"
  dispatcher_archive     = "dispatcher.zip"
  runtime                = "%(runtime)s"
  max_message_size       = %(max_message_size)d
}

output "delay" { value = module.delay }
"""


def terraform(folder: Path, aws: LocalAws, *arguments: str) -> str:
    """What it prints."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "TF_"))}
    done = subprocess.run(
        [str(TERRAFORM), *arguments],
        cwd=folder,
        env=inherited | aws.environment() | {"CHECKPOINT_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def delivers(aws: LocalAws, tmp_path: Path) -> None:
    """Formatted, valid, applied; nothing left to do; a message hops, a stored one is released."""
    sqs = aws.client("sqs")
    queue_url = sqs.create_queue(QueueName="formed")["QueueUrl"]
    shutil.copytree(FOLDER / "sqsdelay-dynamodb", tmp_path / "module")
    (tmp_path / "main.tf").write_text(MAIN % OLDER_PROVIDER)
    write_archives(tmp_path)
    terraform(tmp_path, aws, "fmt", "-check", "-recursive", str(FOLDER))
    mirror = next((f"-plugin-dir={path}" for path in MIRRORS if path.is_dir()), "-input=false")
    terraform(tmp_path, aws, "init", mirror)
    terraform(tmp_path, aws, "validate")
    terraform(tmp_path, aws, "apply", "-auto-approve", "-no-color")
    outputs = json.loads(terraform(tmp_path, aws, "output", "-json", "delay"))
    assert outputs["store_url"] == "dynamodb://formed.parked"
    sqs.set_queue_attributes(QueueUrl=outputs["delay_queue_url"], Attributes={"DelaySeconds": "1"})
    DelaySender(sqs, hop_seconds=1).send("formed", "hopped", delay=4)
    to_store = ("store", "send", "formed", "--store", outputs["store_url"])
    sqsdelay(aws, *to_store, "--body", "stored", "--due-at", "2020-01-01T00:00:00Z")
    dispatch(aws, {"DispatcherName": outputs["dispatcher_name"]})
    arrived = [message["Body"] for message in receive(aws, queue_url, count=2)]
    assert sorted(arrived) == ["hopped", "stored"]


if TERRAFORM is not None:
    # tests/infra/test_terraform.py compares the module with the template on every machine.

    def test_the_module_delivers(aws: LocalAws, tmp_path: Path) -> None:
        """As the stack does."""
        delivers(aws, tmp_path)
