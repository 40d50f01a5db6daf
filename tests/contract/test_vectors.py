"""The sender's contract is what Python's sender does; senders in other languages are held to the file."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from sqsdelay.core.delay import due_at_ms
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import OutgoingMessage, size_of
from sqsdelay.parking.parking import Change
from sqsdelay.ports.queues import Failure
from sqsdelay.testing import VirtualSqs
from tests.contract.vectors import contract, read


def test_the_vectors_are_what_the_sender_does() -> None:
    """A change of either shows here; ``python -m tests.contract.vectors`` writes the answers down."""
    assert contract() == read()


def test_each_vector_has_a_name_of_its_own_and_an_answer() -> None:
    """No vector is left without what it is for, and each error says something."""
    vectors = read()["vectors"]
    assert len({vector["name"] for vector in vectors}) == len(vectors) > 60
    for vector in vectors:
        assert ("sends" in vector) != ("error" in vector), vector["name"]
        assert ("error" in vector) == ("says" in vector), vector["name"]


def test_every_route_and_error_of_a_send_has_a_vector() -> None:
    """But for the errors of a network, and those of stores and buckets."""
    vectors = read()["vectors"]
    assert {vector["sends"]["route"] for vector in vectors if "sends" in vector} == {
        "direct",
        "delay-queue",
        "due-queue",
    }
    assert {vector["error"] for vector in vectors if "error" in vector} == {
        "ConfigurationError",
        "DelayQueueMissing",
        "InvalidDelay",
        "InvalidEndpoint",
        "InvalidMessage",
        "MessageTooLarge",
        "QueueMissing",
        "TooManyAttributes",
    }


def _waiting() -> list[Any]:
    """The vectors that wait in a delay queue or due queue of the endpoints' usual hop."""
    return [
        pytest.param(vector, id=vector["name"])
        for vector in read()["vectors"]
        if "sends" in vector and vector["sends"]["route"] != "direct" and "settings" not in vector
    ]


class World:
    """The endpoints, with a store, when the vectors are sent; nothing of Python's sender sends here."""

    def __init__(self, vector: Mapping[str, Any]) -> None:
        self.virtual = VirtualSqs(now=datetime.fromisoformat(read()["now"]), store=True)
        self.sends = vector["sends"]
        self.endpoint = Endpoint.parse(vector["endpoint"]).name
        self.virtual.create(self.endpoint)
        given = self.sends["messageId"]
        self.message_id = f"u01mcc6m2x1{uuid.uuid4().hex[:16]}" if given == "{id}" else given
        repeated = vector["message"].get("bodyRepeat", 1)
        self.body = str(vector["message"]["body"]) * repeated

    def send(self) -> None:
        """Make the vector's request, as any SDK does."""
        known = {"{id}": self.message_id, "{deduplication id}": f"send.{uuid.uuid4().hex * 2}"}
        text = json.dumps(self.sends["request"])
        for placeholder, value in known.items():
            text = text.replace(placeholder, value)
        request = json.loads(text)
        attributes = request.get("MessageAttributes", {})
        for each in attributes.values():
            if "BinaryValue" in each:
                each["BinaryValue"] = base64.b64decode(each["BinaryValue"])
        trace = request.get("MessageSystemAttributes", {}).get("AWSTraceHeader", {})
        entry = OutgoingMessage(
            body=self.body,
            attributes=attributes,
            size=size_of(self.body, attributes),
            delay_seconds=request.get("DelaySeconds"),
            group_id=request.get("MessageGroupId"),
            deduplication_id=request.get("MessageDeduplicationId"),
            trace_header=trace.get("StringValue"),
        )
        queue = QueueRef(self.sends["queueUrl"].rpartition("/")[2])
        queues = self.virtual.queues
        (sent,) = queues.send_batch(queues.url(queue), [entry])
        assert not isinstance(sent, Failure)

    def arrives(self, due_ms: int) -> None:
        """Once, under the id that its sender gave, on time, with nothing after it."""
        (arrival,) = self.virtual.drain()
        assert (arrival.message_id, arrival.body) == (self.message_id, self.body)
        assert 0 <= due_at_ms(arrival.at) - due_ms < 2000


@pytest.mark.parametrize("vector", _waiting())
def test_what_a_vector_sends_arrives_under_its_id(vector: Mapping[str, Any]) -> None:
    """Its id is the one that its sender gave it, whatever group and deduplication id are."""
    world = World(vector)
    world.send()
    world.arrives(world.sends["dueMs"])


@pytest.mark.parametrize(
    "vector", [p for p in _waiting() if p.values[0]["sends"]["route"] == "delay-queue"]
)
@pytest.mark.parametrize("passed", [timedelta(), timedelta(seconds=899)])
def test_a_vectors_id_cancels_and_reschedules(vector: Mapping[str, Any], passed: timedelta) -> None:
    """Before its first hop; then sent again and moved, it arrives once, when it was moved to."""
    world = World(vector)
    world.send()
    world.virtual.pass_time(passed)
    assert world.virtual.sender.cancel(world.endpoint, world.message_id) == Change.REQUESTED
    assert world.virtual.drain() == []
    world.virtual.pass_time(timedelta(seconds=2))
    world.send()
    moved = world.virtual.now + timedelta(days=40)
    change = world.virtual.sender.reschedule(world.endpoint, world.message_id, due_at=moved)
    assert change == Change.REQUESTED
    world.arrives(due_at_ms(moved))
