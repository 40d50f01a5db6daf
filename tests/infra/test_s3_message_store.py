"""What ``store=s3`` adds to an endpoint, property by property, and its grants held against the calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from aws_cdk.assertions import Template

from sqsdelay.cdk import function_names
from sqsdelay.cdk.functions import CONCURRENCY, TIMEOUT_SECONDS
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DELAY_QUEUE_VISIBILITY_SECONDS, GATHERING_SECONDS, MAX_DUE_MS
from sqsdelay.core.message import DELAY_SECONDS, OutgoingMessage, new_message_id, string
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.operating.status import OVERDUE_MARGIN_SECONDS
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying.gathering import ForwardingRelay, unpacked
from sqsdelay.relaying.outcomes import RelaySettings, Status
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores import S3Store
from tests.infra.conftest import (
    Calls,
    Stores,
    Templates,
    actions,
    arn,
    function,
    logical_id,
    only,
    statements,
)
from tests.messages import a_message


@pytest.fixture
def template(endpoint_template: Templates) -> Template:
    """Endpoint `orders` with an S3 store."""
    return endpoint_template(store="s3")


def test_bucket_keeps_messages(template: Template) -> None:
    """No version is kept, and no rule deletes an object."""
    properties = only(template, "AWS::S3::Bucket")["Properties"]
    assert "VersioningConfiguration" not in properties
    [lifecycle] = properties["LifecycleConfiguration"]["Rules"]
    assert lifecycle == {
        "Id": "abandoned-uploads",
        "Status": "Enabled",
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    }


def test_parking_queue(template: Template) -> None:
    """Standard, encrypted, 14 days, no redrive; no other run is given what one has in hand."""
    queue = only(template, "AWS::SQS::Queue", QueueName="orders-parking")["Properties"]
    assert queue["MessageRetentionPeriod"] == 14 * 24 * 3600
    assert queue["SqsManagedSseEnabled"] is True
    assert not {"FifoQueue", "RedrivePolicy"} & set(queue)
    assert TIMEOUT_SECONDS < DELAY_QUEUE_VISIBILITY_SECONDS < GATHERING_SECONDS


def test_functions_know_the_store_and_how_to_park(endpoint_template: Templates) -> None:
    """The delay consumer forwards; the dispatcher parks by the same rules, a run more at once."""
    template = endpoint_template(store="s3", hop_seconds=60, max_delay_seconds=86_400)
    bucket = logical_id(template, "AWS::S3::Bucket")
    url = {"Fn::Join": ["", ["s3://", {"Ref": bucket}]]}
    shared = {
        function_names.ENDPOINT_VARIABLE: "orders",
        function_names.HOP_SECONDS_VARIABLE: "60",
        function_names.MAX_DELAY_SECONDS_VARIABLE: "86400",
        function_names.STORE_VARIABLE: url,
    }
    consumer = function(template, function_names.CONSUMER_HANDLER)
    assert consumer["Environment"]["Variables"] == shared
    dispatcher = function(template, function_names.DISPATCHER_HANDLER)
    assert dispatcher["Environment"]["Variables"] == shared
    assert dispatcher["ReservedConcurrentExecutions"] == CONCURRENCY + 1


def test_schedules(template: Template) -> None:
    """It releases every minute, and every five is asked to park."""
    rules = [each["Properties"] for each in template.find_resources("AWS::Events::Rule").values()]
    asked = {rule["ScheduleExpression"]: rule["Targets"][0].get("Input") for rule in rules}
    assert asked == {"rate(1 minute)": None, "rate(5 minutes)": '{"park":true}'}


def test_alarms(template: Template) -> None:
    """Overdue messages, errors and throttles as with other stores; and what is not parked in time."""
    alarm = only(
        template,
        "AWS::CloudWatch::Alarm",
        MetricName="ApproximateAgeOfOldestMessage",
        Threshold=GATHERING_SECONDS + OVERDUE_MARGIN_SECONDS,
    )["Properties"]
    queue = {"Fn::GetAtt": [arn(template, "orders-parking")["Fn::GetAtt"][0], "QueueName"]}
    assert alarm["Dimensions"] == [{"Name": "QueueName", "Value": queue}]
    overdue = only(template, "AWS::CloudWatch::Alarm", MetricName=function_names.OVERDUE)[
        "Properties"
    ]
    assert overdue["TreatMissingData"] == "breaching"
    dashboard = str(only(template, "AWS::CloudWatch::Dashboard")["Properties"])
    assert function_names.FORWARDED in dashboard


def test_a_fifo_endpoint_releases_to_its_due_queue(endpoint_template: Templates) -> None:
    """And may not send to the destination itself."""
    template = endpoint_template("orders.fifo", store="s3")
    sent_to = [
        str(statement["Resource"])
        for statement in statements(template, function_names.DISPATCHER_HANDLER)
        if "sqs:SendMessage" in statement["Action"]
    ]
    destination = arn(template, "orders.fifo")["Fn::GetAtt"][0]
    assert any(arn(template, "orders-due")["Fn::GetAtt"][0] in each for each in sent_to)
    assert not any(f"'{destination}'" in each for each in sent_to)


def stored(due_ms: int) -> StoredMessage:
    return a_message(new_message_id(due_ms), due_ms, body=b"body")


def forwarded(store: S3Store, count: int) -> list[Status]:
    """What the delay consumer makes of so many far copies."""
    queues = SqsQueues(boto3.client("sqs"))
    settings = RelaySettings(parking=ParkingSettings(store), hop_seconds=1)
    relay = ForwardingRelay(queues, Endpoint.parse("orders"), settings)
    url = queues.url(relay.source)
    queues._client.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    delay = {DELAY_SECONDS: string("8640000")}
    for _ in range(count):
        name = new_message_id(round(time.time() * 1000) + 8_640_000_000)
        entry = OutgoingMessage("x", delay, 1, group_id=name, deduplication_id=name)
        queues.send_batch(url, [entry])
    return [o.status for o in relay.process(queues.receive_batch(url, wait_seconds=1))]


def test_dispatcher_is_granted_the_calls_it_makes(
    template: Template, calls: Calls, opened: Stores, dispatch: Callable[..., Any]
) -> None:
    """A run that releases, and one that parks, hands over and lets one hop, need all and no more."""
    store = opened(S3Store)
    store.store([stored(1000), stored(MAX_DUE_MS)])
    assert forwarded(store, 3) == [Status.FORWARDED] * 3
    waiting = forwarded_ids()
    now_ms = round(time.time() * 1000) + 1
    store.amend(
        [
            Amendment(message_id=waiting[0], at_ms=now_ms, due_ms=now_ms + 3_000_000),
            Amendment(message_id=waiting[1], at_ms=now_ms, due_ms=now_ms + 500_000),
        ]
    )
    calls.made.clear()
    assert dispatch("s3://parked", {}, seconds=100)["released"] == 1
    fates = {"handed-over": 1, "parked": 1, "requeued": 1}
    assert dispatch("s3://parked", {function_names.PARK: True}, seconds=100) == fates
    granted = statements(template, function_names.DISPATCHER_HANDLER)
    assert calls.of("s3") == actions(granted, "s3")
    assert calls.of("sqs") == actions(granted, "sqs")
    assert {queue for action, queue in calls.made if action == "sqs:SendMessage"} <= {
        "orders",
        "orders-delay.fifo",
        "orders-parking",
        "orders-delay-error",
    }


def forwarded_ids() -> list[str]:
    """Ids of the messages in the parking queue's one group, which is left there."""
    queues = SqsQueues(boto3.client("sqs"))
    url = queues.url(Endpoint.parse("orders").parking_queue)
    [group] = queues.receive_batch(url, wait_seconds=1)
    queues.hide_batch(url, [(group, 0)])
    return [copy.message_id for copy in unpacked(group)]
