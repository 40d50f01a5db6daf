"""What every broker's outbox and sender keep, as tests. Subclass, and override the fixtures::

    class TestMyOutbox(OutboxContract):
        @pytest.fixture
        def outbox(self, tmp_path): ...

Every test gets a broker with an empty queue ``orders`` and an empty error queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from sqsdelay.core.message import Message
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidDelay, QueueMissing, SqsDelayError
from sqsdelay.ports.queues import Failure, Outbox, Sender

_PATIENCE_SECONDS: Final = 120
"""Ends a hang, also on a busy machine."""

DESTINATION: Final = "orders"
MISSING: Final = "nobody-has-made-this"
"""A destination that no broker under test has."""

Received = Callable[[], list[tuple[str, bytes]]]
"""Takes what waits in ``orders`` now: each message's id, as its receiver sees it, and body."""


def arrivals(received: Received, count: int) -> list[tuple[str, bytes]]:
    """What arrives, sorted, as soon as so many have; fewer when patience ends."""
    got = received()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(got) < count and time.monotonic() < deadline:
        time.sleep(0.05)
        got += received()
    return sorted(got)


class OutboxContract:
    """What holds for every `Outbox`."""

    @pytest.fixture
    def outbox(self) -> Outbox:
        """Overridden: the outbox under test."""
        raise NotImplementedError("override the fixture outbox")

    @pytest.fixture
    def received(self) -> Received:
        """Overridden: takes what is in ``orders``."""
        raise NotImplementedError("override the fixture received")

    @pytest.fixture
    def rejected(self) -> Callable[[], list[tuple[bytes, str]]]:
        """Overridden: takes what is in the error queue: bodies, and why."""
        raise NotImplementedError("override the fixture rejected")

    def message(self, outbox: Outbox, message_id: str, **changes: Any) -> StoredMessage:
        """A message for ``orders``, due now."""
        fields: dict[str, Any] = {
            "destination": DESTINATION,
            "due_ms": outbox.now_ms(),
            "body": b"hello",
        } | changes
        return StoredMessage(message_id=message_id, **fields)

    def test_it_is_ready(self, outbox: Outbox) -> None:
        """`check` raises nothing where its queues exist, and may be called again."""
        outbox.check()
        outbox.check()

    def test_its_clock_tells_epoch_milliseconds(self, outbox: Outbox) -> None:
        """And does not run backwards."""
        first = outbox.now_ms()
        assert 1_500_000_000_000 < first <= outbox.now_ms()
        assert outbox.max_ahead_seconds >= 0

    def test_no_messages_are_no_answers(self, outbox: Outbox) -> None:
        assert list(outbox.send([])) == []
        assert outbox.reject([]) == []

    def test_a_receiver_gets_the_id_and_the_body(self, outbox: Outbox, received: Received) -> None:
        """The id to deduplicate on, the body to the byte."""
        body = "grüße ☀".encode()
        (answer,) = outbox.send([self.message(outbox, "m-1", body=body)])
        assert not isinstance(answer, Failure)
        assert arrivals(received, 1) == [("m-1", body)]

    def test_many_are_answered_in_order(self, outbox: Outbox, received: Received) -> None:
        """Any number of them; a destination that is not there fails its own messages only."""
        places = [MISSING if n == 7 else DESTINATION for n in range(25)]
        messages = [
            self.message(outbox, f"m-{n:02}", destination=place) for n, place in enumerate(places)
        ]
        answers = outbox.send(messages)
        failed = [n for n, answer in enumerate(answers) if isinstance(answer, Failure)]
        assert (len(answers), failed) == (25, [7])
        sent = [m.message_id for m in messages if m.destination == DESTINATION]
        assert [message_id for message_id, _ in arrivals(received, 24)] == sent

    def test_a_missing_destination_is_no_outage(self, outbox: Outbox) -> None:
        """An outage would hold up the messages for every other destination."""
        (answer,) = outbox.send([self.message(outbox, "m-1", destination=MISSING)])
        assert isinstance(answer, Failure)
        assert isinstance(answer.error, SqsDelayError)
        assert not answer.outage

    def test_nothing_arrives_early(self, outbox: Outbox, received: Received) -> None:
        """Farther ahead than its message timer holds: kept for later, and not counted as a failure."""
        due_ms = outbox.now_ms() + (outbox.max_ahead_seconds + 60) * 1000
        (answer,) = outbox.send([self.message(outbox, "m-1", due_ms=due_ms)])
        assert isinstance(answer, Failure)
        assert answer.outage
        assert answer.transient
        assert received() == []

    def test_a_rejected_message_keeps_its_body(
        self, outbox: Outbox, rejected: Callable[[], list[tuple[bytes, str]]]
    ) -> None:
        """And says why."""
        outbox.check()
        assert outbox.reject([(self.message(outbox, "m-1"), "nobody wants it")]) == [None]
        ((body, reason),) = rejected()
        assert (body, "nobody wants it" in reason) == (b"hello", True)

    def test_threads_share_it(self, outbox: Outbox, received: Received) -> None:
        """Each call's answers are its own."""
        batches = [[self.message(outbox, f"{t}-{n}") for n in range(10)] for t in range(4)]
        with ThreadPoolExecutor(4) as threads:
            answers = [answer for batch in threads.map(outbox.send, batches) for answer in batch]
        assert not any(isinstance(answer, Failure) for answer in answers)
        sent = sorted(message.message_id for batch in batches for message in batch)
        assert [message_id for message_id, _ in arrivals(received, 40)] == sent


class SenderContract:
    """What holds for every `Sender`."""

    @pytest.fixture
    def sender(self) -> Sender[Any]:
        """Overridden: the sender under test."""
        raise NotImplementedError("override the fixture sender")

    @pytest.fixture
    def received(self) -> Received:
        """Overridden: takes what is in ``orders``."""
        raise NotImplementedError("override the fixture received")

    @pytest.fixture
    def pass_time(self) -> Callable[[float], object]:
        """Let seconds pass, and what serves the delays work. Overridden where time is virtual."""
        return time.sleep

    @pytest.fixture
    def make_message(self) -> Callable[..., Any]:
        """The sender's own class of messages, overridden where it is not `sqsdelay.Message`."""
        return Message

    def test_a_message_without_a_delay_arrives_at_once(
        self, sender: Sender[Any], received: Received
    ) -> None:
        """With the id given, the body to the byte, and a due time with its zone."""
        result = sender.send(DESTINATION, "grüße ☀", message_id="m-1")
        assert (result.message_id, result.error) == ("m-1", None)
        assert result.due is None or result.due.utcoffset() is not None
        assert arrivals(received, 1) == [("m-1", "grüße ☀".encode())]

    def test_an_id_is_made_up(self, sender: Sender[Any], received: Received) -> None:
        """The id returned is the one the receiver sees."""
        message_ids = [sender.send(DESTINATION, "a", delay=0).message_id for _ in range(2)]
        assert None not in message_ids
        assert sorted(map(str, message_ids)) == [
            message_id for message_id, _ in arrivals(received, 2)
        ]
        assert len(set(message_ids)) == 2

    def test_a_delayed_message_arrives_when_it_is_due(
        self, sender: Sender[Any], received: Received, pass_time: Callable[[float], object]
    ) -> None:
        """Not before, and once."""
        result = sender.send(DESTINATION, "later", delay=timedelta(seconds=2), message_id="m-1")
        assert (result.message_id, result.error) == ("m-1", None)
        assert result.due is not None
        assert received() == []
        pass_time(3)
        assert arrivals(received, 1) == [("m-1", b"later")]
        assert received() == []

    def test_what_was_due_in_the_past_is_due_now(
        self, sender: Sender[Any], received: Received
    ) -> None:
        sender.send(DESTINATION, "late", due_at=datetime(2020, 1, 1, tzinfo=UTC), message_id="m-1")
        assert arrivals(received, 1) == [("m-1", b"late")]

    @pytest.mark.parametrize(
        "given",
        [
            {"delay": -1},
            {"delay": 1, "due_at": datetime(2020, 1, 1, tzinfo=UTC)},
            {"due_at": datetime(2020, 1, 1)},  # noqa: DTZ001
        ],
        ids=["negative", "both", "naive"],
    )
    def test_a_delay_that_cannot_be_is_refused(
        self, sender: Sender[Any], received: Received, given: dict[str, Any]
    ) -> None:
        """And nothing was sent."""
        with pytest.raises(InvalidDelay):
            sender.send(DESTINATION, "never", **given)
        assert received() == []

    def test_results_are_in_order_and_one_does_not_fail_the_others(
        self, sender: Sender[Any], received: Received, make_message: Callable[..., Any]
    ) -> None:
        """The one that failed says why."""
        delays = [None, None, -1, None]
        messages = [make_message("x", delay=d, message_id=f"m-{n}") for n, d in enumerate(delays)]
        results = sender.send_many(DESTINATION, iter(messages))
        assert [result.error is None for result in results] == [True, True, False, True]
        assert isinstance(results[2].error, InvalidDelay)
        sent = ["m-0", "m-1", "m-3"]
        assert [result.message_id for result in results if result.error is None] == sent
        assert [message_id for message_id, _ in arrivals(received, 3)] == sent

    @pytest.mark.parametrize("delay", [None, 60])
    def test_a_missing_queue_is_an_error_now(
        self, sender: Sender[Any], make_message: Callable[..., Any], delay: int | None
    ) -> None:
        """Not when the message would have been due."""
        with pytest.raises(QueueMissing):
            sender.send(MISSING, "x", delay=delay)
        (result,) = sender.send_many(MISSING, [make_message("x", delay=delay)])
        assert isinstance(result.error, QueueMissing)
