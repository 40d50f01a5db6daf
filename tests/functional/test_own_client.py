"""The clients a sender or a worker makes itself do not check parameters: what they pass on was checked."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ClassVar

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ParamValidationError
from moto import mock_aws

from sqsdelay import AsyncDelaySender, DelayConsumer, DelaySender, Message
from sqsdelay.core.message import string
from sqsdelay.errors import SqsDelayError
from sqsdelay.sqs.client import default_client
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import create_endpoint, in_queue
from tests.services.network import Handler, serving


def client_of(user: Any) -> Any:
    return getattr(user, "batches", user)._queues._client


def checks_parameters(client: Any) -> bool:
    answer: Any = AWSResponse("", 200, HTTPHeaders(), None), {}
    client.meta.events.register("before-call.sqs", lambda **_: answer)
    try:
        client.get_queue_url()
    except ParamValidationError:
        return True
    return False


def test_only_their_own_clients_leave_parameters_unchecked() -> None:
    """A sender has checked them, a worker's are botocore's own answers. Whoever else makes a client of
    the default session may pass on what nobody has checked."""
    assert not checks_parameters(client_of(DelaySender()))
    assert not checks_parameters(client_of(DelayConsumer("orders")))
    assert checks_parameters(default_client(connections=1))


def test_the_user_agent_is_put_together_once() -> None:
    """Botocore would do it twice for each request; AWS's logs still tell who asks, and with what."""
    agents: list[str] = []
    client = default_client(connections=1, region="eu-west-1")

    def note(request: Any, **_: Any) -> None:
        agents.append(request.headers["User-Agent"].decode())
        raise RuntimeError("far enough")

    client.meta.events.register("before-send.sqs.GetQueueUrl", note)
    with pytest.raises(RuntimeError, match="far enough"):
        client.get_queue_url(QueueName="orders")
    assert re.fullmatch(r"sqsdelay Boto3/\S+ Python/\S+ Botocore/\S+( .*)?", agents[0])


@mock_aws
def test_an_instrumentation_finds_the_senders_trace_and_leaves_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As OpenTelemetry's of boto3 adds them; also where threads send, or tasks share a request."""
    trace = ContextVar("trace", default="of nobody")
    sender = DelaySender()
    client = client_of(sender)
    create_endpoint(client, "traced")
    send_batch = client.send_message_batch

    def traced(**arguments: Any) -> Any:
        for entry in arguments["Entries"]:
            entry["MessageAttributes"]["traceparent"] = string(trace.get())
        return send_batch(**arguments)

    monkeypatch.setattr(client, "send_message_batch", traced)
    own, none = {"traceparent": "mine"}, {"tenant": "acme"}
    trace.set("the sender's")
    given = [Message("x", attributes=own if n % 2 else none) for n in range(24)]
    assert not any(result.error for result in sender.send_many("traced", given))

    async def share() -> None:
        async with AsyncDelaySender(sender) as shared:
            await asyncio.gather(*(shared.send("traced", "x", attributes=own) for _ in range(3)))

    asyncio.run(share())
    found = Counter[str]()
    while copies := in_queue(client, "traced"):
        found.update(m["MessageAttributes"]["traceparent"]["StringValue"] for m in copies)
    assert found == {"mine": 15, "the sender's": 12}


class Crowded(Handler):
    """Answers a round of requests when all of them have come."""

    together = threading.Barrier(24, timeout=PATIENCE_SECONDS)
    connections: ClassVar[set[Any]] = set()

    def do_POST(self) -> None:
        self.read()
        self.connections.add(self.client_address)
        self.together.wait()
        self.answer(b'{"MessageId": "sqs-1"}')


def test_more_threads_than_usual_keep_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of their sends would begin with a TLS handshake."""
    with serving(Crowded) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        sender = DelaySender()
        with ThreadPoolExecutor(24) as threads:
            for _ in range(3):
                list(threads.map(lambda n: sender.send(f"{url}/1/orders-{n}", "x"), range(24)))
    assert len(Crowded.connections) == 24


BAD: dict[str, dict[str, Any]] = {
    "no body": {"body": None},
    "bytes for a body": {"body": b"x"},
    "an empty body": {"body": ""},
    "a delay of text": {"delay": "60"},
    "a negative delay": {"delay": -1},
    "a due time of text": {"due_at": "2030-01-01"},
    "a due time without a zone": {"due_at": datetime(2030, 1, 1)},  # noqa: DTZ001
    "an attribute of no type": {"attributes": {"a": object()}},
    "a list for an attribute": {"attributes": {"a": ["x"]}},
    "a number as a StringValue": {"attributes": {"a": {"DataType": "Number", "StringValue": 1}}},
    "text as a BinaryValue": {"attributes": {"a": {"DataType": "Binary", "BinaryValue": "x"}}},
    "an unknown part": {"attributes": {"a": {"DataType": "String", "StringValue": "x", "B": 1}}},
    "no data type": {"attributes": {"a": {"StringValue": "x"}}},
    "a number for a name": {"attributes": {1: "x"}},
    "a number for an id": {"message_id": 1},
    "an empty group": {"message_group_id": ""},
    "a number for a group": {"message_group_id": 1},
    "a number for a deduplication id": {"message_deduplication_id": 1},
    "a number for a trace header": {"trace_header": 1},
    "an empty trace header": {"trace_header": ""},
}


class Watched:
    """A sender with a client of its own, and the sends that left it."""

    def __init__(self) -> None:
        self.sender = DelaySender()
        self.sent: list[str] = []
        client = client_of(self.sender)
        create_endpoint(client, "orders")
        client.meta.events.register("before-send.sqs.SendMessage", self._note)

    def _note(self, **_: Any) -> None:
        self.sent.append("x")


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with mock_aws():
        yield Watched()


@pytest.mark.parametrize("delay", [60, 86_400], ids=["direct", "relayed"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_boto3_would_have_refused_the_sender_refuses(
    watched: Watched, bad: dict[str, Any], delay: int
) -> None:
    """Before anything is sent, with an error of sqsdelay's that says what is wrong."""
    due: dict[str, Any] = {} if "due_at" in bad else {"delay": delay}
    watched.sent.clear()
    with pytest.raises(SqsDelayError) as refused:
        watched.sender.send("orders", **({"body": "x"} | due | bad))
    assert isinstance(refused.value, ValueError)
    assert watched.sent == []
    watched.sender.send("orders", "x", **due, attributes={"a": "x"}, trace_header="Root=1-5-x")
    assert watched.sent == ["x"]
