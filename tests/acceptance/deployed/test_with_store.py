"""``cdk deploy -c store=dynamodb`` on a local AWS: table, schedule, dispatcher; and a second deploy, which
removes nothing that it leaves out, unless it is told to."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from infra.local import CdkCommand, CdkFailed
from sqsdelay import DelaySender
from sqsdelay.ledger.events import Event, EventKind, Source, from_json
from sqsdelay.stores import DynamoDbStore
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployed.conftest import Apps
from tests.acceptance.deployment import dispatch, log_lines, proven, receive, scheduled, sqsdelay
from tests.patience import wait_for


@pytest.fixture
def store(aws: LocalAws, stored: dict[str, str]) -> Iterator[DynamoDbStore]:
    """The deployed table, as a store."""
    table = stored["StoreUrl"].removeprefix("dynamodb://")
    deployed = DynamoDbStore(table, endpoint="stored", client=aws.client("dynamodb"))
    yield deployed
    deployed.close()


@pytest.fixture
def schedule_off(aws: LocalAws, stored: dict[str, str]) -> Iterator[None]:
    """Nobody but the test runs the dispatcher, and counts what it released."""
    scheduled(aws, stored["DispatcherName"], enabled=False)
    yield
    scheduled(aws, stored["DispatcherName"], enabled=True)


def delivered(aws: LocalAws, stored: dict[str, str]) -> list[Event]:
    """What the deployed stream has put into its bucket, where the stack says a report is to read."""
    bucket, _, folder = stored["LedgerUrl"].removeprefix("s3://").partition("/")
    s3 = aws.client("s3")
    keys = [
        each["Key"]
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        for each in page.get("Contents", [])
    ]
    day = re.compile(rf"{folder}day=\d{{4}}-\d\d-\d\d/[^/]+")
    assert not [key for key in keys if not day.fullmatch(key)]
    # The local AWS writes an object for each record, and compresses none.
    bodies = [s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys]
    return [from_json(line) for body in bodies for line in body.splitlines()]


@pytest.mark.usefixtures("schedule_off")
def test_deployed_dispatcher_releases_what_is_due_soon(
    aws: LocalAws, stored: dict[str, str], store: DynamoDbStore
) -> None:
    """A message stored on the command line arrives on time and leaves the table; a far one stays."""
    to_store = ("send", "stored", "--store-only", "--store", stored["StoreUrl"])
    sqsdelay(aws, *to_store, "--body", "soon", "--delay", "5", "--message-id", "order-7")
    sqsdelay(aws, *to_store, "--body", "far", "--delay", "30d", "--message-id", "order-8")
    due = {message.message_id: message.due_ms for message in store.pending(10)}
    assert set(due) == {"order-7", "order-8"}
    assert dispatch(aws, stored) == {"released": 1, "rejected": 0, "failed": 0, "held": 0}
    [message] = receive(aws, stored["QueueUrl"], count=1)
    assert message["Body"] == "soon"
    assert message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] == "order-7"
    assert message["ArrivedAt"] * 1000 >= due["order-7"]
    assert [message.message_id for message in store.pending(10)] == ["order-8"]
    assert dispatch(aws, stored)["released"] == 0


@pytest.mark.usefixtures("schedule_off")
def test_deployed_delay_consumer_parks_what_is_far_away(
    aws: LocalAws, stored: dict[str, str], store: DynamoDbStore
) -> None:
    """After one hop a message of a month is in the store; moved there, it arrives. Both are in the
    ledger's bucket, and in no log."""
    sqsdelay(aws, "send", "stored", "--body", "parked", "--delay", "30d", "--hop", "1")
    parked = wait_for(lambda: [m for m in store.pending(10) if m.body == b"parked"], "not parked")
    message_id = parked[0].message_id
    assert store.reschedule(message_id, round(time.time() * 1000) + 2000)
    assert dispatch(aws, stored)["released"] == 1
    [message] = receive(aws, stored["QueueUrl"], count=1)
    assert message["Body"] == "parked"
    assert message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] == message_id

    def found() -> list[Event]:
        events = [e for e in delivered(aws, stored) if e.message_id == message_id]
        return events if len(events) > 1 else []

    told = [(event.source, event.kind) for event in wait_for(found, "not delivered")]
    assert Counter(told) == {
        (
            Source.CONSUMER,
            EventKind.PARKED,
        ): 1,  # noted after it is in the store: maybe the later of both
        (Source.DISPATCHER, EventKind.RELEASED): 1,
    }
    logs = [log_lines(aws, stored[name]) for name in ("FunctionName", "DispatcherName")]
    assert not [line for log in logs for line in log if '"ledger"' in line]


@pytest.mark.usefixtures("schedule_off")
def test_the_proof_of_an_endpoint_with_a_store(aws: LocalAws, stored: dict[str, str]) -> None:
    """It finds the table by itself, half of its messages wait there, and those of others stay."""
    proof = threading.Thread(target=lambda: found.append(proven(aws, "stored", 60)))
    found: list[dict[str, Any]] = []
    proof.start()
    while proof.is_alive():
        dispatch(aws, stored)
        proof.join(1)
    (told,) = found
    assert {route: each["sent"] for route, each in told["routes"].items()} == {
        "direct": 15,
        "delay-queue": 15,
        "store": 30,
    }
    assert set(told["reckoned"]) == set(told["routes"])


def test_schedule_runs_the_dispatcher_every_minute(aws: LocalAws, stored: dict[str, str]) -> None:
    """The deployed rule is enabled, and its only target is the dispatcher."""
    function = aws.client("lambda").get_function_configuration(
        FunctionName=stored["DispatcherName"]
    )
    events = aws.client("events")
    scheduled = [r for r in events.list_rules()["Rules"] if "ScheduleExpression" in r]
    targets = {r["Name"]: events.list_targets_by_rule(Rule=r["Name"])["Targets"] for r in scheduled}
    # Other stacks of this AWS have rules of their own.
    [rule] = [
        r
        for r in scheduled
        if [target["Arn"] for target in targets[r["Name"]]] == [function["FunctionArn"]]
    ]
    assert (rule["ScheduleExpression"], rule["State"]) == ("rate(1 minute)", "ENABLED")


STACK = "sqsdelay-stored"


def park(aws: LocalAws, stored: dict[str, str], body: str) -> None:
    """Put a message that is due into the store."""
    sqsdelay(
        aws,
        *("send", "stored", "--store-only", "--store", stored["StoreUrl"], "--body", body),
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
    aws: LocalAws, cdk: CdkCommand, app: Apps, stored: dict[str, str]
) -> None:
    """The deployment fails, says of each part why and what to give, and the dispatcher works as before."""
    park(aws, stored, "parked")
    before = sorted(kinds(aws))
    with pytest.raises(CdkFailed) as refused:
        cdk.deploy(STACK, *app("forgotten"))
    told = " ".join(str(refused.value).split())
    assert "the stack has a store, but this deployment has none" in told
    assert "store=none to give it up" in told
    assert "a bucket for large bodies, but this deployment has none" in told
    assert "has its ledger in a bucket, but this deployment does not" in told
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


@pytest.mark.last
def test_letting_go_by_name(
    aws: LocalAws, cdk: CdkCommand, app: Apps, stored: dict[str, str]
) -> None:
    """``none`` takes the dispatcher away and keeps table and ledger; later it need not be said again. The
    function, updated in its place, goes on."""
    [outputs] = cdk.deploy(STACK, *app("given up")).values()
    assert not {"DispatcherName", "BodyBucketName", "LedgerUrl"} & set(outputs)
    assert "AWS::DynamoDB::Table" not in kinds(aws)
    table = stored["StoreUrl"].removeprefix("dynamodb://")
    assert aws.client("dynamodb").describe_table(TableName=table)
    bucket = stored["LedgerUrl"].split("/")[2]
    assert aws.client("s3").list_objects_v2(Bucket=bucket)["KeyCount"]
    [outputs] = cdk.deploy(STACK, *app("forgotten")).values()
    assert "DispatcherName" not in outputs
    DelaySender(aws.client("sqs"), hop_seconds=1).send("stored", "hops", delay=3)
    assert [each["Body"] for each in receive(aws, stored["QueueUrl"], count=1)] == ["hops"]
