"""A sender with a store: parks at once, and lists, cancels and moves what waits, honestly."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from sqsdelay import errors
from sqsdelay.core.delay import DATE_RESOLUTION_MS, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_RETENTION_SECONDS
from sqsdelay.core.message import MESSAGE_ID, Message, text_of
from sqsdelay.core.stored_message import AMENDMENT_LIFETIME_SECONDS, Amendment, StoredMessage
from sqsdelay.parking.parking import Change, ParkingSettings
from sqsdelay.relaying import Relay, RelaySettings, Status
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender, Route
from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock

DELAY = "orders-delay.fifo"
DAY = 86_400


@pytest.fixture
def sender(queues: InMemoryQueues, store: InMemoryStore) -> QueueSender:
    return QueueSender(queues, SenderSettings(parking=ParkingSettings(store)))


def hop(queues: InMemoryQueues, store: InMemoryStore) -> list[Status]:
    relay = Relay(queues, Endpoint.parse("orders"), RelaySettings(parking=ParkingSettings(store)))
    return [o.status for o in relay.process(queues.receive_batch(DELAY, wait_seconds=0))]


def test_a_sender_with_a_store_parks_at_once(
    sender: QueueSender, queues: InMemoryQueues, store: InMemoryStore
) -> None:
    """No hop, no request but one for the broker's clock; nearer ones hop as before."""
    result = sender.send(
        "orders", "x", delay=DAY, attributes={"a": 1}, message_id="m", message_group_id="g"
    )
    assert (result.route, result.message_id, result.sqs_message_id) == (Route.STORE, "m", None)
    due_ms = queues.clock.true_ms + DATE_RESOLUTION_MS + DAY * 1000
    assert result.due == utc(due_ms)
    assert queues.calls == ["synchronise"]
    (stored,) = store.pending(9)
    assert (stored.destination, stored.body, stored.group_id) == ("orders", b"x", "g")
    assert stored.due_ms == due_ms
    assert sender.send("orders", "x", delay=8100).route is Route.DELAY_QUEUE
    assert sender.send("orders", "x", delay=8101).route is Route.STORE


def test_a_wrong_local_clock_does_not_move_what_is_parked(store: InMemoryStore) -> None:
    """A relative delay counts from the broker's clock here too; known by dates, it is not early."""
    clock = ManualClock(1_800_000_000_999)
    queues = InMemoryQueues(clock, local=ManualClock(clock.true_ms, error_ms=600_000))
    queues.create_endpoint("orders")
    QueueSender(queues, SenderSettings(parking=ParkingSettings(store))).send(
        "orders", "x", delay=DAY
    )
    (stored,) = store.pending(9)
    assert 0 < stored.due_ms - (clock.true_ms + DAY * 1000) <= DATE_RESOLUTION_MS


@pytest.mark.parametrize(("at_once", "parts"), [(None, [4]), (3, [3, 1])])
def test_many_are_parked_together_and_mixed_with_others(
    queues: InMemoryQueues, at_once: int | None, parts: list[int]
) -> None:
    """Results are in order, one store call takes all that are far away, or as many as the store wants."""
    calls: list[int] = []

    class Counting(InMemoryStore):
        stored_at_once = at_once

        def store(self, messages: Any, *, transaction: Any = None) -> list[bool]:
            calls.append(len(messages))
            return super().store(messages)

    store = Counting(queues.clock)
    sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(store)))
    delays = [0, 1000, DAY] * 4
    results = sender.send_many("orders", [Message(f"{n}", delay=d) for n, d in enumerate(delays)])
    assert [r.route for r in results] == [Route.DIRECT, Route.DELAY_QUEUE, Route.STORE] * 4
    assert all(r.error is None for r in results)
    assert calls == parts
    assert sorted(m.body for m in store.pending(9)) == [b"11", b"2", b"5", b"8"]


def test_a_failing_store_is_an_error_of_its_messages_alone(queues: InMemoryQueues) -> None:
    """Nothing is sent elsewhere instead: that could make two messages of one. Of another version, it has
    amendments that nobody can read: what has an id of its sender's is not sent."""

    class Away(InMemoryStore):
        def store(self, messages: Any, *, transaction: Any = None) -> list[bool]:
            raise errors.StoreUnavailable("away")

        def amendments(self, _: Sequence[str]) -> dict[str, Amendment]:
            raise errors.SchemaMismatch("version 2")

    sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(Away(queues.clock))))
    with pytest.raises(errors.StoreUnavailable):
        sender.send("orders", "x", delay=DAY)
    far, near = sender.send_many("orders", [Message("b", delay=DAY), Message("a", delay=1000)])
    assert (near.error, far.route, type(far.error)) == (None, Route.STORE, errors.StoreUnavailable)
    with pytest.raises(errors.SchemaMismatch, match="version 2"):
        sender.send("orders", "c", delay=1000, message_id="c")
    queues.clock.advance(900)
    assert [copy.body for copy in queues.receive_batch(DELAY, wait_seconds=0)] == ["a"]


def test_cancelling_what_is_parked(sender: QueueSender, store: InMemoryStore) -> None:
    """Done, and said so; a second time there is nothing there to cancel."""
    sender.send("orders", "x", delay=DAY, message_id="m")
    assert [m.message_id for m in sender.pending("orders")] == ["m"]
    assert sender.cancel("orders", "m") is Change.DONE
    assert list(sender.pending("orders")) == []
    assert sender.cancel("orders", "m") is Change.REQUESTED


def test_what_is_being_released_is_too_late(
    sender: QueueSender, store: InMemoryStore, clock: ManualClock
) -> None:
    """It is still in the store, and already on its way."""
    sender.send("orders", "x", delay=DAY, message_id="m")
    with store.claim(1, due_by_ms=clock.true_ms + 2 * DAY * 1000) as claim:
        assert sender.cancel("orders", "m") is Change.RELEASED
        assert sender.reschedule("orders", "m", delay=5) is Change.RELEASED
        claim.remove(["m"])
    assert sender.cancel("orders", "m") is Change.REQUESTED


def test_cancelling_what_is_in_the_delay_queue(
    sender: QueueSender, queues: InMemoryQueues, store: InMemoryStore
) -> None:
    """An amendment, which the delay consumer honours at the next hop."""
    sender.send("orders", "x", delay=5000, message_id="gone")
    sender.send("orders", "x", delay=1000, message_id="stays")
    assert sender.cancel("orders", "gone") is Change.REQUESTED
    queues.clock.advance(900)
    assert sorted(hop(queues, store)) == [Status.CANCELLED, Status.HANDED_OVER]
    queues.clock.advance(100)
    (copy,) = queues.receive_batch("orders", wait_seconds=0)
    assert text_of(copy.attributes, MESSAGE_ID) == "stays"
    assert queues.next_visible_ms() == queues.clock.true_ms + 30_000  # that copy, and nothing else


def test_a_copy_left_behind_does_not_bring_a_cancelled_message_back(
    sender: QueueSender, queues: InMemoryQueues, store: InMemoryStore
) -> None:
    """The consumer died after parking; its copy comes back after the message was cancelled."""
    QueueSender(queues).send("orders", "x", delay=DAY, message_id="m")
    queues.clock.advance(900)
    relay = Relay(queues, Endpoint.parse("orders"), RelaySettings(parking=ParkingSettings(store)))
    relay.process(queues.receive_batch(DELAY, wait_seconds=0), delete=False)
    assert sender.cancel("orders", "m") is Change.DONE
    queues.clock.advance(181)
    assert hop(queues, store) == [Status.CANCELLED]
    assert store.pending_count() == 0


def test_rescheduling_wherever_it_waits(
    sender: QueueSender, queues: InMemoryQueues, store: InMemoryStore
) -> None:
    """In the store at once, in the delay queue at its next hop; by delay or due time."""
    sender.send("orders", "x", delay=DAY, message_id="parked")
    sender.send("orders", "x", delay=5000, message_id="hopping")
    later = utc(queues.clock.true_ms + 2 * DAY * 1000)
    assert sender.reschedule("orders", "parked", due_at=later) is Change.DONE
    assert [utc(m.due_ms) for m in sender.pending("orders")] == [later]
    assert sender.reschedule("orders", "hopping", delay=1000) is Change.REQUESTED
    queues.clock.advance(900)
    assert hop(queues, store) == [Status.HANDED_OVER]
    assert queues.next_visible_ms() == queues.clock.true_ms + DATE_RESOLUTION_MS + 100_000
    past = datetime(1960, 1, 1, tzinfo=UTC)
    assert sender.reschedule("orders", "parked", due_at=past) is Change.DONE
    assert store.next_due_ms() == 0


def test_the_last_word_counts(
    sender: QueueSender, queues: InMemoryQueues, store: InMemoryStore
) -> None:
    """Moved twice, then cancelled."""
    sender.send("orders", "x", delay=5000, message_id="m")
    sender.reschedule("orders", "m", delay=2000)
    first_ms = store.amendments(["m"])["m"].at_ms
    sender.reschedule("orders", "m", delay=9000)
    sender.cancel("orders", "m")
    assert store.amendments(["m"])["m"].at_ms == first_ms + 2  # covers what was sent since
    queues.clock.advance(900)
    assert hop(queues, store) == [Status.CANCELLED]


def test_without_a_store_a_typed_error_says_so(queues: InMemoryQueues) -> None:
    """SQS neither lists messages nor finds one by its id."""
    sender = QueueSender(queues)
    for call in (
        lambda: sender.cancel("orders", "m"),
        lambda: sender.reschedule("orders", "m", delay=5),
        lambda: sender.pending("orders"),
    ):
        told = r"cannot be listed, cancelled or rescheduled.*store=…"
        with pytest.raises(errors.NoStore, match=told):
            call()


def test_one_store_serves_one_endpoint(sender: QueueSender, queues: InMemoryQueues) -> None:
    """Another endpoint's consumer would look for its amendments elsewhere; a function serves all."""
    sender.send("orders", "x", delay=DAY)
    told = "serves orders, not others; give store=lambda"
    with pytest.raises(errors.ConfigurationError, match=told):
        sender.cancel("others", "m")
    stores: dict[str, InMemoryStore] = {}

    def store_of(endpoint: str) -> InMemoryStore:
        assert endpoint not in stores, "asked for once"
        return stores.setdefault(endpoint, InMemoryStore(queues.clock))

    queues.create_endpoint("others")
    both = QueueSender(queues, SenderSettings(parking=ParkingSettings(store_of)))
    for endpoint in ("orders", "others", "orders"):
        both.send(endpoint, "x", delay=DAY)
    assert {name: store.pending_count() for name, store in stores.items()} == {
        "orders": 2,
        "others": 1,
    }


def test_what_cannot_be_is_refused(sender: QueueSender) -> None:
    """Before any amendment is left."""
    with pytest.raises(errors.InvalidDelay, match="give either delay or due_at"):
        sender.reschedule("orders", "m")
    with pytest.raises(errors.InvalidDelay, match="negative"):
        sender.reschedule("orders", "m", delay=-1)
    with pytest.raises(errors.InvalidMessage, match="cannot be stored"):
        sender.cancel("orders", "")
    with pytest.raises(errors.ConfigurationError, match="park_after_seconds=-1"):
        ParkingSettings(InMemoryStore(ManualClock()), -1)


def test_pending_reads_page_by_page(
    sender: QueueSender, store: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, in order of their due times; a hundred are in memory at once."""
    pages: list[tuple[int, bool]] = []
    page = store.pending

    def counted(limit: int, **given: Any) -> list[StoredMessage]:
        pages.append((limit, given["after"] is None))
        return page(limit, **given)

    monkeypatch.setattr(store, "pending", counted)
    delays = [DAY + 7 * n % 1201 for n in range(1201)]
    sender.send_many("orders", [Message("x", delay=d) for d in delays])
    dues = [m.due_ms for m in sender.pending("orders")]
    assert len(dues) == 1201
    assert pages == [(100, True)] + [(100, False)] * 13
    assert dues == sorted(dues)
    window = sender.pending("orders", due_from=utc(dues[101]), due_before=utc(dues[900]))
    assert [m.due_ms for m in window] == [ms for ms in dues if dues[101] <= ms < dues[900]]


def test_an_amendment_outlives_every_copy_that_could_meet_it(
    sender: QueueSender, store: InMemoryStore, clock: ManualClock
) -> None:
    """A copy waits 14 days at most, and its consumer may be down as long."""
    sender.cancel("orders", "m")
    clock.advance(MAX_RETENTION_SECONDS)
    assert "m" in store.amendments(["m"])
    clock.advance(AMENDMENT_LIFETIME_SECONDS - MAX_RETENTION_SECONDS + 2)
    assert store.amendments(["m"]) == {}
