"""One bootstrapped account for all that is deployed here: each stack has an endpoint of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.local import CdkCommand
from sqsdelay.testing.local_aws import LocalAws

STORED = ("-c", "endpoint=stored", "-c", "hopSeconds=1")
STORED_WITH_ALL = (
    *STORED,
    *("-c", "store=dynamodb", "-c", "largeBodies=true", "-c", "ledger=s3"),
)


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
def stored(cdk: CdkCommand) -> dict[str, str]:
    """The outputs of the endpoint `stored`, with a store and a bucket: deployed, then redeployed
    without them (`test_with_store`)."""
    return cdk.deploy(*STORED_WITH_ALL)
