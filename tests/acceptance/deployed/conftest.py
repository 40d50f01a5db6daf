"""One bootstrapped account for all that is deployed here: each stack has an endpoint of its own, and all that
a test does not deploy by itself are made by one app, and deployed by one command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from aws_cdk import App

from infra.local import LOCAL_ACCOUNT, CdkCommand
from sqsdelay.testing.local_aws import REGION, LocalAws
from tests.infra.conftest import CONTEXT, synthesise

QUICK: Final = {"hopSeconds": "1"}
STORED: Final = QUICK | {"endpoint": "stored"}
WHEEL: Final = QUICK | {"endpoint": "wheel"}
TIMED: Final = QUICK | {"endpoint": "timed"}
# A hop of 900 s: no function has a message in hand while the stack goes.
KEPT: Final = {"endpoint": "kept", "store": "s3", "ledger": "s3"}
NONE: Final = {"store": "none"}
APPS: Final = {
    "first": (
        QUICK | {"queueArn": f"arn:aws:sqs:{REGION}:{LOCAL_ACCOUNT}:existing"},
        QUICK | {"endpoint": "orders"},
        QUICK | {"endpoint": "ordered.fifo", "largeBodies": "true"},
        STORED | {"store": "dynamodb", "largeBodies": "true", "ledger": "s3"},
        WHEEL | {"store": "s3"},
        TIMED | {"store": "scheduler"},
        KEPT,
    ),
    "forgotten": (STORED, WHEEL),
    "given up": (
        STORED | NONE | {"largeBodies": "none", "ledger": "none"},
        WHEEL | NONE,
        TIMED | NONE,
    ),
    "kept": (KEPT | QUICK,),
}
"""What is deployed at first, and later: contexts, as the command line's."""

Apps = Callable[[str], tuple[str, str]]


@pytest.fixture(scope="package")
def aws() -> Iterator[LocalAws]:
    """A local AWS of its own: bootstrap and stacks are the account's."""
    with LocalAws() as local:
        yield local


@pytest.fixture(scope="package")
def cdk(aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> CdkCommand:
    """The command line, in a bootstrapped account."""
    command = CdkCommand(aws, tmp_path_factory.mktemp("cdk"))
    command.bootstrap()
    return command


@pytest.fixture(scope="package")
def app(tmp_path_factory: pytest.TempPathFactory) -> Apps:
    """The option for an app, which is synthesised once, and in this process."""
    made: dict[str, Path] = {}

    def option(name: str) -> tuple[str, str]:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("app")
            synthesise(App(context=CONTEXT, outdir=str(made[name])), *APPS[name])
        return "--app", str(made[name])

    return option


@pytest.fixture(scope="package")
def deployed(aws: LocalAws, cdk: CdkCommand, app: Apps) -> dict[str, dict[str, str]]:
    """The outputs of what is deployed at first."""
    aws.client("sqs").create_queue(QueueName="existing")
    return cdk.deploy("--all", "--concurrency=8", *app("first"))


@pytest.fixture(scope="package")
def stored(deployed: dict[str, dict[str, str]]) -> dict[str, str]:
    """The outputs of the endpoint `stored`, with a store and a bucket: deployed, then redeployed
    without them (`test_with_store`)."""
    return deployed["sqsdelay-stored"]
