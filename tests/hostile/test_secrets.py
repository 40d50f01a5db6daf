"""No body, attribute or password in what sqsdelay logs, prints or raises, at the default level."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import boto3
import pytest
from moto import mock_aws

from lambdas.delay_consumer import handler as consumer_function
from lambdas.dispatcher import handler as dispatcher_function
from sqsdelay.cli import main
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DELAY_SECONDS, ERROR, Attribute, Message, OutgoingMessage, string
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.errors import MalformedMessage, SqsDelayError, StoreUnavailable
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure
from sqsdelay.rabbitmq import RabbitMqMessage, RabbitMqSender
from sqsdelay.rabbitmq.connection import Session, parameters
from sqsdelay.rabbitmq.management import Management
from sqsdelay.rabbitmq.outbox import RabbitMqOutbox
from sqsdelay.rabbitmq.verification import verify
from sqsdelay.relaying import DueRelay, Relay, RelaySettings, Status
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sending.sizes import PAYLOAD_SIZE, read_pointer
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.stores import DynamoDbStore, open_store
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock
from tests.faulty import FaultyStore
from tests.messages import a_message
from tests.services.endpoints import create_endpoint
from tests.services.lambda_function import Context
from tests.services.network import closed_port

SECRET = "S3cretWord"
ATTRIBUTES: dict[str, Attribute] = {"card": string(SECRET)}

Quiet = Callable[[], str]


@pytest.fixture
def printed(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[Quiet]:
    """Everything logged at the default level (warnings), and everything printed, so far."""
    caplog.set_level(logging.WARNING)
    with caplog.at_level(logging.WARNING):
        yield lambda: caplog.text + "".join(capfd.readouterr())


def shown(error: BaseException) -> str:
    """The error as a traceback shows it, causes and all, without the lines of code."""
    parts = traceback.TracebackException.from_exception(error)
    text = []
    while parts is not None:
        text += list(parts.format_exception_only())
        parts = parts.__cause__ or (None if parts.__suppress_context__ else parts.__context__)  # type: ignore[assignment]
    return "".join(text)


def put(queues: InMemoryQueues, queue: str, attributes: dict[str, Attribute], n: int) -> None:
    entry = OutgoingMessage(
        f"{SECRET} {n}",
        attributes,
        10,
        None,
        f"m-{n}" if queue.endswith("fifo") else None,
        f"m-{n}",
    )
    queues.send_batch(queue, [entry])


def test_senders(printed: Quiet) -> None:
    """A refused message is told by what is wrong with it, not by what is in it."""
    clock = ManualClock()
    queues = InMemoryQueues(clock)
    queues.create_endpoint("orders")
    sender = QueueSender(
        queues, SenderSettings(parking=ParkingSettings(FaultyStore(clock, {"store", "amendments"})))
    )
    bad = [
        Message(SECRET + "\x00"),
        Message(SECRET * 200_000),
        Message(SECRET, attributes={"card": SECRET + "\ud800"}),
        Message(SECRET, attributes={f"a{n}": SECRET for n in range(11)}),
        Message(SECRET, delay=90_000),
        Message(SECRET, delay=-1),
        Message(SECRET.encode()),  # type: ignore[arg-type]
        Message(SECRET, attributes={"card": [SECRET]}),  # type: ignore[dict-item]
        Message(SECRET, attributes={"card": {"DataType": "Binary", "StringValue": SECRET}}),
    ]
    for result in sender.send_many("orders", bad):
        assert result.error is not None
        assert SECRET not in shown(result.error)
    assert SECRET not in printed()


def test_consumers(printed: Quiet) -> None:
    """Rejects, failures, parking that fails and deletes that fail: ids and reasons only."""
    clock = ManualClock()

    class Faulty(InMemoryQueues):
        def delete_batch(self, queue_url: str, copies: Any) -> list[Failure | None]:
            return [Failure("Away", StoreUnavailable("away"), transient=True)] * len(copies)

    queues = Faulty(clock)
    endpoint = queues.create_endpoint("orders")
    queues.create_endpoint("tasks.fifo")
    delays = ("soon", "1000", "50000")
    for n, delay in enumerate(delays):
        put(queues, "orders-delay.fifo", ATTRIBUTES | {DELAY_SECONDS: string(delay)}, n)
    clock.advance(900)
    queues.delete_queue("orders")
    relay = Relay(
        queues,
        endpoint,
        RelaySettings(parking=ParkingSettings(FaultyStore(clock, {"store", "amendments"}))),
    )
    copies = queues.receive_batch("orders-delay.fifo", wait_seconds=0)
    copies.append(replace(copies[0], unreadable="message attribute 'x' has no value of its type"))
    statuses = {outcome.status for outcome in relay.process(copies)}
    assert statuses == {Status.REJECTED, Status.FAILED, Status.REQUEUED}
    put(queues, "tasks-due", ATTRIBUTES, 9)
    due = DueRelay(queues, Endpoint.parse("tasks.fifo"))
    (outcome,) = due.process(queues.receive_batch("tasks-due", wait_seconds=0))
    assert outcome.status is Status.REJECTED
    told = printed()
    assert "m-1 stays in orders-delay.fifo" in told
    assert SECRET not in told


def test_dispatchers(printed: Quiet) -> None:
    """A body that is no text, a queue that is missing, headers that cannot be read: ids and reasons."""
    clock = ManualClock()
    queues = InMemoryQueues(clock)
    endpoint = queues.create_endpoint("orders")
    store = InMemoryStore(clock)
    message = a_message("m", clock.true_ms, body=SECRET.encode(), attributes=ATTRIBUTES)  # fmt: skip
    store.store(
        [
            replace(message, message_id="bytes", body=SECRET.encode() + b"\xff"),
            replace(message, message_id="nul", body=SECRET.encode() + b"\x00"),
            replace(message, message_id="nowhere", destination="nowhere"),
        ]
    )
    with mock.patch.object(StoredMessage, "headers", return_value='{"attributes": {"a": {}}}'):
        store.store([replace(message, message_id="headers")])
    with closing(SqsOutbox(queues, endpoint)) as outbox:
        settings = DispatchSettings(number_of_retries=1)
        done = Dispatcher(store, outbox, settings=settings, clock=clock).dispatch()
    assert {m.message_id for m in done.rejected} == {"bytes", "nul", "headers"}
    assert [m.message_id for m in done.failed] == ["nowhere"]
    told = printed()
    assert "message bytes not released" in told
    assert SECRET not in told


def test_a_body_that_should_be_a_pointer() -> None:
    """A wrong pointer is told by its length: it may be the body itself."""
    with pytest.raises(MalformedMessage) as raised:
        read_pointer(f'"{SECRET}"', {PAYLOAD_SIZE: string("5")})
    assert SECRET not in shown(raised.value)


def test_functions(printed: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the functions write to CloudWatch: metrics, ids and reasons."""
    monkeypatch.setenv("SQSDELAY_ENDPOINT", "secrets")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "f")
    monkeypatch.setenv("SQSDELAY_STORE", "dynamodb://parked")
    with mock_aws():
        client = boto3.client("sqs")
        create_endpoint(client, "secrets")
        store = DynamoDbStore("parked", endpoint="secrets")
        store.set_up()
        store.store(
            [
                a_message("lost", 1, to="nowhere", body=SECRET.encode(), attributes=ATTRIBUTES)
            ]
        )  # fmt: skip
        client.delete_queue(QueueUrl=client.get_queue_url(QueueName="secrets")["QueueUrl"])
        records = [
            {
                "messageId": f"s-{n}",
                "receiptHandle": SECRET,
                "body": SECRET,
                "attributes": {"SentTimestamp": "1799999100000", "MessageGroupId": f"m-{n}"},
                "messageAttributes": {
                    "card": {"dataType": "String", "stringValue": SECRET},
                    DELAY_SECONDS: {"dataType": "String", "stringValue": delay},
                },
            }
            for n, delay in enumerate(("soon", "0"))
        ]
        records.append({"messageId": "s-9", "body": SECRET})
        consumer_function.function.cache_clear()
        dispatcher_function.function.cache_clear()
        try:
            answer = consumer_function.handler({"Records": records}, Context())
            create_endpoint(client, "secrets")
            counts = dispatcher_function.handler({}, Context())
        finally:
            consumer_function.function.cache_clear()
            dispatcher_function.function.cache_clear()
            store.close()
    assert {"itemIdentifier": "s-9"} in answer["batchItemFailures"]
    assert counts["rejected"] + counts["failed"] == 1
    told = printed()
    assert "m-0" in told
    assert SECRET not in told


@pytest.fixture(scope="module", name="closed_port")
def port_where_nobody_listens() -> Iterator[int]:
    with closed_port() as port:
        yield port


def test_a_postgresql_password(printed: Quiet, closed_port: int) -> None:
    """The server cannot be reached: the error and the driver's own log name host and user at most."""
    url = f"postgresql://me:{SECRET}@127.0.0.1:{closed_port}/db"
    with closing(open_store(url, endpoint="orders")) as store:
        with pytest.raises(StoreUnavailable) as raised:
            store.pending_count()
        with store.watch(lambda: None):
            pass
    assert SECRET not in shown(raised.value)
    told = printed()
    assert "not listening for stored messages" in told
    assert SECRET not in told


def test_rabbitmq_passwords(printed: Quiet, closed_port: int) -> None:
    """The broker cannot be reached: neither our error nor pika's log shows the password."""
    url = f"amqp://me:{SECRET}@127.0.0.1:{closed_port}/vhost"

    def administer() -> None:
        with Session(parameters(url)):
            pass

    def send() -> None:
        with closing(RabbitMqSender(url, connect_seconds=0.1)) as sender:
            sender.send("orders", SECRET, delay=5)

    def dispatch() -> None:
        with closing(RabbitMqOutbox(url, "orders", connect_seconds=0.1)) as outbox:
            outbox.check()

    raised = []
    for use in (
        administer,
        send,
        dispatch,
        lambda: verify(url),
        lambda: Management(f"http://me:{SECRET}@127.0.0.1:{closed_port}", "/").named("queues"),
    ):
        with pytest.raises(SqsDelayError) as error:
            use()
        raised.append(shown(error.value))
    with suppress(SqsDelayError):
        RabbitMqSender(url, connect_seconds=0.1).send_many("orders", [RabbitMqMessage(SECRET)])
    assert SECRET not in "".join(raised)
    assert SECRET not in printed()


def test_passwords_on_the_command_line(
    printed: Quiet, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a command is printed where others may look on."""
    for arguments in (
        ["cancel", "orders", "a", f"--store=postgresql://me:{SECRET}@127.0.0.1:{closed_port}/db"],
        ["pending", "orders", f"--store=mysql://me:{SECRET}@host/db"],
        ["pending", "orders", f"--store=postgresql://me:%zz{SECRET}@host/db"],
        ["rabbitmq", f"--url=amqp://me:{SECRET}@127.0.0.1:{closed_port}/", "declare"],
        ["rabbitmq", f"--url=amqp://me:{SECRET}@127.0.0.1:port/", "declare"],
    ):
        monkeypatch.setattr("sys.argv", ["sqsdelay", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (1, 2)
        assert SECRET not in printed(), arguments


def test_the_error_queue_does_have_it() -> None:
    """Nothing is lost for secrecy's sake: who may read the error queue sees message and reason."""
    clock = ManualClock()
    queues = InMemoryQueues(clock)
    endpoint = queues.create_endpoint("orders")
    put(queues, "orders-delay.fifo", ATTRIBUTES | {DELAY_SECONDS: string("soon")}, 1)
    clock.advance(900)
    Relay(queues, endpoint).process(queues.receive_batch("orders-delay.fifo", wait_seconds=0))
    (rejected,) = queues.receive_batch("orders-delay-error", wait_seconds=0)
    assert rejected.body == f"{SECRET} 1"
    reason = json.loads(rejected.attributes[ERROR]["StringValue"])["reason"]
    assert SECRET not in reason
