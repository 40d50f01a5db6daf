"""``cdk deploy -c store=scheduler`` on a local AWS: the schedule group, its role, the function as deployed.

The local AWS drops schedules with a universal target silently when they fire: here the test fires them, as
the service would, with the role that each names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from infra.local import CdkCommand
from sqsdelay import Change, DelaySender
from sqsdelay.stores import SchedulerStore
from sqsdelay.stores.scheduler.group import SEND_MESSAGE
from sqsdelay.testing.local_aws import LocalAws
from tests.acceptance.deployed.conftest import Apps
from tests.acceptance.deployment import dispatch, given_up, receive, scheduled, sqsdelay
from tests.patience import wait_for

ENDPOINT, STACK = "timed", "sqsdelay-timed"
DAY = 86_400


@pytest.fixture(scope="module")
def timed(aws: LocalAws, deployed: dict[str, dict[str, str]]) -> dict[str, str]:
    """The outputs of an endpoint with a schedule group; nobody but the test empties its parking queue."""
    scheduled(aws, deployed[STACK]["DispatcherName"], enabled=False)
    return deployed[STACK]


@pytest.fixture
def place(aws: LocalAws, timed: dict[str, str]) -> Iterator[SchedulerStore]:
    """The deployed group, as a place to park in."""
    group, _, role = timed["StoreUrl"].removeprefix("scheduler://").partition("?role=")
    opened = SchedulerStore(group, role_arn=role, endpoint=ENDPOINT, client=aws.client("scheduler"))
    yield opened
    opened.close()


def schedules(aws: LocalAws) -> list[dict[str, Any]]:
    """The messages' schedules in the group."""
    client = aws.client("scheduler")
    listed = client.list_schedules(GroupName=ENDPOINT, NamePrefix="m.")["Schedules"]
    return [client.get_schedule(GroupName=ENDPOINT, Name=each["Name"]) for each in listed]


def fire(aws: LocalAws, schedule: dict[str, Any]) -> None:
    """Do what EventBridge Scheduler does when the time of a one-time schedule has come."""
    target = schedule["Target"]
    assert target["Arn"] == SEND_MESSAGE
    assumed = aws.client("sts").assume_role(RoleArn=target["RoleArn"], RoleSessionName="scheduler")
    keys = assumed["Credentials"]
    sqs = aws.client(
        "sqs",
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
    )
    request = json.loads(target["Input"])
    name = request["QueueUrl"].rpartition("/")[2]
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    # Its message timer would hide it for minutes.
    sqs.send_message(**request | {"QueueUrl": url, "DelaySeconds": 0})
    assert schedule["ActionAfterCompletion"] == "DELETE"
    aws.client("scheduler").delete_schedule(GroupName=ENDPOINT, Name=schedule["Name"])


def test_a_schedule_fires_into_the_parking_queue_and_the_message_arrives(
    aws: LocalAws, timed: dict[str, str], place: SchedulerStore
) -> None:
    """Cancelled and moved while it waits; once it has fired, it is moved or cancelled by an amendment, which
    the deployed function heeds: it arrives when it is due then, and not early."""
    sender = DelaySender(aws.client("sqs"), store=place, hop_seconds=1, park_after_seconds=1_800)
    sender.send(ENDPOINT, "gone", delay=DAY, message_id="order-6")
    sender.send(ENDPOINT, "fired", delay=DAY, message_id="order-7")
    sender.send(ENDPOINT, "too late", delay=DAY, message_id="order-8")
    assert sender.cancel(ENDPOINT, "order-6") is Change.DONE
    # As near as a schedule can be: what the function gets is too near to be parked again.
    assert sender.reschedule(ENDPOINT, "order-7", delay=DAY + 60) is Change.DONE
    # An amendment counts from when the message was put here, and clocks are known to the second.
    time.sleep(3)
    for schedule in schedules(aws):
        fire(aws, schedule)
    assert place.find("order-7") is None
    assert sender.cancel(ENDPOINT, "order-8") is Change.REQUESTED
    earliest = time.time() + 2
    assert sender.reschedule(ENDPOINT, "order-7", delay=2) is Change.REQUESTED
    assert dispatch(aws, timed, {"park": True}) == {"handed-over": 1, "cancelled": 1}
    [message] = receive(aws, timed["QueueUrl"], count=1)
    assert message["Body"] == "fired"
    assert message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] == "order-7"
    assert message["ArrivedAt"] >= earliest


def test_the_deployed_function_parks_in_the_group(
    aws: LocalAws, timed: dict[str, str], place: SchedulerStore
) -> None:
    """A message of a month becomes a schedule, whose role may send where it is to go."""
    sent = DelaySender(aws.client("sqs"), hop_seconds=1).send(ENDPOINT, "far", delay=30 * DAY)
    [schedule] = wait_for(lambda: schedules(aws), "not parked")
    assert sent.message_id in schedule["Target"]["Input"]
    assert timed["StoreUrl"].endswith(f"?role={schedule['Target']['RoleArn']}")
    [waiting] = place.pending(10)
    assert waiting.body == b"far"
    assert place.cancel([waiting.message_id]) == [True]


@pytest.mark.nightly
@pytest.mark.last
def test_what_waits_in_a_group_that_was_given_up_is_found_and_still_fires(
    aws: LocalAws, cdk: CdkCommand, app: Apps, timed: dict[str, str], place: SchedulerStore
) -> None:
    """Group, role and parking queue are kept, and tell of each other."""
    DelaySender(aws.client("sqs"), store=place, hop_seconds=1).send(ENDPOINT, "kept", delay=DAY)
    told = sqsdelay(aws, "endpoint", "check", ENDPOINT, "--hop", "1")
    assert "ready for unrestricted delays" in told
    cdk.deploy(STACK, *app("given up"))
    remedy = f"run sqsdelay consume timed --store '{timed['StoreUrl']}'"
    waiting = place.pending_count()
    assert given_up(aws, ENDPOINT) == [("(store)", f"{waiting} parked", remedy)]
    for schedule in schedules(aws):
        fire(aws, schedule)
    queue = ("timed-parking", f"{waiting} messages,", remedy)
    assert given_up(aws, ENDPOINT) == [queue]
