"""Pointers to large bodies: the words of AWS's Extended Client Libraries, to the letter."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from sqsdelay.core.delay import utc
from sqsdelay.core.limits import MAX_MESSAGE_BYTES, MAX_RETENTION_SECONDS
from sqsdelay.core.message import MOST_ADDED_BYTES, Attribute, Message, Route, size_of, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import MalformedMessage
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.sending import sizes
from sqsdelay.sending.router import ALWAYS_PARKED_BYTES, SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.testing import InMemoryLedger, InMemoryQueues, InMemoryStore, ManualClock

SIZE: Attribute = {"DataType": "Number", "StringValue": "300000"}
BODY = (
    '["software.amazon.payloadoffloading.PayloadS3Pointer", '
    '{"s3BucketName": "large-bodies", "s3Key": "orders/7"}]'
)


def test_a_pointers_body_is_the_libraries_own() -> None:
    """Other languages' clients read it by these names."""
    assert sizes.Pointer("large-bodies", "orders/7").to_body() == BODY


def test_the_size_is_that_of_the_body_in_utf_8() -> None:
    """Bytes, not characters; a number."""
    assert sizes.payload_size("a\N{SNOWMAN}") == {"DataType": "Number", "StringValue": "4"}


@pytest.mark.parametrize("name", [sizes.PAYLOAD_SIZE, sizes.LEGACY_PAYLOAD_SIZE])
def test_either_attribute_tells_a_pointer(name: str) -> None:
    """Today's name or that of version 1."""
    assert sizes.read_pointer(BODY, {name: SIZE}) == sizes.Pointer("large-bodies", "orders/7")


def test_a_message_without_the_attribute_is_its_own_body() -> None:
    """Whatever its body looks like."""
    assert sizes.read_pointer(BODY, {"other": SIZE}) is None


@pytest.mark.parametrize("body", ["x", "[]", '["a", 7]', '["a", {"s3Key": "k"}]', "[" * 100_000])
def test_a_pointer_that_is_none_is_refused_without_its_body(body: str) -> None:
    """The body may be a secret: its length is told."""
    told = (
        "the message has the attribute ExtendedPayloadSize, and its body of "
        f"{len(body)} characters is not a pointer to a large body"
    )
    with pytest.raises(MalformedMessage, match=f"^{re.escape(told)}$"):
        sizes.read_pointer(body, {sizes.PAYLOAD_SIZE: SIZE})


DELAY = "orders-delay.fifo"


class Bodies:
    """Keeps large bodies in memory."""

    def __init__(self, above_bytes: int) -> None:
        self.above_bytes = above_bytes
        self.kept: list[tuple[str, int]] = []

    def put(self, body: str, *, needed_until_ms: int) -> str:
        self.kept.append((body, needed_until_ms))
        return BODY


class Site:
    """A sender that leaves bodies above so many bytes elsewhere."""

    def __init__(
        self,
        above_bytes: int,
        *,
        store: bool = False,
        limit: int | None = None,
        small: str = "orders",
        **attributes: str,
    ) -> None:
        self.queues = InMemoryQueues(ManualClock())
        if limit is not None:
            self.queues.create_queue(small, MaximumMessageSize=str(limit), **attributes)
        self.queues.create_endpoint("orders")
        self.bodies, self.ledger = Bodies(above_bytes), InMemoryLedger()
        self.store = InMemoryStore(self.queues.clock)
        parking = ParkingSettings(self.store) if store else None
        settings = SenderSettings(large_bodies=self.bodies, ledger=self.ledger, parking=parking)
        self.sender = QueueSender(self.queues, settings)

    def sent(self, body: str, **given: Any) -> ReceivedMessage:
        """As the destination gets it; a preview puts nothing."""
        self.sender.preview("orders", Message(body, **given))
        assert not self.bodies.kept
        self.sender.send("orders", body, **given)
        (copy,) = self.queues.receive_batch("orders", wait_seconds=0)
        return copy


@pytest.mark.parametrize(
    ("characters", "above", "limit", "offloaded"),
    [
        (1000, 1000, None, False),
        (1001, 1000, None, True),
        (MAX_MESSAGE_BYTES + 1, 1000, None, True),
        (MAX_MESSAGE_BYTES - MOST_ADDED_BYTES, MAX_MESSAGE_BYTES, None, False),
        (MAX_MESSAGE_BYTES - MOST_ADDED_BYTES + 1, MAX_MESSAGE_BYTES, None, True),
        (2048 - MOST_ADDED_BYTES, MAX_MESSAGE_BYTES, 2048, False),
        (2048 - MOST_ADDED_BYTES + 1, MAX_MESSAGE_BYTES, 2048, True),
    ],
)
def test_a_body_leaves_above_the_least_of_three_sizes(
    characters: int, above: int, limit: int | None, offloaded: bool
) -> None:
    """The bucket's own, SQS's, and that of a queue on the way, these with room for what sqsdelay adds."""
    site = Site(above, limit=limit)
    copy = site.sent("x" * characters)
    assert (copy.body == BODY) is offloaded
    (event,) = site.ledger.events
    assert event.size == size_of(copy.body, copy.attributes)
    if not offloaded:
        assert (site.bodies.kept, copy.attributes) == ([], {})
        return
    assert copy.attributes == {sizes.PAYLOAD_SIZE: sizes.payload_size("x" * characters)}
    until_ms = site.queues.clock.true_ms + MAX_RETENTION_SECONDS * 1000
    assert site.bodies.kept == [("x" * characters, until_ms)]


@pytest.mark.parametrize(
    ("small", "delay", "offloaded"),
    [
        ("orders", 1000, True),
        (DELAY, 1000, True),
        (DELAY, None, False),
        ("orders-delay-error", 1000, False),
    ],
)
def test_every_queue_on_the_way_counts(small: str, delay: int | None, offloaded: bool) -> None:
    """The error queue is not on it."""
    delays = {"DelaySeconds": "900", "VisibilityTimeout": "180"}
    attributes: dict[str, Any] = delays if small == DELAY else {}
    site = Site(MAX_MESSAGE_BYTES, limit=2048, small=small, **attributes)
    site.sender.send("orders", "x" * 2048, delay=delay)
    assert [body for body, _ in site.bodies.kept] == ["x" * 2048] * offloaded


@pytest.mark.parametrize(
    ("size", "delay", "offloaded"),
    [
        (ALWAYS_PARKED_BYTES, 8101, False),
        (ALWAYS_PARKED_BYTES + 1, 8101, True),
        (ALWAYS_PARKED_BYTES + 1, 8100, False),
    ],
)
def test_a_body_leaves_that_is_too_large_for_the_store(
    size: int, delay: int, offloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message would be parked, were it smaller. What every store keeps is not asked for."""
    site = Site(MAX_MESSAGE_BYTES, store=True)
    asked: list[str] = []

    def too_large(message: StoredMessage) -> bool:
        asked.append(message.destination)
        return len(message.body) > ALWAYS_PARKED_BYTES

    monkeypatch.setattr(site.store, "too_large", too_large)
    route = site.sender.send("orders", "x" * size, delay=delay).route
    assert route is (Route.STORE if delay == 8101 else Route.DELAY_QUEUE)
    assert len(site.bodies.kept) == offloaded
    assert set(asked) <= {"orders"}


def test_a_body_is_kept_until_its_message_has_been_in_the_destination_for_fourteen_days() -> None:
    """Due in ten days from a store, where the pointer waits."""
    site = Site(1000, store=True)
    due = utc(site.queues.clock.true_ms) + timedelta(days=10)
    assert site.sender.preview("orders", Message("x" * 2000, due_at=due)).route is Route.STORE
    site.sender.send("orders", "x" * 2000, due_at=due)
    (stored,) = site.store.pending(2)
    assert stored.body == BODY.encode()
    assert stored.attributes == {sizes.PAYLOAD_SIZE: sizes.payload_size("x" * 2000)}
    assert site.bodies.kept == [("x" * 2000, stored.due_ms + MAX_RETENTION_SECONDS * 1000)]


@pytest.mark.parametrize("name", [sizes.PAYLOAD_SIZE, sizes.LEGACY_PAYLOAD_SIZE])
def test_what_was_received_is_sent_again_with_its_attributes(name: str) -> None:
    """The size goes where the body is whole again, and stays where it is a pointer still."""
    user = string("acme")
    whole = Site(1000).sent("whole again", attributes={name: SIZE, "tenant": user})
    assert whole.attributes == {"tenant": user}
    large = Site(5).sent("large again", attributes={name: SIZE, "tenant": user})
    size = sizes.payload_size("large again")
    assert large.attributes == {"tenant": user, sizes.PAYLOAD_SIZE: size}
    pointer = Site(1000).sent(BODY, attributes={name: SIZE, "tenant": user})
    assert (pointer.body, pointer.attributes) == (BODY, {name: SIZE, "tenant": user})
    assert Site(1000).sent("small", attributes={"tenant": user}).attributes == {"tenant": user}
