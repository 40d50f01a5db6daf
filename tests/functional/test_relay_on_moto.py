"""The whole relay through boto3 on moto, under virtual time.

moto is wrong where SQS is right in: deduplication ends with a delete (so a duplicate would show here
that SQS would swallow: none does), a batch send drops system attributes (the trace header is tested on
the local AWS), ten attributes are no limit. Nothing below leans on these.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
import time_machine
from moto import mock_aws

from sqsdelay import DelayConsumer, DelaySender
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import QueueMissing
from sqsdelay.relaying.outcomes import Status
from tests.functional.counted_requests import TravellingClock
from tests.services.endpoints import create_endpoint, in_queue

START = datetime(2027, 3, 1, 12, tzinfo=UTC)


class World:
    """An endpoint on moto, a worker, a receiver, and the time."""

    def __init__(self, travel: time_machine.Traveller) -> None:
        self.travel = travel
        self.client: Any = boto3.client("sqs")
        create_endpoint(self.client, "orders")
        self.url = self.client.get_queue_url(QueueName="orders")["QueueUrl"]
        clock = TravellingClock()
        self.sender = DelaySender(self.client, clock=clock)
        self.consumer = DelayConsumer("orders", self.client, clock=clock)
        self.statuses: list[Status] = []

    def pass_seconds(self, seconds: float) -> None:
        self.travel.shift(seconds)
        self.statuses += [outcome.status for outcome in self.consumer.poll(wait_seconds=0)]

    def arrived(self) -> list[dict[str, Any]]:
        return in_queue(self.client, self.url)


@pytest.fixture
def world() -> Iterator[World]:
    with mock_aws(), time_machine.travel(START, tick=False) as travel:
        yield World(travel)


def test_845_seconds_go_directly(world: World) -> None:
    """14 min 5 s: one message timer, no relay, no attribute."""
    world.sender.send("orders", "x", delay=845)
    world.pass_seconds(844)
    assert world.arrived() == []
    world.pass_seconds(1)
    (message,) = world.arrived()
    assert "MessageAttributes" not in message
    assert world.statuses == []


def test_1925_seconds_take_two_hops_and_a_message_timer(world: World) -> None:
    """32 min 5 s: 900 s, 900 s, and 125 s at the destination."""
    result = world.sender.send("orders", "x", delay=1925, attributes={"a": "b"})
    world.pass_seconds(900)
    world.pass_seconds(900)
    assert world.statuses == [Status.REQUEUED, Status.HANDED_OVER]
    world.pass_seconds(124)
    assert world.arrived() == []
    world.pass_seconds(1)
    (message,) = world.arrived()
    assert message["Body"] == "x"
    assert message["MessageAttributes"] == {
        "a": {"StringValue": "b", "DataType": "String"},
        "sqsdelay.MessageId": {"StringValue": result.message_id, "DataType": "String"},
        "sqsdelay.WasDueAt": {
            "StringValue": str(round((START.timestamp() + 1925) * 1000)),
            "DataType": "String",
        },
    }


def test_a_worker_whose_first_poll_failed_serves_both_queues_later(world: World) -> None:
    endpoint = Endpoint.parse("parcels.fifo")
    create_endpoint(world.client, endpoint)
    due_url = world.client.get_queue_url(QueueName=endpoint.due_queue.name)["QueueUrl"]
    world.client.delete_queue(QueueUrl=due_url)
    clock = TravellingClock()
    world.consumer = DelayConsumer(endpoint.name, world.client, clock=clock)
    for _ in range(2):
        with pytest.raises(QueueMissing):
            world.consumer.poll(wait_seconds=0)
    create_endpoint(world.client, endpoint)
    world.sender.send(endpoint.name, "parcel", delay=1000, message_group_id="customer-7")
    for _ in range(3):
        world.pass_seconds(900)
    world.url = world.client.get_queue_url(QueueName=endpoint.name)["QueueUrl"]
    assert [message["Body"] for message in world.arrived()] == ["parcel"]
