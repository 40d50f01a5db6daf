"""Values exactly at every limit pass, on every route; one more is refused before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sqsdelay.core.delay import delay_ms
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_DUE_MS, MAX_MESSAGE_BYTES
from sqsdelay.core.message import (
    DEDUPLICATION_ID,
    DELAY_SECONDS,
    DUE_AT,
    GROUP_ID,
    MESSAGE_ID,
    WAS_DUE_AT,
    OutgoingMessage,
    size_of,
    string,
)
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import (
    InvalidDelay,
    InvalidEndpoint,
    InvalidMessage,
    MessageTooLarge,
    TooManyAttributes,
)
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying import DueRelay, Relay, RelaySettings, Status
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock

ROUTES = {"direct": 900, "relayed": 5000, "parked": 90_000}


class Deployment:
    """An endpoint whose senders park far-away messages, in virtual time."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.clock = ManualClock()
        self.queues = InMemoryQueues(self.clock)
        self.endpoint = self.queues.create_endpoint(name)
        self.store = InMemoryStore(self.clock)
        self.sender = QueueSender(
            self.queues, SenderSettings(parking=ParkingSettings(self.store), **settings)
        )
        self.outbox = SqsOutbox(self.queues, self.endpoint, concurrency=1)

    def arrived(self, seconds: float) -> list[ReceivedMessage]:
        """Serve until so much time has passed; what the destination has then."""
        relay = Relay(
            self.queues, self.endpoint, RelaySettings(parking=ParkingSettings(self.store))
        )
        dispatcher = Dispatcher(self.store, self.outbox, clock=self.clock)
        while seconds > 0:
            step = min(900.0, seconds)
            self.clock.advance(step)
            seconds -= step
            relay.process(self.queues.receive_batch(relay.source.name, wait_seconds=0))
            dispatcher.dispatch()
        if self.endpoint.fifo:
            due = DueRelay(self.queues, self.endpoint)
            due.process(self.queues.receive_batch(due.source.name, wait_seconds=0))
        self.outbox.close()
        return self.queues.receive_batch(self.endpoint.queue.name, wait_seconds=0)


@pytest.mark.parametrize("character", ["x", "ü", "𐍈"])
@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
@pytest.mark.parametrize("route", ROUTES)
def test_one_mebibyte_to_the_byte(route: str, name: str, character: str) -> None:
    """Body and attributes, sqsdelay's own included, in UTF-8: all of SQS's room, and no byte more."""
    given: dict[str, Any] = {
        "attributes": {"note": character * 100, "raw": b"\xff" * 50},
        "message_id": "m" * 128,
        "message_group_id": "g" * 128,
    }
    with pytest.raises(MessageTooLarge) as raised:
        Deployment(name).sender.send(
            name, character * MAX_MESSAGE_BYTES, delay=ROUTES[route], **given
        )
    told = int(str(raised.value).split()[2])
    room = MAX_MESSAGE_BYTES - (told - MAX_MESSAGE_BYTES * len(character.encode()))
    count, rest = divmod(room, len(character.encode()))
    fits = character * count + "." * rest
    with pytest.raises(MessageTooLarge, match=r"1048577 bytes .* the limit is 1048576; shorten it"):
        Deployment(name).sender.send(name, fits + ".", delay=ROUTES[route], **given)
    deployment = Deployment(name)
    deployment.sender.send(name, fits, delay=ROUTES[route], **given)
    (copy,) = deployment.arrived(ROUTES[route] + 900)
    assert copy.body == fits
    assert copy.attributes["raw"]["BinaryValue"] == b"\xff" * 50
    assert copy.attributes[MESSAGE_ID] == string("m" * 128)
    assert size_of(copy.body, copy.attributes) <= MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    ("name", "delay", "most"),
    [
        ("orders", 900, 9),
        ("orders", 5000, 8),
        ("orders", 90_000, 8),
        ("orders.fifo", 900, 6),
        ("orders.fifo", 5000, 6),
        ("orders.fifo", 5000.5, 6),
        ("orders.fifo", 90_000, 6),
    ],
)
def test_as_many_attributes_as_there_is_room_for(name: str, delay: float, most: int) -> None:
    """With a message id of the user's; one attribute more is refused with how many to move. What was
    delayed arrives with its id and its due time besides."""
    given: dict[str, Any] = {"message_id": "m"}
    given |= {"message_group_id": "g"} if name.endswith(".fifo") else {}
    attributes = {f"a{n}": "x" for n in range(most)}
    deployment = Deployment(name)
    with pytest.raises(TooManyAttributes, match="move 1 into the body"):
        deployment.sender.send(
            name, "x", delay=delay, attributes={**attributes, "one-more": "x"}, **given
        )
    deployment.sender.send(name, "x", delay=delay, attributes=attributes, **given)
    (copy,) = deployment.arrived(delay + 900)
    ours = {MESSAGE_ID} if delay == 900 and name == "orders" else {MESSAGE_ID, WAS_DUE_AT}
    assert set(copy.attributes) == {*attributes, *ours}


def test_names_at_their_limits() -> None:
    """80 characters of a queue's name, sqsdelay's suffixes included; 256 of an attribute's."""
    for queue in Endpoint.parse("q" * 68).queues:
        assert len(queue.name) <= 80
    assert max(len(queue.name) for queue in Endpoint.parse("q" * 68 + ".fifo").queues) == 80
    with pytest.raises(InvalidEndpoint, match="69 characters; the limit is 68"):
        Endpoint.parse("q" * 69)
    sender = Deployment("orders").sender
    sender.send("orders", "x", attributes={"n" * 256: "x"})
    with pytest.raises(InvalidMessage, match="257 characters; the limit is 256"):
        sender.send("orders", "x", attributes={"n" * 257: "x"})


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "where",
    [
        {"body": "a\ud800"},
        {"attributes": {"a": "\udfff"}},
        {"attributes": {"\ud800": "x"}},
        {"message_id": "\ud800"},
        {"message_group_id": "\ud800"},
        {"body": "\ufffe"},
        {"body": "\x00"},
        {"message_id": "ü"},
        {"message_id": ""},
        {"message_id": "m" * 129},
        {"message_id": "a b"},
        {"message_id": 5},
        {"message_id": b"m"},
    ],
    ids=ascii,
)
def test_characters_no_queue_takes(where: dict[str, Any], route: str) -> None:
    """Refused before anything is sent, on every route, with sqsdelay's own error."""
    deployment = Deployment("orders")
    with pytest.raises(InvalidMessage):
        deployment.sender.send("orders", **({"body": "x"} | where), delay=ROUTES[route])
    assert deployment.arrived(1) == []
    assert deployment.store.pending_count() == 0


FARTHEST: dict[str, Any] = {"max_delay_seconds": MAX_DUE_MS // 1000}


@pytest.mark.parametrize("seconds", [2**31, 2**31 - 1, 2**33, 200 * 365 * 86_400])
def test_delays_beyond_32_bits_are_exact(seconds: int) -> None:
    """68 years and more: no counter overflows on the way."""
    deployment = Deployment("orders", **FARTHEST)
    result = deployment.sender.send("orders", "x", delay=seconds)
    assert result.due is not None
    (stored,) = deployment.store.pending(9)
    exact_ms = deployment.clock.true_ms + seconds * 1000
    assert exact_ms <= stored.due_ms <= exact_ms + 1000
    unparked = QueueSender(deployment.queues, SenderSettings(**FARTHEST)).send(
        "orders", "x", delay=seconds
    )
    assert unparked.error is None
    deployment.clock.advance(900)
    relay = Relay(deployment.queues, deployment.endpoint, RelaySettings(**FARTHEST))
    (outcome,) = relay.process(deployment.queues.receive_batch("orders-delay.fifo", wait_seconds=0))
    assert (outcome.status, outcome.due_ms) == (Status.REQUEUED, exact_ms)


@pytest.mark.parametrize(
    "delay",
    [2**63, 2**64, -(2**63), 10**5000, -(10**5000), 1e300, float("inf"), float("nan"), -0.001, True, "5"],
    ids=lambda value: str(value)[:10] if not isinstance(value, int) else f"int-{value.bit_length()}",
)  # fmt: skip
def test_delays_nobody_can_wait_for(delay: Any) -> None:
    """Refused with one error, however large: never clamped, never overflowing."""
    with pytest.raises(InvalidDelay):
        delay_ms(delay)
    with pytest.raises(InvalidDelay):
        Deployment("orders").sender.send("orders", "x", delay=delay)


def test_the_year_9999() -> None:
    """The last second that has a name is a due time; the next instant is not."""
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    deployment = Deployment("orders", **FARTHEST)
    assert deployment.sender.send("orders", "x", due_at=last).due == last
    for late in (
        last + timedelta(microseconds=1),
        datetime.max.replace(tzinfo=UTC),
        last.replace(tzinfo=UTC).astimezone(UTC).replace(microsecond=999_999),
    ):
        with pytest.raises(InvalidDelay, match="year 9999"):
            deployment.sender.send("orders", "x", due_at=late)


def test_due_before_the_epoch_is_due_now() -> None:
    """A due time in the year 1 is overdue like any other."""
    deployment = Deployment("orders")
    deployment.sender.send("orders", "x", due_at=datetime(1, 1, 1, tzinfo=UTC))
    assert len(deployment.arrived(0.001)) == 1


FORGED = [
    {DELAY_SECONDS: "٣٠"},
    {DELAY_SECONDS: "9" * 15},
    {DELAY_SECONDS: "9" * 5000},
    {DUE_AT: "0"},
    {DELAY_SECONDS: "1000", DUE_AT: "253402300799000"},
    {DELAY_SECONDS: "1000", DUE_AT: "9" * 5000},
    {},
]
"""One for each reason; what else is refused stands in tests/unit/test_wire.py."""


@pytest.mark.parametrize("forged", FORGED, ids=lambda forged: ascii(forged)[:60])
def test_forged_delays_are_rejected_and_block_nobody(forged: dict[str, str]) -> None:
    """Never delivered at once by default, never kept for ever; the message beside it arrives."""
    deployment = Deployment("orders")
    attributes = {name: string(value) for name, value in forged.items()}
    deployment.queues.send_batch(
        "orders-delay.fifo", [OutgoingMessage("x", attributes, 1, None, "forged", "forged")]
    )
    deployment.sender.send("orders", "good", delay=1000)
    deployment.clock.advance(900)
    relay = Relay(
        deployment.queues,
        deployment.endpoint,
        RelaySettings(parking=ParkingSettings(deployment.store)),
    )
    outcomes = relay.process(deployment.queues.receive_batch(relay.source.name, wait_seconds=0))
    by_id = {outcome.copy.body: outcome.status for outcome in outcomes}
    assert by_id == {"x": Status.REJECTED, "good": Status.HANDED_OVER}
    (rejected,) = deployment.queues.receive_batch("orders-delay-error", wait_seconds=0)
    assert rejected.body == "x"


@pytest.mark.parametrize("due", ["9" * 5000, "٣", "-1", "", "1e3"], ids=ascii)
def test_a_forged_due_time_does_not_stop_a_due_queue(due: str) -> None:
    """It only orders what a due queue holds; the message is due when it is visible there."""
    deployment = Deployment("orders.fifo")
    attributes = {
        GROUP_ID: string("g"), DEDUPLICATION_ID: string("d"), DUE_AT: string(due),
    }  # fmt: skip
    deployment.queues.send_batch("orders-due", [OutgoingMessage("x", attributes, 1)])
    deployment.sender.send("orders.fifo", "good", delay=1, message_group_id="h")
    assert {copy.body for copy in deployment.arrived(2)} == {"x", "good"}
