"""A second ``cdk deploy``: what it leaves out is not removed, unless it is told to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from infra.cdk_command import CdkCommand, CdkFailed
from sqsdelay import DelaySender
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployed.conftest import STORED
from tests.acceptance.deployed.test_with_store import dispatch, sqsdelay
from tests.acceptance.deployment import receive
from tests.services.packages import build_wheel, install_wheel

STACK = "sqsdelay-stored"


def park(aws: LocalAws, stored: dict[str, str], body: str) -> None:
    """Put a message that is due into the store."""
    sqsdelay(
        aws,
        *("store", "send", "stored", "--store", stored["StoreUrl"], "--body", body),
        *("--due-at", "2020-01-01T00:00:00Z"),
    )


def kinds(aws: LocalAws) -> list[str]:
    """The types of the stack's resources."""
    pages = aws.client("cloudformation").get_paginator("list_stack_resources")
    return [
        resource["ResourceType"]
        for page in pages.paginate(StackName=STACK)
        for resource in page["StackResourceSummaries"]
    ]


def test_a_forgotten_part_is_not_removed(
    aws: LocalAws, cdk: CdkCommand, stored: dict[str, str]
) -> None:
    """The deployment fails, says of each part why and what to give, and the dispatcher works as before."""
    park(aws, stored, "parked")
    before = sorted(kinds(aws))
    with pytest.raises(CdkFailed) as refused:
        cdk.deploy(*STORED)
    told = " ".join(str(refused.value).split())
    assert "the stack has a store, but this deployment has none" in told
    assert "store=none to give it up" in told
    assert "a bucket for large bodies, but this deployment has none" in told
    assert "keeps its ledger in a bucket, but this deployment does not" in told
    assert sorted(kinds(aws)) == before
    [stack] = aws.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
    assert stack["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    consumer = aws.client("lambda").get_function_configuration(FunctionName=stored["FunctionName"])
    assert consumer["Environment"]["Variables"]["SQSDELAY_STORE"] == stored["StoreUrl"]
    park(aws, stored, "afterwards")
    dispatch(aws, stored)
    # The schedule runs it, too: whichever run releases a message, each arrives once.
    arrived = [message["Body"] for message in receive(aws, stored["QueueUrl"], count=2)]
    assert sorted(arrived) == ["afterwards", "parked"]


def test_a_misspelt_store_is_refused_before_anything(cdk: CdkCommand) -> None:
    """At synthesis, with the right name."""
    with pytest.raises(CdkFailed, match="context key 'Store' is unknown; did you mean 'store'"):
        cdk.deploy(*STORED, "-c", "Store=dynamodb")


def test_letting_go_by_name(aws: LocalAws, cdk: CdkCommand, stored: dict[str, str]) -> None:
    """``none`` takes the dispatcher away and keeps table and ledger; later it need not be said again."""
    given_up = ("-c", "store=none", "-c", "largeBodies=none", "-c", "ledger=none")
    outputs = cdk.deploy(*STORED, *given_up)
    assert not {"DispatcherName", "BodyBucketName", "LedgerUrl"} & set(outputs)
    assert "AWS::DynamoDB::Table" not in kinds(aws)
    table = stored["StoreUrl"].removeprefix("dynamodb://")
    assert aws.client("dynamodb").describe_table(TableName=table)
    bucket = stored["LedgerUrl"].split("/")[2]
    assert aws.client("s3").list_objects_v2(Bucket=bucket)["KeyCount"]
    assert "DispatcherName" not in cdk.deploy(*STORED)


THEIR_STACK = "theirs"


def their_status(aws: LocalAws) -> str:
    [stack] = aws.client("cloudformation").describe_stacks(StackName=THEIR_STACK)["Stacks"]
    return str(stack["StackStatus"])


def test_in_somebodys_own_app(aws: LocalAws, cdk: CdkCommand, tmp_path: Path) -> None:
    """Installed outside this repository, the construct brings its functions and its guard: for the due
    queue of a queue that is FIFO no more. A deployment that fails for another reason finds its way
    back past it."""
    python = install_wheel(build_wheel(tmp_path / "wheel"), tmp_path / "venv")
    shutil.copy(Path(__file__).with_name("their_app.py"), tmp_path)

    def deploy(*context: str) -> None:
        app = f"{python} their_app.py"
        arguments = ("--app", app, "--require-approval=never", *context)
        cdk.run("deploy", *arguments, checkout=tmp_path)

    deploy("-c", "kind=fifo")
    DelaySender(aws.client("sqs"), hop_seconds=1).send(
        "theirs.fifo", "far", delay=4, message_group_id="g"
    )
    queue_url = aws.client("sqs").get_queue_url(QueueName="theirs.fifo")["QueueUrl"]
    assert [message["Body"] for message in receive(aws, queue_url, count=1)] == ["far"]
    with pytest.raises(CdkFailed):
        deploy("-c", "kind=fifo", "-c", "store=dynamodb", "-c", "broken=1")
    assert their_status(aws) == "UPDATE_ROLLBACK_COMPLETE"
    with pytest.raises(CdkFailed, match="the stack has a due queue"):
        deploy("-c", "kind=standard")
    assert their_status(aws) == "UPDATE_ROLLBACK_COMPLETE"
    deploy("-c", "kind=standard", "-c", "dueQueue=none")
    assert their_status(aws) == "UPDATE_COMPLETE"
