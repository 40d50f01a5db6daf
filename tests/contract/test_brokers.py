"""One suite over every outbox and every sender: in memory, SQS, RabbitMQ, and the docs' own broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from runpy import run_path
from typing import Any

import boto3
import pytest
import time_machine
from moto import mock_aws

from sqsdelay import DelaySender
from sqsdelay.dispatching import Dispatcher, Failure, Outbox
from sqsdelay.errors import QueueMissing
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqOutbox, RabbitMqSender
from sqsdelay.receiving import message_id
from sqsdelay.sending import QueueSender, Sender
from sqsdelay.sqs import Endpoint, SqsOutbox, SqsQueues
from sqsdelay.testing import (
    InMemoryOutbox,
    InMemoryQueues,
    InMemoryStore,
    ManualClock,
    OutboxContract,
    SenderContract,
)
from sqsdelay.testing.broker_contract import MISSING, Received
from tests.acceptance.rabbitmq.broker import Broker
from tests.guides.page import ROOT
from tests.services.endpoints import create_endpoint, in_queue

ORDERS = Endpoint.parse("orders")
DOCUMENTED = str(ROOT / "docs/custom_broker.py")
Rejected = Callable[[], list[tuple[bytes, str]]]


class TestInMemoryOutbox(OutboxContract):
    @pytest.fixture
    def outbox(self) -> InMemoryOutbox:
        def fail(message: Any) -> Failure | None:
            missing = QueueMissing(MISSING)
            return Failure("x", missing, False) if message.destination == MISSING else None

        outbox = InMemoryOutbox(ManualClock())
        outbox.fail = fail
        return outbox

    @pytest.fixture
    def received(self, outbox: InMemoryOutbox) -> Received:
        def take() -> list[tuple[str, bytes]]:
            taken, outbox.sent = outbox.sent, []
            return [(message.message_id, message.body) for message in taken]

        return take

    @pytest.fixture
    def rejected(self, outbox: InMemoryOutbox) -> Rejected:
        return lambda: [(message.body, reason) for message, reason in outbox.rejected]


class OnMoto:
    """SQS, as moto answers for it, under virtual time."""

    @pytest.fixture
    def travel(self) -> Iterator[time_machine.Traveller]:
        with mock_aws(), time_machine.travel(1_800_000_000, tick=False) as travel:
            yield travel

    @pytest.fixture
    def client(self, travel: time_machine.Traveller) -> Any:
        client = boto3.client("sqs")
        create_endpoint(client, ORDERS)
        return client

    @pytest.fixture
    def received(self, client: Any) -> Received:
        return lambda: [(message_id(m), m["Body"].encode()) for m in taken(client, "orders")]


def taken(client: Any, queue: str) -> list[Any]:
    url = client.get_queue_url(QueueName=queue)["QueueUrl"]
    found: list[Any] = []
    while got := in_queue(client, url):
        for each in got:
            client.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
        found += got
    return found


class TestSqsOutbox(OnMoto, OutboxContract):
    @pytest.fixture
    def outbox(self, client: Any) -> Iterator[SqsOutbox]:
        with closing(SqsOutbox(SqsQueues(client), ORDERS)) as outbox:
            yield outbox

    @pytest.fixture
    def rejected(self, client: Any) -> Rejected:
        def take() -> list[tuple[bytes, str]]:
            return [
                (m["Body"].encode(), m["MessageAttributes"]["sqsdelay.Error"]["StringValue"])
                for m in taken(client, ORDERS.error_queue.name)
            ]

        return take


class TestSqsSender(OnMoto, SenderContract):
    @pytest.fixture
    def sender(self, client: Any) -> Sender[Any]:
        return DelaySender(client)

    @pytest.fixture
    def pass_time(self, travel: time_machine.Traveller) -> Callable[[float], object]:
        return travel.shift


class TestQueueSender(SenderContract):
    @pytest.fixture
    def queues(self) -> InMemoryQueues:
        queues = InMemoryQueues(ManualClock())
        queues.create_endpoint("orders")
        return queues

    @pytest.fixture
    def sender(self, queues: InMemoryQueues) -> Sender[Any]:
        return QueueSender(queues)

    @pytest.fixture
    def received(self, queues: InMemoryQueues) -> Received:
        def take() -> list[tuple[str, bytes]]:
            copies = queues.receive_batch("orders", wait_seconds=0)
            queues.delete_batch("orders", copies)
            return [(copy.message_id, copy.body.encode()) for copy in copies]

        return take

    @pytest.fixture
    def pass_time(self, queues: InMemoryQueues) -> Callable[[float], object]:
        return queues.clock.advance


class OnRabbitMq:
    """A real broker; its time passes by itself."""

    @pytest.fixture
    def received(self, broker: Broker) -> Received:
        return lambda: [(str(p.message_id), body) for _, p, body in broker.drain("orders")]


class TestRabbitMqOutbox(OnRabbitMq, OutboxContract):
    @pytest.fixture
    def outbox(self, broker: Broker) -> Iterator[RabbitMqOutbox]:
        broker.queue("orders")
        with closing(RabbitMqOutbox(broker.url, "orders")) as outbox:
            yield outbox

    @pytest.fixture
    def rejected(self, broker: Broker) -> Rejected:
        def take() -> list[tuple[bytes, str]]:
            found = broker.drain(ORDERS.error_queue.name)
            return [
                (body, json.loads(p.headers["sqsdelay.Error"])["reason"]) for _, p, body in found
            ]

        return take


class TestRabbitMqSender(OnRabbitMq, SenderContract):
    @pytest.fixture
    def broker(self, shared: Broker) -> Broker:
        """What a test sends has arrived at its end."""
        shared.ready("orders")
        return shared

    @pytest.fixture
    def sender(self, broker: Broker) -> Iterator[Sender[Any]]:
        with RabbitMqSender(broker.url) as sender:
            yield sender

    @pytest.fixture
    def make_message(self) -> Callable[..., Any]:
        return RabbitMqMessage


class OnFolders:
    """The docs' own broker."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def outbox(self, tmp_path: Path, clock: ManualClock) -> Outbox:
        for queue in ("orders", "errors"):
            (tmp_path / queue).mkdir()
        outbox: Outbox = run_path(DOCUMENTED)["FolderOutbox"](tmp_path, clock=clock)
        return outbox

    @pytest.fixture
    def received(self, tmp_path: Path) -> Received:
        return lambda: [(m["id"], m["body"].encode()) for m in read(tmp_path / "orders")]

    @pytest.fixture
    def rejected(self, tmp_path: Path) -> Rejected:
        return lambda: [(m["body"].encode(), m["reason"]) for m in read(tmp_path / "errors")]


def read(folder: Path) -> list[dict[str, str]]:
    files = list(folder.glob("*.json"))
    found = [json.loads(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return found


class TestCustomOutbox(OnFolders, OutboxContract):
    """The example keeps what ours keep."""


class TestCustomSender(OnFolders, SenderContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> InMemoryStore:
        return InMemoryStore(clock)

    @pytest.fixture
    def sender(self, outbox: Outbox, store: InMemoryStore) -> Sender[Any]:
        sender: Sender[Any] = run_path(DOCUMENTED)["FolderSender"](outbox, store)
        return sender

    @pytest.fixture
    def pass_time(
        self, clock: ManualClock, store: InMemoryStore, outbox: Outbox
    ) -> Callable[[float], object]:
        def advance(seconds: float) -> None:
            dispatcher = Dispatcher(store, outbox, clock=clock)
            dispatcher.start()
            clock.advance(seconds)
            dispatcher.dispatch()

        return advance
