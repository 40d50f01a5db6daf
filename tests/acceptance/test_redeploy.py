"""A second ``cdk deploy`` on a local AWS: what it leaves out is not removed, unless it is told to."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from infra.cdk_command import CdkCommand, CdkFailed
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.test_deploy_with_store import dispatch, sqsdelay

ENDPOINT = ("-c", "endpoint=orders")
WITH_STORE = (*ENDPOINT, "-c", "store=dynamodb")
STACK = "sqsdelay-orders"


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    """A local AWS of its own: bootstrap and stacks are the account's."""
    with LocalAws() as local:
        yield local


@pytest.fixture(scope="module")
def cdk(aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> CdkCommand:
    """The command line, in a bootstrapped account."""
    command = CdkCommand(aws, tmp_path_factory.mktemp("cdk"))
    command.run("bootstrap")
    return command


@pytest.fixture(scope="module")
def orders(aws: LocalAws, cdk: CdkCommand) -> dict[str, str]:
    """The outputs of an endpoint with a store, in which a message is parked."""
    outputs = cdk.deploy(*WITH_STORE)
    sqsdelay(
        aws,
        *("store", "send", "orders", "--store", outputs["StoreUrl"], "--body", "parked"),
        *("--due-at", "2020-01-01T00:00:00Z"),
    )
    return outputs


def kinds(aws: LocalAws) -> list[str]:
    """The types of the stack's resources."""
    pages = aws.client("cloudformation").get_paginator("list_stack_resources")
    return [
        resource["ResourceType"]
        for page in pages.paginate(StackName=STACK)
        for resource in page["StackResourceSummaries"]
    ]


def test_a_forgotten_store_is_not_removed(
    aws: LocalAws, cdk: CdkCommand, orders: dict[str, str]
) -> None:
    """The deployment fails, says why and what to give, and the dispatcher works as before."""
    before = sorted(kinds(aws))
    with pytest.raises(CdkFailed) as refused:
        cdk.deploy(*ENDPOINT)
    told = " ".join(str(refused.value).split())
    assert "the stack has a store and this deployment names none" in told
    assert "store=none to let go of it" in told
    assert sorted(kinds(aws)) == before
    [stack] = aws.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
    assert stack["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    consumer = aws.client("lambda").get_function_configuration(FunctionName=orders["FunctionName"])
    assert consumer["Environment"]["Variables"]["SQSDELAY_STORE"] == orders["StoreUrl"]
    assert dispatch(aws, orders)["released"] == 1


def test_a_misspelt_store_is_refused_before_anything(cdk: CdkCommand) -> None:
    """At synthesis, with the right name."""
    with pytest.raises(CdkFailed, match="context key 'Store' is unknown; did you mean 'store'"):
        cdk.deploy(*ENDPOINT, "-c", "Store=dynamodb")


def test_a_forgotten_bucket_is_not_removed(cdk: CdkCommand, orders: dict[str, str]) -> None:
    """As the store."""
    assert orders
    assert "BodyBucketName" in cdk.deploy(*WITH_STORE, "-c", "largeBodies=true")
    with pytest.raises(CdkFailed, match="a bucket for large bodies and this deployment names none"):
        cdk.deploy(*WITH_STORE)
    assert "BodyBucketName" not in cdk.deploy(*WITH_STORE, "-c", "largeBodies=none")


def test_letting_go_by_name(aws: LocalAws, cdk: CdkCommand, orders: dict[str, str]) -> None:
    """``store=none`` takes the dispatcher away and keeps the table; later it need not be said again."""
    outputs = cdk.deploy(*ENDPOINT, "-c", "store=none")
    assert "DispatcherName" not in outputs
    assert "AWS::DynamoDB::Table" not in kinds(aws)
    table = orders["StoreUrl"].removeprefix("dynamodb://")
    assert aws.client("dynamodb").describe_table(TableName=table)
    assert "DispatcherName" not in cdk.deploy(*ENDPOINT)


THEIR_APP = (
    *("--app", f"{sys.executable} -m tests.acceptance.redeploy_app"),
    "--require-approval=never",
)
THEIR_STACK = "theirs"


def their_status(aws: LocalAws) -> str:
    [stack] = aws.client("cloudformation").describe_stacks(StackName=THEIR_STACK)["Stacks"]
    return str(stack["StackStatus"])


def test_in_somebodys_own_app(aws: LocalAws, cdk: CdkCommand) -> None:
    """The construct brings its guard: for the due queue of a queue that is FIFO no more; and a
    deployment that fails for another reason finds its way back past it."""
    cdk.run("deploy", *THEIR_APP, "-c", "kind=fifo")
    with pytest.raises(CdkFailed):
        cdk.run("deploy", *THEIR_APP, "-c", "kind=fifo", "-c", "store=dynamodb", "-c", "broken=1")
    assert their_status(aws) == "UPDATE_ROLLBACK_COMPLETE"
    with pytest.raises(CdkFailed, match="the stack has a due queue"):
        cdk.run("deploy", *THEIR_APP, "-c", "kind=standard")
    assert their_status(aws) == "UPDATE_ROLLBACK_COMPLETE"
    cdk.run("deploy", *THEIR_APP, "-c", "kind=standard", "-c", "dueQueue=none")
    assert their_status(aws) == "UPDATE_COMPLETE"
