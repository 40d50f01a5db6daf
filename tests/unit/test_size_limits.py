"""A queue's own limit, which is often less than SQS's: known early, and never exceeded by our words."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sqsdelay.core import message as wire
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.limits import MAX_MESSAGE_BYTES
from sqsdelay.core.message import Message, OutgoingMessage, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import MessageTooLarge, QueueUnavailable
from sqsdelay.operating.error_queue import ErrorQueue, RetryStatus
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying import DueRelay, Relay, Status
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sending.sizes import LIMIT, LIMIT_LIFETIME_SECONDS, SizeLimits
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock
from tests.messages import a_message

TERRAFORMS = 262_144
DELAY, ERRORS = "orders-delay.fifo", "orders-delay-error"
DAY = 86_400


class Asked(InMemoryQueues):
    """Counts who is asked for its attributes; may deny them."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.asked: list[str] = []
        self.denied = False

    def attributes(self, queue_url: str) -> Mapping[str, str]:
        self.asked.append(queue_url)
        if self.denied:
            raise QueueUnavailable("AccessDenied")
        return super().attributes(queue_url)


def endpoint(clock: ManualClock, limits: Mapping[str, int], name: str = "orders") -> Asked:
    """An endpoint whose queues take so many bytes."""
    queues = Asked(clock)
    for queue, limit in limits.items():
        attributes = {LIMIT: str(limit)}
        if queue == DELAY:
            attributes |= {"DelaySeconds": "900", "VisibilityTimeout": "180"}
        queues.create_queue(queue, **attributes)
    queues.create_endpoint(name)
    return queues


def received(queues: InMemoryQueues, queue: str = "orders") -> list[ReceivedMessage]:
    return queues.receive_batch(queue, wait_seconds=0)


def test_a_message_its_destination_would_refuse_is_not_sent(clock: ManualClock) -> None:
    """It was accepted, and ended in the error queue fifteen minutes later."""
    queues = endpoint(clock, {"orders": TERRAFORMS})
    sender = QueueSender(queues)
    with pytest.raises(MessageTooLarge) as refused:
        sender.send("orders", "x" * (TERRAFORMS + 1), delay=DAY)
    told = str(refused.value)
    assert "message of 262145 bytes" in told
    assert "queue orders, which takes 262144 (its MaximumMessageSize)" in told
    assert "raise that to at most 1048576" in told
    assert sender.send("orders", "x" * TERRAFORMS, delay=DAY).error is None


@pytest.mark.parametrize("delay", [DAY, 100 * DAY])
def test_a_store_is_no_way_round(clock: ManualClock, delay: int) -> None:
    """Nor is the delay queue: it is refused now and not in a year."""
    queues = endpoint(clock, {"orders": TERRAFORMS})
    sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(InMemoryStore(clock))))
    with pytest.raises(MessageTooLarge):
        sender.send("orders", "x" * (TERRAFORMS + 1), delay=delay)


@pytest.mark.parametrize("small", ["orders.fifo", "orders-due"])
@pytest.mark.parametrize("delay", [60, DAY])
def test_every_queue_on_the_way_counts(clock: ManualClock, small: str, delay: int) -> None:
    """A FIFO endpoint's due queue, too."""
    queues = endpoint(clock, {small: TERRAFORMS}, "orders.fifo")
    with pytest.raises(MessageTooLarge, match=f"queue {small}, which takes 262144"):
        QueueSender(queues).send(
            "orders.fifo", "x" * (TERRAFORMS + 1), delay=delay, message_group_id="g"
        )


def test_the_delay_queues_own_limit_counts_with_what_rides_along(clock: ManualClock) -> None:
    """An existing queue: the remaining delay must fit as well."""
    queues = endpoint(clock, {DELAY: TERRAFORMS})
    sender = QueueSender(queues)
    with pytest.raises(MessageTooLarge, match=r"queue orders-delay\.fifo, which takes 262144"):
        sender.send("orders", "x" * TERRAFORMS, delay=DAY)
    assert sender.send("orders", "x" * (TERRAFORMS - 200), delay=DAY).error is None


def test_queues_are_asked_once_in_five_minutes_and_for_large_messages_only(
    clock: ManualClock,
) -> None:
    """No queue takes less than 1 KiB: most messages cost no request more."""
    queues = endpoint(clock, {"orders": TERRAFORMS})
    sender = QueueSender(queues)
    sender.send("orders", "x" * 900, delay=DAY)
    sender.send("orders", "x" * 2000)
    assert queues.asked == []
    for _ in range(3):
        sender.send("orders", "x" * 2000, delay=DAY)
    assert sorted(queues.asked) == ["orders", DELAY]
    limits = SizeLimits(queues)
    ref = QueueRef("orders")
    assert limits.of(ref, size=2000) == TERRAFORMS
    queues.create_queue("orders")
    queues._queues["orders"].attributes[LIMIT] = str(MAX_MESSAGE_BYTES)
    assert limits.of(ref, size=2000) == TERRAFORMS
    clock.advance(LIMIT_LIFETIME_SECONDS + 1)
    assert limits.of(ref, size=2000) == MAX_MESSAGE_BYTES


def test_who_may_not_ask_can_send(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """AccessDenied, or no such queue: SQS's own limit counts, as before."""
    caplog.set_level("INFO")
    queues = endpoint(clock, {"orders": TERRAFORMS})
    queues.denied = True
    sender = QueueSender(queues)
    for _ in range(3):
        assert sender.send("orders", "x" * (TERRAFORMS + 1), delay=DAY).error is None
    assert sorted(queues.asked) == ["orders", DELAY]
    told = f"the limit of orders is not known, {MAX_MESSAGE_BYTES} is assumed: AccessDenied"
    assert told in caplog.messages


def test_one_message_too_large_does_not_keep_others_back(clock: ManualClock) -> None:
    """Each message of `send_many` has its own result."""
    queues = endpoint(clock, {"orders": TERRAFORMS})
    bodies = ["a", "x" * (TERRAFORMS + 1), "b"]
    results = QueueSender(queues).send_many("orders", [Message(body, delay=DAY) for body in bodies])
    assert [type(r.error) for r in results] == [type(None), MessageTooLarge, type(None)]


def test_the_relay_leaves_its_own_words_out_before_a_message_fails(clock: ManualClock) -> None:
    """Just as large as its destination takes: it arrives, without id and due time of ours."""
    queues = endpoint(clock, {"orders": TERRAFORMS})
    QueueSender(queues).send("orders", "x" * TERRAFORMS, delay=1000)
    QueueSender(queues).send("orders", "small", delay=1000, message_id="small")
    clock.advance(900)
    relay = Relay(queues, Endpoint.parse("orders"))
    outcomes = relay.process(received(queues, DELAY))
    assert [o.status for o in outcomes] == [Status.HANDED_OVER] * 2
    clock.advance(100)
    large, small = sorted(received(queues), key=lambda copy: -len(copy.body))
    assert (large.body, large.attributes) == ("x" * TERRAFORMS, {})
    assert wire.MESSAGE_ID in small.attributes
    assert received(queues, ERRORS) == []


def test_a_hop_leaves_the_due_time_out_before_a_message_fails(clock: ManualClock) -> None:
    """The remaining seconds stay, without which it would be lost."""
    body = "x" * 2000
    attributes = {wire.DELAY_SECONDS: string(str(DAY))}
    size = 2000 + len(wire.DELAY_SECONDS) + len("String") + 5
    queues = endpoint(clock, {DELAY: size})
    queues.send_batch(DELAY, [OutgoingMessage(body, attributes, size, None, "m", "m")])
    clock.advance(900)
    [outcome] = Relay(queues, Endpoint.parse("orders")).process(received(queues, DELAY))
    assert outcome.status is Status.REQUEUED
    clock.advance(900)
    [copy] = received(queues, DELAY)
    assert copy.attributes == {wire.DELAY_SECONDS: string(str(DAY - 900))}


def test_a_rejected_message_leaves_the_reason_out_before_it_fails(clock: ManualClock) -> None:
    """An error queue of Terraform's: better without the reason than for ever in the delay queue."""
    queues = endpoint(clock, {ERRORS: 2_048})
    body = "x" * 2_000
    queues.send_batch(DELAY, [OutgoingMessage(body, {}, 2_000, None, "m", "m")])
    clock.advance(900)
    [outcome] = Relay(queues, Endpoint.parse("orders")).process(received(queues, DELAY))
    assert outcome.status is Status.REJECTED
    [copy] = received(queues, ERRORS)
    assert (copy.body, copy.group_id) == (body, "m")


def test_the_due_relay_and_a_fifo_destination(clock: ManualClock) -> None:
    """The last leg of a FIFO endpoint, likewise."""
    queues = endpoint(clock, {"orders.fifo": TERRAFORMS}, "orders.fifo")
    body = "x" * TERRAFORMS
    QueueSender(queues).send("orders.fifo", body, delay=60, message_group_id="g", message_id="m")
    clock.advance(60)
    relay = DueRelay(queues, Endpoint.parse("orders.fifo"))
    [outcome] = relay.process(received(queues, "orders-due"))
    assert outcome.status is Status.DELIVERED
    [copy] = received(queues, "orders.fifo")
    assert (copy.body, copy.attributes, copy.group_id) == (body, {}, "g")


def test_the_dispatchers_outbox(clock: ManualClock) -> None:
    """Released and rejected without our words where these do not fit; what fits nowhere fails."""
    queues = endpoint(clock, {"orders": TERRAFORMS, ERRORS: 2_048})
    outbox = SqsOutbox(queues, Endpoint.parse("orders"))

    def stored(body: str, message_id: str) -> StoredMessage:
        return a_message(message_id, 0, body=body.encode())

    fits, too_large = outbox.send(
        [stored("x" * TERRAFORMS, "a"), stored("x" * (TERRAFORMS + 1), "b")]
    )
    assert not hasattr(fits, "error")
    assert "262144" in str(too_large.error)  # type: ignore[union-attr]
    [copy] = received(queues)
    assert (len(copy.body), copy.attributes) == (TERRAFORMS, {})
    assert outbox.reject([(stored("y" * 2_040, "c"), "why")]) == [None]
    [rejected] = received(queues, ERRORS)
    assert rejected.body == "y" * 2_040
    outbox.close()


def test_a_retry_from_the_error_queue(clock: ManualClock) -> None:
    """Sent on by an operator, it leaves our words out, too."""
    queues = endpoint(clock, {"orders": 2_048})
    attributes = {wire.DELAY_SECONDS: string("0"), wire.DUE_AT: string(str(clock.true_ms))}
    queues.send_batch(ERRORS, [OutgoingMessage("x" * 2_040, attributes, 2_100)])
    [retry] = ErrorQueue(queues, Endpoint.parse("orders")).retry()
    assert retry.status is RetryStatus.SENT
    [copy] = received(queues)
    assert (len(copy.body), copy.attributes) == (2_040, {})
